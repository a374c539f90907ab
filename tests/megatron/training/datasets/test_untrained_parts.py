"""Parts of answers without loss in `tokenloom.megatron.training.datasets.sft_dataset`."""

from __future__ import annotations

import numpy as np
import pytest
from tests.megatron.training.datasets.conversations import ConversationTokenizer

from tokenloom.megatron.training.datasets.sft_dataset import IGNORE_INDEX, SFTDatasetConfig, without_parts


def test_parts_begin_where_there_is_loss_and_end_at_the_latest_at_the_end():
    x = IGNORE_INDEX

    def targets(tokens, given=None):
        given = tokens if given is None else given
        return without_parts(np.array(tokens), np.array(given), [([1, 2], [3]), ([7], [7])]).tolist()

    assert targets([5, 1, 2, 6, 3, 5]) == [5, x, x, x, x, 5]
    assert targets([1, 2, 3, 1, 2, 5]) == [x] * 6
    assert targets([1, 2, 1, 2, 3, 3]) == [x] * 5 + [3]
    assert targets([7, 4, 7, 4]) == [x, x, x, 4]
    assert targets([1, 2, 4, 3], [x, x, 4, 3]) == [x, x, 4, 3]
    assert targets([1]) == [1]


class Framing(ConversationTokenizer):
    """Puts tokens around every text."""

    def tokenize(self, text):
        return [90, *super().tokenize(text), 91]


def test_delimiters_are_what_the_tokenizer_makes_of_them():
    settings = {"tokenizer": Framing(), "sequence_length": 8, "random_seed": 1, "blend": (["x"], None), "split": "1"}
    settings |= {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    config = SFTDatasetConfig(**settings, train_on_tool_calls=False, tool_call_delimiters=("(", ")"))
    assert config.untrained_parts == [([ord("(")], [ord(")")])]
    assert SFTDatasetConfig(**settings).untrained_parts == []
    config.tool_call_delimiters = ("", ")")
    with pytest.raises(AssertionError, match="expected tokens of '' in `tool_call_delimiters`"):
        _ = config.untrained_parts
