"""A character tokenizer like Megatron's for fine-tuning, and files of records."""

from __future__ import annotations

import json

import numpy as np

from tokenloom.datasets.splits import Split
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDatasetConfig

ROLES = {"system": 200, "user": 201, "assistant": 202, "tool": 203}
PAD, EOD = 0, 210
IGNORED = -100
NO_MASKS = dict.fromkeys(
    ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask"), False
)


class ConversationTokenizer:
    """Encodes a turn as the id of its role, its characters, and EOD; only the assistant's turns have targets."""

    vocab_size = 256
    pad = PAD
    eod = EOD
    special_tokens_dict: dict[str, int] = {}  # noqa: RUF012
    unique_identifiers = {"class": "ConversationTokenizer"}  # noqa: RUF012

    def tokenize(self, text):
        return [ord(character) for character in text]

    def tokenize_conversation(self, conversation, return_target, add_generation_prompt):
        assert return_target
        assert not add_generation_prompt
        turns = [(turn["role"], [ROLES[turn["role"]], *self.tokenize(turn["content"]), EOD]) for turn in conversation]
        tokens = [token for _, turn in turns for token in turn]
        targets = [token if role == "assistant" else IGNORED for role, turn in turns for token in turn]
        return np.array(tokens), np.array(targets)


def turns(**texts):
    return [{"role": role, "content": text} for role, text in texts.items()]


def config_of(**settings):
    return GPTDatasetConfig(**{"random_seed": 1, "tokenizer": ConversationTokenizer(), **NO_MASKS} | settings)


def dataset_of(kind, lines, config, num_samples=None):
    return kind(lines, "lines", np.arange(len(lines), dtype=np.int32), num_samples, Split.train, config)


def lists(sample):
    return {name: tensor.tolist() for name, tensor in sample.items()}


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)
