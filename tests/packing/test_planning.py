"""The plan of a global batch, as all ranks compute it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from tokenloom.errors import ConfigError
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.groups import place_of
from tokenloom.packing.planning import plan_global_batch, sums_of
from tokenloom.packing.schedulers import make_scheduler

torch = pytest.importorskip("torch")


def test_sums_are_exact_where_floats_are_not():
    assert sums_of(np.array([2**53, 1])) == (2**53 + 1, 2**106 + 1)


def test_a_group_that_a_plan_needs_must_be_there():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=4, sequence_packing_scheduler="hybrid_cost_balanced")
    place = dataclasses.replace(place_of(None), dp=SimpleNamespace(size=2, rank=0))
    with pytest.raises(ConfigError, match=r"expected process groups of \[2\] context-parallel ranks for this plan"):
        plan_global_batch(np.array([8]), config, place, make_scheduler(config, cp_size=1, dp_size=2))
