"""Global batches that grow: their sizes, the samples of each step, and resuming anywhere on the ramp."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import flat

from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizeRampup, BatchSizeSchedule
from tokenloom.loading.samplers import MegatronPretrainingSampler, RampupPretrainingSampler

LAYOUTS = [(1, 1), (2, 1), (1, 2), (1, 4), (2, 2), (4, 1)]


def make_ramp(start, increment, samples, size):
    return BatchSizeRampup(
        start_global_batch_size=start, batch_size_increment=increment, rampup_samples=samples, global_batch_size=size
    )


@st.composite
def ramps(draw, unit=1):
    """Draws ramps whose sizes are all multiples of a unit."""
    start, increment = draw(st.integers(1, 4)) * unit, draw(st.integers(1, 3)) * unit
    return make_ramp(start, increment, draw(st.integers(0, 120)), start + increment * draw(st.integers(0, 4)))


def sizes_of_run(ramp, consumed, total):
    """Returns the sizes of the whole global batches that are left."""
    sizes = []
    while consumed + ramp.batch_size(consumed) <= total:
        sizes.append(ramp.batch_size(consumed))
        consumed += sizes[-1]
    return sizes


# --- sizes --------------------------------------------------------------------------------------------------------


def test_sizes_grow_evenly():
    ramp = make_ramp(16, 8, 300, 64)  # 6 increments, one each 50 samples
    assert [ramp.batch_size(consumed) for consumed in (0, 49, 50, 99, 100, 250, 299, 300, 301, 10**12)] == [
        *(16, 16, 24, 24, 32, 56, 56, 64, 64, 64),
    ]


def test_how_many_micro_batches_a_step_has():
    ramp = make_ramp(4, 4, 24, 12)
    assert [ramp.num_micro_batches(n, micro_batch_size=1, data_parallel_size=2) for n in (0, 12, 24)] == [2, 4, 6]
    decreased = [
        ramp.num_micro_batches(n, micro_batch_size=3, data_parallel_size=1, decrease_batch_size_if_needed=True)
        for n in (0, 12, 24)
    ]
    assert decreased == [1, 2, 4]
    with pytest.raises(ConfigError, match="expected micro_batch_size of at least 1, found 0"):
        ramp.num_micro_batches(0, micro_batch_size=0, data_parallel_size=2)
    with pytest.raises(ConfigError, match="expected consumed_samples of at least 0, found -1"):
        ramp.batch_size(-1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, 4, 10, 8), "expected start_global_batch_size of at least 1, found 0"),
        ((12, 4, 10, 8), "expected global_batch_size of at least 12, found 8"),
        (
            (4, 3, 10, 8),
            "expected increments of 3 to lead from start_global_batch_size 4 to global_batch_size 8, found a remainder",
        ),
    ],
)
def test_bad_ramps_are_named(settings, message):
    with pytest.raises(ConfigError) as caught:
        make_ramp(*settings)
    assert caught.value.message == message


# --- batches ------------------------------------------------------------------------------------------------------


def test_steps_hold_ever_more_micro_batches():
    sampler = RampupPretrainingSampler(26, 0, 2, 1, 2, rampup=make_ramp(4, 4, 8, 12))
    assert list(sampler.global_batches()) == [[[2, 3]], [[6, 7], [10, 11]], [[14, 15], [18, 19], [22, 23]]]
    assert list(sampler) == [[2, 3], [6, 7], [10, 11], [14, 15], [18, 19], [22, 23]]
    assert len(sampler) == 6


@given(
    ramp=ramps(unit=4), layout=st.sampled_from(LAYOUTS), total=st.integers(1, 300), drop=st.booleans(), data=st.data()
)
def test_the_ranks_together_yield_the_global_order_step_by_step(ramp, layout, total, drop, data):
    micro, ranks = layout
    consumed = data.draw(st.integers(0, total - 1))
    samplers = [
        RampupPretrainingSampler(total, consumed, micro, rank, ranks, drop, rampup=ramp) for rank in range(ranks)
    ]
    steps = list(zip(*(sampler.global_batches() for sampler in samplers), strict=True))
    sizes = sizes_of_run(ramp, consumed, total)
    left = total - consumed - sum(sizes)
    if left and not drop:
        sizes.append(left)
    found = [sorted(flat(flat(step))) for step in steps]
    starts = list(itertools.accumulate(sizes, initial=consumed))
    assert found == [list(range(start, stop)) for start, stop in itertools.pairwise(starts)]
    for rank, sampler in enumerate(samplers):
        micro_batches = list(sampler)
        assert micro_batches == flat(sampler.global_batches())
        assert len(sampler) == len(micro_batches)
        plain = list(MegatronPretrainingSampler(total, consumed, micro, rank, ranks, drop))
        assert micro_batches == plain[: len(micro_batches)]


@given(
    ramp=ramps(unit=4), total=st.integers(1, 300), legs=st.lists(st.tuples(st.sampled_from(LAYOUTS), st.integers(0, 4)))
)
def test_resuming_on_the_ramp_with_other_sizes_changes_no_step(ramp, total, legs):
    found = []
    consumed = 0
    for (micro, ranks), num_steps in legs:
        if consumed == total:
            break
        samplers = [RampupPretrainingSampler(total, consumed, micro, rank, ranks, rampup=ramp) for rank in range(ranks)]
        steps = list(zip(*(sampler.global_batches() for sampler in samplers), strict=True))[:num_steps]
        found += [sorted(flat(flat(step))) for step in steps]
        consumed = len(flat(found))
    assert flat(found) == list(range(consumed))
    assert [len(step) for step in found] == sizes_of_run(ramp, 0, total)[: len(found)]


@given(ramp=ramps(), micro=st.integers(1, 4), ranks=st.integers(1, 3), total=st.integers(1, 200))
def test_sizes_may_be_decreased_to_whole_micro_batches(ramp, micro, ranks, total):
    chunk = micro * ranks
    options = {"rampup": ramp, "decrease_batch_size_if_needed": True}
    if ramp.batch_size(0) < chunk:
        with pytest.raises(ConfigError, match=f"= {chunk}, found {ramp.batch_size(0)} after 0 samples"):
            RampupPretrainingSampler(total, 0, micro, 0, ranks, **options)
        return
    consumed = 0
    for step in RampupPretrainingSampler(total, 0, micro, 0, ranks, **options).global_batches():
        assert len(step) == ramp.batch_size(consumed) // chunk
        assert step[0][0] == consumed
        consumed += len(step) * chunk
    assert consumed + ramp.batch_size(consumed) // chunk * chunk > total


def test_a_size_that_does_not_fit_is_found_before_the_run():
    ramp = make_ramp(4, 2, 20, 8)
    with pytest.raises(ConfigError) as caught:
        RampupPretrainingSampler(100, 0, 2, 0, 2, rampup=ramp)
    assert caught.value.message == (
        "expected a global batch size that is a multiple of micro_batch_size * data_parallel_size = 4, "
        "found 6 after 12 samples"
    )
    assert caught.value.hint == "choose a micro-batch size and a number of ranks whose product divides it"
    # Sizes that lie behind, or that no step has, need not fit.
    assert len(RampupPretrainingSampler(100, 20, 2, 0, 2, rampup=ramp)) == 20
    assert len(RampupPretrainingSampler(100, 0, 2, 0, 2, rampup=make_ramp(4, 2, 4, 8))) == 25


# --- schedules, and other places to begin at ----------------------------------------------------------------------


def test_a_schedule_may_fall_too():
    schedule = BatchSizeSchedule.parse("0:4 6:12 20:4")
    sampler = RampupPretrainingSampler(29, 0, 2, 1, 2, rampup=schedule)
    assert list(sampler.global_batches()) == [
        *([[2, 3]], [[6, 7]], [[10, 11], [14, 15], [18, 19]], [[22, 23]], [[26, 27]]),
    ]
    assert len(sampler) == 7


@st.composite
def schedules(draw, unit):
    starts = sorted(draw(st.sets(st.integers(1, 300), max_size=5)))
    return BatchSizeSchedule(sizes=tuple((start, draw(st.integers(1, 5)) * unit) for start in (0, *starts)))


@given(
    sizes=st.one_of(schedules(unit=4), ramps(unit=4)),
    layout=st.sampled_from(LAYOUTS),
    total=st.integers(1, 300),
    drop=st.booleans(),
    data=st.data(),
)
def test_a_sampler_begins_where_it_is_told(sizes, layout, total, drop, data):
    micro, ranks = layout
    position = data.draw(st.integers(0, total))
    sampler = RampupPretrainingSampler(total, 0, micro, ranks - 1, ranks, drop, rampup=sizes)
    under_way = sampler.global_batches()
    whole = list(sampler.global_batches())
    begun = list(itertools.islice(under_way, 1))
    sampler.begin_at(position)
    assert [*begun, *under_way] == whole  # only later iterations begin elsewhere
    assert [sampler.position_after(n) for n in (0, 1)] == [position, min(position + micro * ranks, total)]
    if position == total:
        assert (list(sampler), list(sampler.global_batches()), len(sampler)) == ([], [], 0)
        return
    made = RampupPretrainingSampler(total, position, micro, ranks - 1, ranks, drop, rampup=sizes)
    assert list(sampler.global_batches()) == list(made.global_batches())
    assert (list(sampler), len(sampler)) == (list(made), len(made))
