"""Samples of one conversation or text each."""

from __future__ import annotations

import pickle
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import (
    ANSWER,
    PROMPT,
    TEXT,
    conversation,
    conversations_strategy,
    make_varlen,
    write_conversations,
)
from tests.datasets.conversations import settings as config_settings
from tests.reference import chat as reference
from tests.support import StandInTokenizer, equal_samples, write_corpus

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.chat_config import VarlenDatasetConfig
from tokenloom.datasets.conversations import MockVarlenDataset, MockVarlenLowLevelDataset, VarlenDataset
from tokenloom.datasets.ledger import Count
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, UntrainableWarning
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.samplers import MegatronPretrainingSampler

TALK = conversation((PROMPT, [11, 12]), (ANSWER, [13, 14, 9]))


def test_a_sample_is_one_padded_conversation(tmp_path):
    dataset = make_varlen(write_conversations(tmp_path / "chat", [TALK]), context_parallel_size=3, sequence_length=12)
    sample = dataset.sample(0)
    assert {name: array.tolist() for name, array in sample.items()} == {
        "tokens": [11, 12, 13, 14, 7, 7],
        "labels": [-100, 13, 14, 9, -100, -100],
        "loss_mask": [0, 1, 1, 1, 0, 0],
        "position_ids": [0, 1, 2, 3, 4, 5],
        "original_seq_len": [4],
        "padded_seq_len": [6],
    }
    assert sample["original_seq_len"].dtype == sample["padded_seq_len"].dtype == np.int32
    assert equal_samples({name: tensor.numpy() for name, tensor in dataset[0].items()}, sample)


def test_an_ordinary_pair_is_text_with_loss_everywhere(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2, 3, 9], [4, 9], [], [5]])
    with pytest.warns(UntrainableWarning, match="2 of 4 conversations have no token to train on .*; they are dropped"):
        dataset = make_varlen(prefix)
    assert sorted(dataset.sample(k)["tokens"].tolist() for k in range(2)) == [[1, 2, 3], [4]]
    assert sorted(dataset.sample(k)["labels"].tolist() for k in range(2)) == [[2, 3, 9], [9]]
    assert dataset.ledger().dropped_empty == Count(conversations=2, tokens=1)


def test_lengths_are_known_without_reading_tokens(tmp_path, monkeypatch):
    talks = [conversation((PROMPT, [1]), (ANSWER, [2] * count)) for count in (1, 5, 30, 2)]
    dataset = make_varlen(write_conversations(tmp_path / "chat", talks), num_samples=9, context_parallel_size=2)
    samples = [dataset.sample(k) for k in range(9)]
    monkeypatch.setattr(type(dataset.dataset), "gather", None)
    assert dataset.lengths().dtype == np.int64
    assert dataset.lengths().tolist() == [int(sample["original_seq_len"][0]) for sample in samples]
    assert dataset.padded_lengths().tolist() == [len(sample["tokens"]) for sample in samples]


def test_a_batch_of_arrays_is_refused(tmp_path):
    dataset = make_varlen(write_conversations(tmp_path / "chat", [TALK]))
    with pytest.raises(ConfigError, match="cannot batch samples of different lengths"):
        dataset.batch([0])
    assert [len(sample["tokens"]) for sample in dataset.__getitems__([0, None])] == [4, 4]
    assert dataset.sample(None)["loss_mask"].tolist() == [0, 0, 0, 0]


