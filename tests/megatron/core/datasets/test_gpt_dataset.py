"""`tokenloom.megatron.core.datasets.gpt_dataset`; `tests/peer` compares its hooks with Megatron's."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from tests.support import EOD, StandInTokenizer, make_config, write_corpus
from torch.utils.data import DataLoader

from tokenloom.datasets.shortcuts import fills_batches, makes_batches
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.megatron.core.datasets import gpt_dataset
from tokenloom.megatron.core.datasets.blended_dataset import BlendedDataset
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset

DOCUMENTS = [[1, 2, 3, EOD], [4, 5, EOD], [6, 7, 8, 10, 11, EOD], [12, 13, 14, 15, 16, 17]]


def make(cls, folder, *, num_samples=None, **changes):
    prefix = f"{folder}/corpus"
    if not IndexedDataset.exists(prefix):
        write_corpus(prefix, DOCUMENTS)
    config = make_config(prefix, kind=GPTDatasetConfig, path_to_cache=f"{folder}/cache", **changes)
    rows = np.arange(len(DOCUMENTS), dtype=np.int32)
    return cls(IndexedDataset(prefix), prefix, rows, num_samples, Split.train, config)


def tokens(samples):
    return [np.asarray(sample["tokens"]).tolist() for sample in samples]


class Doubled(GPTDataset):
    def _query_document_sample_shuffle_indices(self, idx):
        text, *rest = super()._query_document_sample_shuffle_indices(idx)
        return text * 2, *rest


@pytest.mark.parametrize("changes", [{}, {"mmap_bin_files": False}, {"create_attention_mask": True}])
def test_all_paths_call_an_overridden_hook(tmp_path, changes):
    plain, mine = (make(cls, tmp_path, **changes) for cls in (GPTDataset, Doubled))
    expected = [[2 * token for token in row] for row in tokens(plain[k] for k in range(4))]
    rows = list(range(4))
    assert tokens(mine[k] for k in rows) == expected
    assert tokens(mine.sample(k) for k in rows) == expected
    assert mine.batch(rows)["tokens"].tolist() == expected
    assert tokens(mine.__getitems__(rows)) == expected
    assert next(iter(DataLoader(mine, batch_size=4)))["tokens"].tolist() == expected
    sampler = MegatronPretrainingSampler(4, 0, 4, 0, 1)
    assert next(iter(ThreadLoader(mine, sampler, num_threads=2)))["tokens"].tolist() == expected
    blend = BlendedDataset([mine, mine], [1.0, 1.0], 4, mine.config)
    halves = [expected[0], expected[0], expected[1], expected[1]]
    assert tokens(blend[k] for k in rows) == tokens(blend.__getitems__(rows)) == halves
    assert not fills_batches(mine)
    assert not makes_batches(blend)


def test_samples_of_a_batch_may_be_changed(tmp_path):
    samples = make(GPTDataset, tmp_path, create_attention_mask=True).__getitems__([0, 1])
    assert type(samples) is list
    samples[0]["attention_mask"][:] = True
    assert not samples[1]["attention_mask"].all()
    assert not make(GPTDataset, tmp_path, create_attention_mask=True)[1]["attention_mask"].all()


def test_a_cached_loss_mask_is_not_changed_by_a_sample(tmp_path, monkeypatch):  # unlike in Megatron
    monkeypatch.setattr(gpt_dataset, "_get_ltor_masks_and_position_ids", lambda *given: gpt_dataset._MASKS(*given))
    dataset = make(GPTDataset, tmp_path, tokenizer=StandInTokenizer(pad=4))
    with_pad = [k for k in range(len(dataset)) if 4 in (dataset._query_document_sample_shuffle_indices(k)[0][1:])]
    dataset.masks_and_position_ids_are_cached = False
    assert dataset[with_pad[0]]["loss_mask"].min() == 0
    others = [k for k in range(len(dataset)) if k not in with_pad]
    assert others
    assert all(dataset[k]["loss_mask"].min() == 1 for k in others)


@pytest.mark.parametrize(("version", "has_lengths"), [((0, 16, 1), False), ((0, 18), False), ((0, 19, 2), True)])
def test_a_query_returns_the_values_of_the_version(tmp_path, monkeypatch, version, has_lengths):
    monkeypatch.setattr(gpt_dataset, "reference_version", lambda: version)
    text, documents, *lengths = make(GPTDataset, tmp_path)._query_document_sample_shuffle_indices(0)
    assert len(lengths) == has_lengths
    if has_lengths:
        assert (sum(lengths[0]), len(lengths[0])) == (len(text), len(documents))


def test_boundaries_need_the_lengths_of_documents(tmp_path, monkeypatch):
    plain = make(GPTDataset, tmp_path, inter_document_masking=True)
    monkeypatch.setattr(gpt_dataset, "reference_version", lambda: (0, 19, 2))
    mine = make(Doubled, tmp_path, inter_document_masking=True)
    for k in range(len(plain)):
        for name in ("cu_seqlens", "max_seqlen", "position_ids"):
            assert torch.equal(mine[k][name], plain[k][name])
            assert mine[k][name].dtype == plain[k][name].dtype
    monkeypatch.setattr(gpt_dataset, "reference_version", lambda: (0, 16, 1))
    with pytest.raises(ConfigError, match=r"`Doubled._query_document_sample_.*` must return three values"):
        mine[0]


def test_assigned_arrays_are_used_by_kernels_and_survive_pickling(tmp_path):
    dataset = make(GPTDataset, tmp_path)
    before = tokens(dataset[k] for k in range(len(dataset)))
    dataset.shuffle_index = np.array(dataset.shuffle_index)[::-1].copy()
    assert fills_batches(dataset)
    assert dataset._mapped_samples() is not None
    again = pickle.loads(pickle.dumps(dataset))
    for each in (dataset, again):
        assert tokens(each[k] for k in range(len(dataset))) == before[::-1]
        assert tokens(each.__getitems__(range(len(dataset)))) == before[::-1]
        assert [each.spans(k).num_tokens for k in range(len(dataset))] == [5] * len(dataset)
    dataset.sample_index = np.array(dataset.sample_index)[::2]  # no run of windows, so no kernel reads it
    assert not fills_batches(dataset)


def test_mock_datasets_reject_a_config_with_data(tmp_path):
    with pytest.raises(ConfigError, match="MockGPTDataset: reads mock data only"):
        make(MockGPTDataset, tmp_path)


def test_replaced_functions_build_the_index_once(tmp_path, monkeypatch):
    calls = []

    def unshuffled(num_samples, total_size, numpy_random_state):
        calls.append(total_size)
        return np.arange(total_size, dtype=np.uint32)

    monkeypatch.setattr(gpt_dataset, "_build_shuffle_index", unshuffled)
    first, second = make(GPTDataset, tmp_path), make(GPTDataset, tmp_path)
    assert calls == [len(first)]
    assert second.shuffle_index.tolist() == list(range(len(first)))
    assert fills_batches(second)
    assert tokens(first.__getitems__([0, 1])) == tokens(second.__getitems__([0, 1]))
    [path] = tmp_path.glob("**/*-shuffle_index.npy")
    np.save(path, np.load(path)[::-1])
    assert make(GPTDataset, tmp_path).shuffle_index.tolist() == list(range(len(first)))
    assert calls == [len(first)] * 2, "a damaged entry is built again"

    with pytest.raises(ConfigError, match="GPTDataset: hooks need Megatron's sample order"):
        make(GPTDataset, tmp_path, window_policy="best_fit")


TEXT = torch.tensor([1, EOD, 2, 3, EOD, EOD, 4])


def test_masks_and_positions_of_a_text():
    mask, loss, positions = gpt_dataset._get_ltor_masks_and_position_ids(TEXT, EOD, True, True, True, True)
    assert positions.tolist() == [0, 1, 0, 1, 2, 0, 0]
    assert loss.tolist() == [1, 0, 1, 1, 0, 0, 1]
    seen = [[j for j in range(7) if not mask[0, i, j]] for i in range(7)]
    assert seen == [[0], [0, 1], [2], [2, 3], [2, 3, 4], [5], [6]]


@pytest.mark.parametrize("flags", list(np.ndindex(2, 2, 2, 2)))
@pytest.mark.parametrize("extra", [True, False])
def test_hooks_and_kernels_make_the_same_samples(tmp_path, rng, flags, extra):
    prefix = write_corpus(tmp_path / "corpus", [rng.choice([1, 2, 3, 5, EOD], size=25) for _ in range(2)])
    names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    settings = {name: bool(flag) for name, flag in zip(names, flags, strict=True)} | {
        "drop_last_partial_validation_sequence": False,
        "sequence_length": 6,
        "tokenizer": StandInTokenizer(pad=5),
        "add_extra_token_to_sequence": extra,
    }
    config = make_config(prefix, kind=GPTDatasetConfig, path_to_cache=f"{tmp_path}/cache", **settings)
    dataset = GPTDataset(IndexedDataset(prefix), prefix, np.arange(2, dtype=np.int32), None, Split.valid, config)
    for k in range(len(dataset)):
        expected, made = dataset[k], dataset._item(k)
        dataset.masks_and_position_ids_are_cached = False
        assert list(made) == list(expected)
        assert all(torch.equal(made[name], expected[name]) for name in made)
        assert all(made[name].dtype == expected[name].dtype for name in made)
