"""`tokenloom.megatron.core.datasets.dynamic_cp`; recorded plans are in `tests/packing/test_schedulers.py`."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets import data_schedule_utils as utils


def test_one_microbatch_at_a_time():
    assert [utils.dcp_gpus_needed(length, 8) for length in (1, 8, 9, 17, 33)] == [1, 1, 2, 4, 8]
    assert utils.dcp_gpus_needed(3, 8, 2) == 2
    found = utils.next_hdp_group_packing_aware([(7, 3), (5, 16), (6, 8)], 4, 8)
    assert found == ([[16], [16], [8], [3]], [], [128.0, 128.0, 64.0, 9.0], [[5], [5], [6], [7]])
    assert utils.next_hdp_group_packing_aware([(0, 8), (1, 8)], 1, 8)[1] == [(1, 8)]
    assert utils.next_hdp_group_packing_aware([], 2, 8) == ([[], []], [], [0.0, 0.0], [[], []])
    with pytest.raises(AssertionError, match="a sub-sample has 33 tokens, but 4 ranks of 8 hold fewer"):
        utils.next_hdp_group_packing_aware([(0, 33)], 4, 8)


def test_microbatches_are_cut_in_two():
    # The second half stays, widened; the first goes to the end.
    cut = utils.align_sample_id_groups([[[0], [0], [1], [2]]], 2)
    assert cut == [[[1], [1], [2], [2]], [[0], [0], [0], [0]]]
    with pytest.raises(ConfigError, match="cannot be cut to a multiple of 2: all ranks share each"):
        utils.align_sample_id_groups([[[0], [0]]], 2)
    with pytest.raises(ConfigError, match="expected sub-samples on each rank of a microbatch"):
        utils.align_sample_id_groups([[[0], []]], 2)
