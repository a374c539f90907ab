"""`tokenloom.megatron.training.datasets.sft_dataset`: samples recorded with Megatron 0.19.2."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from tests.megatron.training.datasets.conversations import (
    EOD,
    IGNORED,
    PAD,
    ROLES,
    ConversationTokenizer,
    config_of,
    dataset_of,
    lists,
    turns,
    write_lines,
)
from tests.support import StandInTokenizer, write_corpus
from torch.utils.data import DataLoader

from tokenloom.datasets.splits import Split
from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.megatron.training.datasets.sft_dataset import MockSFTDataset, SFTDataset, SFTLowLevelDataset

SHORT, LONG = turns(system="", user="a", assistant="bc"), turns(system="s", user="d", assistant="efg")
"""10 and 12 tokens."""


def make(lines, kind=SFTDataset, *, num_samples=None, **settings):
    given = {"sequence_length": 24, "blend": (["lines"], None), "split": "1,0,0"}
    return dataset_of(kind, lines, config_of(**given | settings), num_samples)


def test_a_conversation_and_its_padding():
    sample = make([SHORT], sequence_length=12)[0]
    a, b, c = map(ord, "abc")
    system, user, assistant = (ROLES[role] for role in ("system", "user", "assistant"))
    assert lists(sample) == {
        "tokens": [system, EOD, user, a, EOD, assistant, b, c, EOD, PAD, PAD, PAD],
        "labels": [IGNORED] * 4 + [assistant, b, c, EOD] + [PAD] * 4,
        "loss_mask": [0] * 4 + [1] * 4 + [0] * 4,
        "position_ids": list(range(12)),
        "cu_seqlens": [0, 12] + [12] * 11,
        "max_seqlen": 12,
    }
    kinds = [torch.int64, torch.int64, torch.float32, torch.int64, torch.int32, torch.int32]
    assert [tensor.dtype for tensor in sample.values()] == kinds


def test_conversations_of_a_line_share_a_sample():
    dataset = make([SHORT + LONG + SHORT], sequence_length=24)
    sample = dataset[0]
    assert sample["cu_seqlens"][:5].tolist() == [0, 9, 20, 24, 24]
    assert sample["position_ids"].tolist() == [*range(9), *range(11), *range(4)]
    assert (sample["max_seqlen"], sample["labels"][-1]) == (11, PAD)
    assert sample["loss_mask"].sum() == 4 + 5
    aligned = make([SHORT + LONG + SHORT], sequence_length=24, context_parallel_size=2)[0]
    assert aligned["cu_seqlens"][:4].tolist() == [0, 12, 24, 24]
    assert aligned["position_ids"].tolist() == [*range(12), *range(12)]
    full = make([SHORT + SHORT + LONG], sequence_length=18)[0]
    assert full["cu_seqlens"][:4].tolist() == [0, 9, 18, 18]


def test_a_pad_that_ends_texts_has_no_loss():
    tokenizer = ConversationTokenizer()
    tokenizer.pad = EOD
    tokenizer.special_tokens_dict = {"eos": EOD, "pad_token": EOD}
    with pytest.warns(UserWarning, match="also another special token"):
        dataset = make([SHORT], tokenizer=tokenizer)
    assert dataset[0]["loss_mask"].sum() == 3


def test_lines_are_read_in_order_and_repeated(tmp_path):
    records = [{"messages": SHORT}, {"messages": LONG, "id": 7}, {"messages": SHORT}]
    path, cache = write_lines(tmp_path / "lines.jsonl", records), str(tmp_path / "cache")
    config = config_of(sequence_length=12, blend=([path], None), split="2,1,0", path_to_cache=cache)
    train, valid, test = BlendedMegatronDatasetBuilder(SFTDataset, [5, 2, 0], lambda: True, config).build()
    expected = [lists(make([line], sequence_length=12)[0]) for line in (SHORT, LONG)]
    assert [lists(train[k]) for k in range(len(train))] == [expected[k % 2] for k in range(5)]
    assert [lists(valid[k]) for k in range(2)] == [expected[0]] * 2
    assert test is None
    assert lists(pickle.loads(pickle.dumps(train))[1]) == expected[1]
    (batch, *_) = DataLoader(train, batch_size=2)
    assert batch["tokens"].tolist() == [sample["tokens"] for sample in expected]


def test_errors(tmp_path):
    low_level = SFTLowLevelDataset(write_lines(tmp_path / "lines.jsonl", [{"messages": SHORT}, {"text": "none"}]))
    with pytest.raises(ValueError, match=r"lines.jsonl`: record 1 has no `messages`, only text"):
        low_level[1]
    with pytest.raises(ValueError, match="sample 0 has no conversation"):
        make([[]])[0]
    with pytest.raises(AssertionError, match="`create_attention_mask`: must be False"):
        make([SHORT], create_attention_mask=True)[0]
    with pytest.raises(AssertionError, match="StandInTokenizer has no `tokenize_conversation`"):
        make([SHORT], tokenizer=StandInTokenizer(pad=0, eod=1))[0]


def test_overridden_hooks_are_called():
    class Whole(SFTDataset):
        def _split_conversations(self, merged_conversations):
            return [list(merged_conversations)]

        def __getitem__(self, idx):
            return {**super().__getitem__(idx), "number": torch.tensor(idx)}

    dataset = make([SHORT + LONG], Whole)
    (batch,) = DataLoader(dataset)
    assert batch["cu_seqlens"][0, :3].tolist() == [0, 24, 24]
    assert batch["number"].tolist() == [0]


# --- mock data --------------------------------------------------------------------------------------------------------


def make_mock(settings):
    config = config_of(sequence_length=16, sft_mock_dataset_config_json=settings)
    low_level = MockSFTDataset.build_low_level_dataset(None, config)
    return MockSFTDataset(low_level, None, np.arange(40, dtype=np.int32), 40, Split.train, config)


def test_mock_texts_of_a_distribution():
    dataset = make_mock(None)
    lengths = [len(dataset[k]["tokens"]) for k in range(len(dataset))]
    assert lengths == dataset.dataset.sequence_lengths[:40].tolist()
    assert (min(lengths), max(lengths)) == (8, 16)
    sample = dataset[0]
    assert sample["tokens"].tolist() == [*range(1, lengths[0]), EOD]
    assert sample["labels"].tolist() == [*range(2, lengths[0]), EOD, PAD]
    assert sample["cu_seqlens"].tolist() == [0, lengths[0]]
    assert sample["loss_mask"].tolist() == [1] * (lengths[0] - 1) + [0]


def test_mock_texts_with_lengths_of_a_file(tmp_path):
    (tmp_path / "lengths.csv").write_text("length\n3\n40\n")
    settings = f'{{"mode": "file", "path": "{tmp_path}/lengths.csv", "format": "sbhd"}}'
    (tmp_path / "settings.json").write_text(settings)
    for given in (settings, str(tmp_path / "settings.json")):
        dataset = make_mock(given)
        assert dataset[0]["tokens"].tolist() == [1, 2, EOD] + [PAD] * 13
        assert dataset[1]["tokens"].tolist() == [*range(1, 16), EOD]
        assert "cu_seqlens" not in dataset[0]


def test_mock_texts_of_a_pair(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[11, 12], [13], [14, 15, 16]])
    settings = f'{{"mode": "verification", "data_path": "{prefix}", "min_seq_len": 4, "max_seq_len": 4}}'
    dataset = make_mock(settings)
    assert dataset[0]["tokens"].tolist() == [11, 12, 13, EOD]
    assert dataset[2]["tokens"].tolist() == [14, 15, 16, EOD]
    with pytest.raises(AssertionError, match=r"`mode`: must be 'file'.*got 'odd'"):
        make_mock('{"mode": "odd"}')
    with pytest.raises(KeyError, match="mean_seq_len"):
        make_mock('{"mode": "distribution", "type": "lognormal"}')
