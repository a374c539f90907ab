"""Schedules of global batch sizes: parsing, and the mapping of steps to positions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizeRampup, BatchSizeSchedule

parse = BatchSizeSchedule.parse


@st.composite
def schedules(draw):
    starts = sorted(draw(st.sets(st.integers(1, 400), max_size=6)))
    return BatchSizeSchedule(sizes=tuple((start, draw(st.integers(1, 60))) for start in (0, *starts)))


@st.composite
def ramps(draw):
    start, increment = draw(st.integers(1, 10)), draw(st.integers(1, 10))
    return BatchSizeRampup(
        start_global_batch_size=start,
        batch_size_increment=increment,
        rampup_samples=draw(st.integers(0, 400)),
        global_batch_size=start + increment * draw(st.integers(0, 40)),
    )


@pytest.mark.parametrize(
    ("text", "length", "sizes"),
    [
        ("0:768", None, ((0, 768),)),
        ("0:768 1000:1536", None, ((0, 768), (1000, 1536))),
        ("0:768,1000:1536", None, ((0, 768), (1000, 1536))),
        (
            *("0K:8 1K:16 2m:32 3B:4 4G:5 5T:6", 1),
            ((0, 8), (1000, 16), (2 * 10**6, 32), (3 * 10**9, 4), (4 * 10**9, 5), (5 * 10**12, 6)),
        ),
        ("0:8 199:16", 100, ((0, 8), (1, 16))),  # rounded down to whole samples
        ("0:8 200:16", 100, ((0, 8), (2, 16))),
        ("0:8 9223372036854775807:1", None, ((0, 8), (2**63 - 1, 1))),
        ("0:8 200:16", np.int32(100), ((0, 8), (2, 16))),
    ],
)
def test_schedules_are_parsed(text, length, sizes):
    assert parse(text, sequence_length=length).sizes == sizes


def test_token_thresholds_with_changing_sequence_lengths():
    lengths = [(0, 10), (5, 100), (8, 1)]  # 50 tokens in samples of 10, then 300 in samples of 100
    for tokens, start in ((49, 4), (50, 5), (149, 5), (150, 6), (349, 7), (350, 8), (351, 9)):
        assert parse(f"0:1 {tokens}:2", sequence_length=lengths).sizes[1][0] == start


WRITTEN = "write `THRESHOLD:BATCH_SIZE` items, such as `0:768 250B:1536`"


@pytest.mark.parametrize(
    ("text", "item", "fault", "hint"),
    [
        ("", "item 1 '' at column 1", " is empty", WRITTEN),
        ("0:8,,9:3", "item 2 '' at column 5", " is empty", WRITTEN),
        ("0:8 9", "item 2 '9' at column 5", " is not a threshold and a batch size", WRITTEN),
        ("0:nan", "item 1 '0:nan' at column 1", " is not a threshold and a batch size", WRITTEN),
        ("0:8 9:0", "item 2 '9:0' at column 5", ": the batch size must be an integer in [1, 2**63)", None),
        ("0:8 9.5:3", "item 2 '9.5:3' at column 5", ": the threshold must be an integer in [0, 2**63)", None),
        ("5:8", "item 1 '5:8' at column 1", ": must start at 0, got 5", "start with threshold 0: `0:768`"),
        (
            *("0:8 9:3 9:4", "item 3 '9:4' at column 9", ": starts after 9 samples, the previous item after 9"),
            "write thresholds in ascending order, at least one sample apart",
        ),
        (
            *("0:8 250B:16", "item 2 '250B:16' at column 5"),
            ": a threshold with a suffix needs a sequence length",
            "pass `sequence_length`, or write the threshold as a number of samples",
        ),
    ],
)
def test_invalid_schedules_are_refused(text, item, fault, hint):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.message == f"{item} of the batch size schedule{fault}"
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (((3, 8),), r"the consumed samples of sizes\[0\]"),
        (((0, 8), (5, 9), (4, 8)), r"the consumed samples of sizes\[2\]"),
        (((0, 0),), r"the batch size of sizes\[0\]"),
        (("0:8",), r"`sizes\[0\]`: must be \(consumed samples, batch size\), got '0:8'"),
        ((), r"`sizes` is empty\nhint: pass at least one \(consumed samples, batch size\)"),
    ],
)
def test_sizes_are_checked(sizes, message):
    with pytest.raises(ConfigError, match=message):
        BatchSizeSchedule(sizes=sizes)


def test_a_step_keeps_its_batch_size():
    schedule = parse("0:4 10:8 12:1 30:2")  # steps at 0, 4, 8 of 4; the sizes at 12, 13, … are 1; then 30, 32, …
    assert [schedule.position_of_step(step) for step in (0, 1, 2, 3, 4, 20, 21, 22)] == [0, 4, 8, 12, 13, 29, 30, 32]
    assert [schedule.step_of_position(position) for position in (0, 3, 4, 11, 12, 13, 29, 30, 31, 32)] == [
        *(0, 0, 1, 2, 3, 4, 20, 21, 21, 22)
    ]


@given(sizes=st.one_of(schedules(), ramps()), num_steps=st.integers(0, 200))
def test_steps_follow_each_other_by_their_sizes(sizes, num_steps):
    position = 0
    for step in range(num_steps):
        assert sizes.position_of_step(step) == position
        size = sizes.batch_size(position)
        assert sizes.step_of_position(position) == sizes.step_of_position(position + size - 1) == step
        position += size


@given(sizes=st.one_of(schedules(), ramps()), step=st.integers(0, 10**18))
def test_step_and_position_are_inverse(sizes, step):
    position = sizes.position_of_step(step)
    assert sizes.step_of_position(position) == step
    if position:
        assert sizes.step_of_position(position - 1) == step - 1


@pytest.mark.parametrize(
    ("ask", "name"),
    [("position_of_step", "step"), ("step_of_position", "position"), ("batch_size", "consumed_samples")],
)
def test_numbers_are_checked(ask, name):
    for number in (-1, 1.5):
        with pytest.raises(ConfigError, match=name):
            getattr(parse("0:4 9:8"), ask)(number)


def make_ramp(start, increment, samples, size):
    return BatchSizeRampup(
        start_global_batch_size=start, batch_size_increment=increment, rampup_samples=samples, global_batch_size=size
    )


def test_sizes_grow_evenly():
    ramp = make_ramp(16, 8, 300, 64)  # 6 increments, one each 50 samples
    assert [ramp.batch_size(consumed) for consumed in (0, 49, 50, 99, 100, 250, 299, 300, 301, 10**12)] == [
        *(16, 16, 24, 24, 32, 56, 56, 64, 64, 64)
    ]


def test_how_many_micro_batches_a_step_has():
    ramp = make_ramp(4, 4, 24, 12)
    assert [ramp.num_micro_batches(n, micro_batch_size=1, data_parallel_size=2) for n in (0, 12, 24)] == [2, 4, 6]
    decreased = [
        ramp.num_micro_batches(n, micro_batch_size=3, data_parallel_size=1, decrease_batch_size_if_needed=True)
        for n in (0, 12, 24)
    ]
    assert decreased == [1, 2, 4]
    with pytest.raises(ConfigError, match="micro_batch_size"):
        ramp.num_micro_batches(0, micro_batch_size=0, data_parallel_size=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, 4, 10, 8), "start_global_batch_size"),
        ((12, 4, 10, 8), "global_batch_size"),
        ((4, 3, 10, 8), "batch_size_increment 3: must divide 8 - 4"),
    ],
)
def test_bad_ramps_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_ramp(*settings)
