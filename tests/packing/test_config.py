"""Settings of packing, and which stages need tokens."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from tokenloom.errors import ConfigError
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.cost import PolynomialCost
from tokenloom.packing.groups import ProcessGroups
from tokenloom.packing.schedulers import make_scheduler

torch = pytest.importorskip("torch")


def test_missing_attributes_have_defaults():
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=8, sequence_parallel=True, cp_partition_mode=None, hidden_size=7)
    assert PackingConfig.of(config) == PackingConfig(max_seqlen_per_dp_cp_rank=8, sequence_parallel=True)
    with pytest.raises(ConfigError, match="`max_seqlen_per_dp_cp_rank`: must be an integer, got None"):
        PackingConfig.of(SimpleNamespace(sequence_packing_scheduler="dp_balanced"))


def test_a_cost_model_reaches_the_scheduler():
    linear = PolynomialCost(linear=1.0, quadratic=0.0)
    config = PackingConfig(
        max_seqlen_per_dp_cp_rank=8, sequence_packing_scheduler="cost_balanced", packing_cost_model=linear
    )
    assert make_scheduler(config, cp_size=1, dp_size=2).cost_model is linear
    plain = dataclasses.replace(config, packing_cost_model=None)
    assert make_scheduler(plain, cp_size=1, dp_size=2).cost_model == PolynomialCost()
    with pytest.raises(ConfigError, match="`packing_cost_model`: must be a cost model, got 'linear'"):
        dataclasses.replace(config, packing_cost_model="linear")


@pytest.mark.parametrize(
    ("vpp", "layout", "expected"),
    [
        (None, None, [[True], [False], [True]]),
        (2, None, [[True, False], [False, False], [False, True]]),
        (2, [[["x"], ["x"]], [["x"], ["x", "mtp"]], [["x"], ["loss"]]], [[True, False], [False, True], [False, True]]),
    ],
)
def test_first_last_and_mtp_stages_need_tokens(vpp, layout, expected):
    config = PackingConfig(
        max_seqlen_per_dp_cp_rank=8, virtual_pipeline_model_parallel_size=vpp, pipeline_model_parallel_layout=layout
    )
    assert [config.stages_with_tokens(pp_rank=rank, pp_size=3) for rank in range(3)] == expected


class OneRank:  # torch's device mesh would need process groups
    mesh_dim_names = ("dp", "cp")
    mesh = torch.zeros((1, 1), dtype=torch.int64)

    def size(self, dimension):
        return 1


def test_context_parallel_groups_are_of_sizes_that_divide_the_ranks():
    assert ProcessGroups.from_mesh(OneRank(), cp_sizes=[1]).cp_of_size == {}
    for size in (0, 2, 3):
        with pytest.raises(ConfigError, match=f"`cp_sizes`: must be powers of two that divide 1, got {size}"):
            ProcessGroups.from_mesh(OneRank(), cp_sizes=[size])
