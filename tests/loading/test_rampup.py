"""Global batches that grow: their sizes, and the micro-batches of each step."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizeRampup


def make_ramp(start, increment, samples, size):
    return BatchSizeRampup(
        start_global_batch_size=start, batch_size_increment=increment, rampup_samples=samples, global_batch_size=size
    )


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
