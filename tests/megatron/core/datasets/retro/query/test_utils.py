"""`tokenloom.megatron.core.datasets.retro.query.utils`."""

from __future__ import annotations

from types import SimpleNamespace

from tokenloom.megatron.core.datasets.retro.query.utils import get_neighbor_dir, get_query_dir


def test_neighbors_lie_by_split_and_key():
    assert get_query_dir("p") == "p/query"
    assert get_neighbor_dir("p", "valid", SimpleNamespace(unique_description_hash="abc")) == "p/query/valid_abc"
