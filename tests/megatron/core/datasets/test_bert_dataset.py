"""`tokenloom.megatron.core.datasets.bert_dataset`."""

from __future__ import annotations

from tokenloom.megatron.core.datasets import bert_dataset


def test_names_are_there():
    assert {*bert_dataset.__all__} <= {*vars(bert_dataset)}
