"""`tokenloom.megatron.core.datasets.dynamic_cp`; recorded plans are in `tests/packing/test_schedulers.py`."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets import data_schedule, dynamic_cp
from tokenloom.megatron.core.datasets import data_schedule_utils as utils


def test_one_microbatch_at_a_time():
    assert [utils.dcp_gpus_needed(length, 8) for length in (1, 8, 9, 17, 33)] == [1, 1, 2, 4, 8]
    assert utils.dcp_gpus_needed(3, 8, 2) == 2
    assert [utils.dcp_gpus_needed(length, 8, 2, (1, 2, 6)) for length in (1, 17, 48, 49)] == [2, 6, 6, 7]
    found = utils.next_hdp_group_packing_aware([(7, 3), (5, 16), (6, 8)], 4, 8)
    assert found == ([[16], [16], [8], [3]], [], [128.0, 128.0, 64.0, 9.0], [[5], [5], [6], [7]])
    assert utils.next_hdp_group_packing_aware([(0, 8), (1, 8)], 1, 8)[1] == [(1, 8)]
    assert utils.next_hdp_group_packing_aware([], 2, 8) == ([[], []], [], [0.0, 0.0], [[], []])
    with pytest.raises(AssertionError, match="a sub-sample has 33 tokens, but 4 ranks of 8 hold fewer"):
        utils.next_hdp_group_packing_aware([(0, 33)], 4, 8)


@pytest.mark.parametrize("version", [(0, 16, 1), (0, 19, 2)])
def test_older_versions_have_groups_of_any_power_of_two(monkeypatch, version):
    monkeypatch.setattr(dynamic_cp, "reference_version", lambda: version)
    found = utils.next_hdp_group_packing_aware([(0, 17), (1, 8), (2, 8)], 6, 8)
    assert [sum(ids[0] in other for other in found[3]) for ids in found[3]] == [4, 4, 4, 4, 1, 1]


def test_the_newest_version_has_groups_that_divide_the_ranks(monkeypatch):
    monkeypatch.setattr(dynamic_cp, "reference_version", lambda: (0, 20))
    assert utils.next_hdp_group_packing_aware([(0, 17), (1, 8), (2, 8)], 6, 8)[3] == [[0, 1, 2]] * 6
    assert utils.next_hdp_group_packing_aware([(0, 50), (1, 50)], 14, 100)[3] == [[0, 1]] * 14
    assert utils.next_hdp_group_packing_aware([(0, 6), (1, 2)], 4, 8, cp_group_sizes=[1, 4])[3] == [[0, 1]] * 4
    for options in ({"min_cp_size": 3}, {"cp_group_sizes": [1, 4]}, {"min_cp_size": 2, "cp_group_sizes": [1, 6]}):
        with pytest.raises(ValueError, match=r"among \[1, 2, 6\], found "):
            utils.next_hdp_group_packing_aware([(0, 8)], 6, 8, **options)


def test_schedulers_have_the_groups_of_the_version(monkeypatch):
    plans = {}
    for version in ((0, 16, 1), (0, 20)):
        monkeypatch.setattr(dynamic_cp, "reference_version", lambda: version)  # noqa: B023  called at once
        scheduler = data_schedule.DefaultDynamicCPScheduler(8, cp_size=2, dp_size=3, min_cp_size=2)
        plans[version] = scheduler.get_groups_and_subsamples([(0, 17), (1, 8)])
    assert plans == {(0, 16, 1): [[[0], [0], [0], [0], [1], [1]]], (0, 20): [[[0, 1]] * 6]}
    with pytest.raises(ValueError, match=r"min_cp_size=4.*expected one of"):
        data_schedule.DefaultDynamicCPScheduler(8, 2, 3, None, min_cp_size=4)


def test_microbatches_are_cut_in_two():
    # The second half stays, widened; the first goes to the end.
    cut = utils.align_sample_id_groups([[[0], [0], [1], [2]]], 2)
    assert cut == [[[1], [1], [2], [2]], [[0], [0], [0], [0]]]
    with pytest.raises(ConfigError, match="cannot be cut to a multiple of 2: all ranks share each"):
        utils.align_sample_id_groups([[[0], [0]]], 2)
    with pytest.raises(ConfigError, match="expected sub-samples on each rank of a microbatch"):
        utils.align_sample_id_groups([[[0], []]], 2)
