"""Growing global batches against megatron-core: the same sizes after any number of consumed samples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.loading.batch_sizes import BatchSizeRampup

peer = pytest.importorskip("megatron.core.num_microbatches_calculator")
if not hasattr(peer, "RampupBatchsizeNumMicroBatchesCalculator"):
    pytest.skip("this version of the peer has no ramp-up any more", allow_module_level=True)

pytestmark = pytest.mark.peer


@given(
    start=st.integers(1, 64),
    increment=st.integers(1, 64),
    num_increments=st.integers(1, 60),
    samples=st.integers(1, 10**6),
    fractions=st.lists(st.fractions(0, 2), max_size=20),
)
def test_sizes_are_the_peer_s(start, increment, num_increments, samples, fractions):
    size = start + increment * num_increments
    ramp = BatchSizeRampup(
        start_global_batch_size=start, batch_size_increment=increment, rampup_samples=samples, global_batch_size=size
    )
    calculator = peer.RampupBatchsizeNumMicroBatchesCalculator(size, 1, 1, False, 1, start, increment, samples)
    edges = [samples * step // num_increments + near for step in range(num_increments + 1) for near in (-1, 0, 1)]
    for consumed in [*edges, *(int(fraction * samples) for fraction in fractions)]:
        if consumed >= 0:
            calculator.update(consumed, consistency_check=True)
            assert ramp.batch_size(consumed) == calculator.get_current_global_batch_size()


@given(
    micro=st.integers(1, 5),
    ranks=st.integers(1, 5),
    samples=st.integers(1, 1000),
    consumed=st.lists(st.integers(0, 1200), max_size=20),
)
def test_micro_batches_are_the_peer_s_where_sizes_are_decreased(micro, ranks, samples, consumed):
    ramp = BatchSizeRampup(
        start_global_batch_size=25, batch_size_increment=3, rampup_samples=samples, global_batch_size=40
    )
    calculator = peer.RampupBatchsizeNumMicroBatchesCalculator(40, micro, ranks, True, 1, 25, 3, samples)
    for number in consumed:
        calculator.update(number, consistency_check=True)
        found = ramp.num_micro_batches(
            number, micro_batch_size=micro, data_parallel_size=ranks, decrease_batch_size_if_needed=True
        )
        assert found == calculator.get()
