"""`tokenloom.megatron.module_names`."""

from __future__ import annotations

from importlib import util

from tokenloom.megatron.module_names import OURS, PACKAGES


def test_every_name_has_a_module_of_ours():
    assert [name for name, ours in OURS.items() if util.find_spec(ours) is None] == []
    assert [name for name in PACKAGES if util.find_spec(f"tokenloom.{name}") is None] == []
    assert OURS["megatron.core.datasets.gpt_dataset"] == "tokenloom.megatron.core.datasets.gpt_dataset"
    assert {"megatron", "megatron.core", "megatron.legacy.data"} < PACKAGES
