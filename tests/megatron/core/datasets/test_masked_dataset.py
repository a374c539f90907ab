"""`tokenloom.megatron.core.datasets.masked_dataset`: BERT and T5 classes, and forks of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.datasets.masked import KINDS, SENTENCES, make_config
from tests.support import MASKING, StandInWordPieces, write_sentences
from torch.utils.data import DataLoader, default_collate

from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.megatron.core.datasets import bert_dataset, t5_dataset
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset as FacadeIndexedDataset

CLASSES = {"bert": bert_dataset.BERTMaskedWordPieceDataset, "t5": t5_dataset.T5MaskedWordPieceDataset}
both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def corpus(tmp_path):
    return write_sentences(tmp_path / "corpus", SENTENCES)


def make(cls, prefix, kind):
    data = IndexedDataset(prefix)
    rows = np.arange(data.num_documents, dtype=np.int32)
    return cls(data, prefix, rows, 8, Split.train, make_config(kind, prefix))


@both
def test_they_are_datasets_of_torch(corpus, kind):
    dataset = make(CLASSES[kind], corpus, kind)
    assert len(dataset + dataset) == 2 * len(dataset)

    def collate(samples):
        assert type(samples) is list
        for sample in samples:
            sample["loss_mask"][:] = 7
        return default_collate(samples)

    assert all((batch["loss_mask"] == 7).all() for batch in DataLoader(dataset, batch_size=4, collate_fn=collate))


def test_settings_are_validated_as_in_megatron(corpus):
    config_class = bert_dataset.BERTMaskedWordPieceDatasetConfig
    settings = {"sequence_length": 12, "tokenizer": StandInWordPieces(), "classification_head": True, **MASKING}
    config = config_class(**settings, blend=([corpus], None), split="8:1:1")
    assert config.split_matrix == [(0, 0.8), (0.8, 0.9), (0.9, 1.0)]
    for changes in ({"masking_probability": None}, {"classification_head": None}, {"masking_max_ngram": 0}):
        with pytest.raises(AssertionError):
            config_class(**(settings | changes), blend=([corpus], None), split="1")
    data = CLASSES["bert"].build_low_level_dataset(corpus, config)
    assert type(data) is FacadeIndexedDataset
    assert CLASSES["bert"].numel_low_level_dataset(data) == 4


@both
def test_hooks_that_kernels_do_not_call_are_errors(corpus, kind):
    for name in ("_build_sample_index", "_create_masked_lm_predictions", "_get_token_mask"):
        mine = type("Mine", (CLASSES[kind],), {name: lambda self, *given: None})
        with pytest.raises(ConfigError, match=f"`Mine` overrides `{name}`, which tokenloom does not call"):
            make(mine, corpus, kind)


# --- forks of Megatron's classes and of tokenloom's -------------------------------------------------------------------


def fork_of(base):
    class Changed(base):
        def __getitem__(self, idx):
            sample = super().__getitem__(idx)
            sample["loss_mask"][:2] = 0
            return sample

    return Changed


def results_of(bert, t5, indexed_dataset, split, prefix, tokenizer, folder):
    """Returns arrays, samples and batches of BERT and of a fork of T5, of either package."""
    own = {"bert": {"classification_head": True}, "t5": {"sequence_length_decoder": 40}}
    configs = {"bert": bert.BERTMaskedWordPieceDatasetConfig, "t5": t5.T5MaskedWordPieceDatasetConfig}
    classes = {"bert": bert.BERTMaskedWordPieceDataset, "t5": fork_of(t5.T5MaskedWordPieceDataset)}
    found = {}
    for kind, cls in classes.items():
        plain = make_config(kind, prefix)
        settings = {name: getattr(plain, name) for name in ("random_seed", "sequence_length", "split", "blend")}
        settings |= {name: value for name, value in vars(plain).items() if name.startswith(("masking", "short"))}
        config = configs[kind](**settings | own[kind], tokenizer=tokenizer, path_to_cache=folder)
        dataset = cls(indexed_dataset(prefix), prefix, np.arange(20, dtype=np.int32), 24, split.train, config)
        samples = [dataset[k] for k in range(len(dataset))]
        found[kind] = {
            "index": dataset.sample_index.tolist(),
            "lookup": [int(number) for number in dataset.token_lookup],
            "samples": [{name: np.asarray(value).tolist() for name, value in sample.items()} for sample in samples],
            "batches": [
                {name: tensor.tolist() for name, tensor in batch.items()} for batch in DataLoader(dataset, batch_size=4)
            ],
        }
    return found


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_forks_equal_forks_of_megatron(tmp_path, rng):
    names = ("bert_dataset", "t5_dataset", "indexed_dataset", "utils")
    bert, t5, indexed, utils = (pytest.importorskip(f"megatron.core.datasets.{name}") for name in names)
    documents = [[rng.integers(106, 130, size=int(rng.integers(1, 12))) for _ in range(5)] for _ in range(20)]
    prefix = write_sentences(tmp_path / "corpus", documents)
    tokenizer = StandInWordPieces(vocab_size=130, pad=0, num_sentinels=100, continuations=range(107, 130, 3))
    tokenizer.inv_vocab = dict(reversed(tokenizer.inv_vocab.items()))
    given = prefix, tokenizer
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        expected = results_of(bert, t5, indexed.IndexedDataset, utils.Split, *given, f"{tmp_path}/theirs")
    finally:
        torch.distributed.destroy_process_group()
    assert results_of(bert_dataset, t5_dataset, IndexedDataset, Split, *given, f"{tmp_path}/ours") == expected
