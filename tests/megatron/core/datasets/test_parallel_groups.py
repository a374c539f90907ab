"""`tokenloom.megatron.core.datasets.parallel_groups`."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets import parallel_groups

NAMES = ("dp", "cp", "dp_cp", "tp", "pp")


class Group:
    def __init__(self, size=1, rank=0):
        self.size, self.rank = lambda: size, lambda: rank


def test_groups_come_from_a_collection_or_the_parallel_state_or_there_is_one_process(monkeypatch):
    monkeypatch.delitem(sys.modules, "megatron.core.parallel_state", raising=False)
    assert parallel_groups.groups_of_run(None, *NAMES) == dict.fromkeys(NAMES)
    some = SimpleNamespace(dp=1, dp_cp=2, tp=3, pp=4)
    assert parallel_groups.groups_of_run(some, "dp", "tp")["cp"] is None
    with pytest.raises(ConfigError, match="expected process groups with the attributes tp, cp, found no cp"):
        parallel_groups.groups_of_run(some, "tp", "cp")
    monkeypatch.setattr(parallel_groups, "current_ranks", lambda: SimpleNamespace(world_size=2))
    with pytest.raises(ConfigError, match="expected the process groups of a run of 2 ranks, found None"):
        parallel_groups.groups_of_run(None, "tp")


@pytest.mark.parametrize("kind", ["dynamic", "hybrid"])
def test_groups_of_several_sizes_come_from_the_parallel_state(monkeypatch, kind):
    groups = {name: Group() for name in NAMES} | {"dp_cp": Group(4, 3), "dp": Group(4, 3)}
    sizes = {2: Group(2, 1)}
    state = SimpleNamespace(
        model_parallel_is_initialized=lambda: True,
        get_data_parallel_group=lambda with_context_parallel=False: groups["dp_cp" if with_context_parallel else "dp"],
        get_context_parallel_group=lambda: groups["cp"],
        get_tensor_model_parallel_group=lambda: groups["tp"],
        get_pipeline_model_parallel_group=lambda: groups["pp"],
        **{f"get_{kind}_data_context_parallel_groups": lambda group_size: sizes[group_size]},
    )
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    place = parallel_groups.place_of_run(None, "tp", "pp", "cp")
    assert (place.rank, place.dp_cp_group, dict(place.cp_of_size)) == (3, groups["dp_cp"], sizes)
    assert ([place.rank_among(size) for size in (1, 2, 4)], len(place.cp_of_size)) == ([0, 1, 3], 1)
    state.model_parallel_is_initialized = lambda: False
    monkeypatch.delitem(sys.modules, "megatron.core.parallel_state")
    assert list(parallel_groups.GroupsBySize()) == []
    assert parallel_groups.parallel_state() is None
