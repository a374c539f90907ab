"""`tokenloom.megatron.core.datasets.t5_dataset`."""

from __future__ import annotations

from tokenloom.megatron.core.datasets import t5_dataset


def test_names_are_there():
    assert {*t5_dataset.__all__} <= {*vars(t5_dataset)}