@given(
    talks=conversations_strategy(),
    length=st.sampled_from([4, 8]),
    context=st.sampled_from([None, 2]),
    train_on=st.sampled_from(["answers", "last_answer", "everything"]),
    untrainable=st.sampled_from(["keep", "drop"]),
    wanted=st.one_of(st.none(), st.integers(0, 20)),
    seed=st.integers(0, 2**32 - 1),
)
def test_samples_and_ledger_agree_with_the_twin(talks, length, context, train_on, untrainable, wanted, seed):
    options = {
        "sequence_length": length,
        "context_parallel_size": context,
        "train_on": train_on,
        "untrainable_conversations": untrainable,
        "random_seed": seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_conversations(f"{folder}/chat", talks)
        usable = [
            number
            for number, (tokens, parts) in enumerate(talks)
            if len(tokens) > 1
            and (untrainable == "keep" or reference.trained_tokens(parts, min(len(tokens), length + 1), train_on))
        ]
        if wanted and not usable:
            with pytest.raises(ConfigError, match="no conversation to train on"):
                make_varlen(prefix, num_samples=wanted, quiet=True, **options)
            return
        dataset = make_varlen(prefix, num_samples=wanted, quiet=True, **options)
        stream = dataset.document_index.tolist()
        assert len(dataset) == len(stream) == (len(usable) if wanted is None else wanted)
        for epoch in range(0, len(stream), max(len(usable), 1)):
            part = stream[epoch : epoch + len(usable)]
            assert len(set(part)) == len(part)
            assert set(part) <= set(usable)
        samples = [dataset.sample(k) for k in range(len(dataset))]
        for number, sample in zip(stream, samples, strict=True):
            ids, parts = talks[number]
            expected = reference.varlen_sample(
                ids, parts, length=length, multiple=4 if context else 1, fill=7, train_on=train_on
            )
            assert equal_samples(sample, expected)
        ledger = dataset.ledger()
        assert ledger.balance == (0, 0, 0, 0)
        assert ledger.counts.with_loss == sum(int(sample["loss_mask"].sum()) for sample in samples)
        assert ledger.counts.slots == sum(len(sample["tokens"]) for sample in samples)
        assert ledger.num_untrainable_samples == sum(not sample["loss_mask"].any() for sample in samples)
        assert pickle.loads(pickle.dumps(dataset)).lengths().tolist() == dataset.lengths().tolist()


def mock_config(**changes):
    return VarlenDatasetConfig(**config_settings(None, sequence_length=64, **changes))


def mock(num_samples=20, **changes):
    config = mock_config(**changes)
    data = MockVarlenDataset.build_low_level_dataset(None, config)
    return MockVarlenDataset(data, None, np.arange(len(data), dtype=np.int32), num_samples, Split.train, config)


@pytest.fixture(autouse=True)
def small_mock(monkeypatch):
    monkeypatch.setattr(MockVarlenLowLevelDataset, "size", 1000)


def test_mock_lengths_are_lognormal_and_always_the_same():
    settings = {"mode": "distribution", "type": "lognormal", "min_seq_len": 3, "max_seq_len": 500}
    settings |= {"mean_seq_len": 60, "lognormal_sigma": 0.7}
    lengths = MockVarlenLowLevelDataset(StandInTokenizer(), **settings).sequence_lengths
    drawn = np.random.RandomState(0).lognormal(np.log(60) - 0.7**2 / 2, 0.7, 1000)
    assert lengths.tolist() == np.clip(drawn, 3, 500).astype(int).tolist()
    assert 55 < lengths.mean() < 65
    assert len(set(lengths.tolist())) > 50


def test_mock_lengths_of_a_file_are_as_given(tmp_path):
    (tmp_path / "lengths.csv").write_text("length\n1\n3\n2147483647\n")
    data = MockVarlenLowLevelDataset(StandInTokenizer(), mode="file", path=str(tmp_path / "lengths.csv"))
    assert data.sequence_lengths.tolist() == [2, 3, 2147483647]  # at least one token and its label


def test_a_mock_sample_counts_up_to_its_end():
    dataset = mock(tokenizer=StandInTokenizer(pad=7, vocab_size=40))
    sample = dataset.sample(0)
    original = int(sample["original_seq_len"][0])
    assert sample["tokens"].tolist() == [(k + 1) % 40 for k in range(original)]
    assert sample["labels"].tolist() == [*((k + 1) % 40 for k in range(1, original)), 9]
    assert sample["loss_mask"].all()
    again = pickle.loads(pickle.dumps(dataset))
    assert all(equal_samples(again.sample(k), mock(tokenizer=dataset.config.tokenizer).sample(k)) for k in range(3))
    assert dataset.ledger().balance == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "dream"}, "`mode` of mock data: must be 'distribution' or 'file', got 'dream'"),
        ({"mode": "file", "path": "/nowhere"}, "must have a header and one length per line"),
        ({"mode": "distribution", "type": "lognormal"}, "invalid settings for mode 'distribution': .*missing"),
    ],
)
def test_wrong_settings_of_made_up_data_are_named(settings, text):
    with pytest.raises(ConfigError, match=text):
        mock(mock_dataset_config=settings)


def test_varlen_data_blends(tmp_path):
    first = write_conversations(tmp_path / "first", [TALK] * 8)
    second = write_conversations(tmp_path / "second", [conversation((PROMPT, [1]), (ANSWER, [2, 9]))] * 8)
    config = VarlenDatasetConfig(
        **config_settings(None, blend=([first, second], [1.0, 1.0]), split="1,0,0", path_to_cache=str(tmp_path / "c"))
    )
    train, _, _ = BlendedMegatronDatasetBuilder(VarlenDataset, [10, 0, 0], lambda: True, config).build()
    assert sorted({int(train[k]["original_seq_len"]) for k in range(10)}) == [2, 4]
    assert train.lengths().tolist() == [int(train[k]["original_seq_len"]) for k in range(len(train))]
    assert train.padded_lengths().tolist() == [len(train[k]["tokens"]) for k in range(len(train))]
    sampler = MegatronPretrainingSampler(len(train), 0, 4, data_parallel_rank=0, data_parallel_size=1)
    for number, batch in enumerate(build_dataloader(train, sampler, num_workers=1)):
        assert isinstance(batch, list)
        for row, sample in enumerate(batch):
            expected = train[4 * number + row]
            assert all(
                sample[name].tolist() == tensor.tolist() for name, tensor in expected.items() if name != "dataset_id"
            )


def test_what_is_cut_gets_no_invented_end(tmp_path):
    prefix = write_conversations(tmp_path / "chat", [conversation((TEXT, [1, 2, 3, 4, 5, 9]))])
    dataset = make_varlen(prefix, sequence_length=4)
    assert dataset.sample(0)["labels"].tolist() == [2, 3, 4, 5]
    assert dataset.ledger().truncated == Count(conversations=1, tokens=1)
