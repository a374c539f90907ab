"""The pipeline in one process; `test_exchange` runs it in eight."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from tests.packing.items import item

from tokenloom.errors import ConfigError
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.groups import place_in, place_of
from tokenloom.packing.pipeline import plan_global_batch, run_pipeline, sums_of
from tokenloom.packing.schedulers import make_scheduler

torch = pytest.importorskip("torch")


def test_the_first_iterator_of_the_virtual_stages_is_read():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=8, virtual_pipeline_model_parallel_size=3)
    for given in ([None, iter([item(1)]), None], [iter([item(1)]), None, iter([])]):
        iterators, count, total, squares = run_pipeline(
            make_scheduler(config, cp_size=1, dp_size=1), place_in(None, None, None, None), given, 1, config
        )
        assert (len(iterators), count, total, squares) == (3, 1, 1, 1)
        assert ["tokens" in next(iterator) for iterator in iterators] == [True, False, True]


def test_sums_are_exact_where_floats_are_not():
    assert sums_of(np.array([2**53, 1])) == (2**53 + 1, 2**106 + 1)


def test_a_missing_process_group_is_refused():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=4, sequence_packing_scheduler="hybrid_cost_balanced")
    place = dataclasses.replace(place_of(None), dp=SimpleNamespace(size=2, rank=0))
    with pytest.raises(ConfigError, match=r"the plan needs process groups of \[2\] context-parallel ranks"):
        plan_global_batch(np.array([8]), config, place, make_scheduler(config, cp_size=1, dp_size=2))


def test_groups_must_have_all_attributes():
    with pytest.raises(ConfigError, match="process groups need the attributes dp, cp, dp_cp, tp and pp"):
        place_of(object())
