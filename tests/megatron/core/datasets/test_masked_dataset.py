"""`tokenloom.megatron.core.datasets.masked_dataset`: BERT and T5 classes as forks change them."""

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
from tokenloom.megatron.core.datasets import bert_dataset, masked_dataset, t5_dataset
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset as FacadeIndexedDataset
from tokenloom.megatron.core.datasets.megatron_dataset import MegatronDataset

CLASSES = {
    "bert": bert_dataset.BERTMaskedWordPieceDataset,
    "t5": t5_dataset.T5MaskedWordPieceDataset,
}
both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def corpus(tmp_path):
    return write_sentences(tmp_path / "corpus", SENTENCES)


def make(cls, prefix, kind, *, num_samples=8, **changes):
    config = make_config(kind, prefix, **changes)
    data = IndexedDataset(prefix)
    return cls(data, prefix, np.arange(data.num_documents, dtype=np.int32), num_samples, Split.train, config)


@both
def test_they_are_datasets_of_torch(corpus, kind):
    dataset = make(CLASSES[kind], corpus, kind)
    assert isinstance(dataset, torch.utils.data.Dataset)
    assert isinstance(dataset, MegatronDataset)
    assert isinstance(dataset, masked_dataset.MaskedWordPieceDataset)
    assert len(dataset + dataset) == 2 * len(dataset)

    def collate(samples):
        assert type(samples) is list
        for sample in samples:
            sample["loss_mask"][:] = 7
        return default_collate(samples)

    assert all((batch["loss_mask"] == 7).all() for batch in DataLoader(dataset, batch_size=4, collate_fn=collate))


def test_settings_are_checked_as_there(corpus):
    config_class = bert_dataset.BERTMaskedWordPieceDatasetConfig
    assert issubclass(config_class, masked_dataset.MaskedWordPieceDatasetConfig)
    assert issubclass(config_class, BlendedMegatronDatasetConfig)
    settings = {"sequence_length": 12, "tokenizer": StandInWordPieces(), "classification_head": True, **MASKING}
    config = config_class(**settings, blend=([corpus], None), split="8:1:1")
    assert config.split_matrix == [(0, 0.8), (0.8, 0.9), (0.9, 1.0)]
    for changes in ({"masking_probability": None}, {"classification_head": None}, {"masking_max_ngram": 0}):
        with pytest.raises(AssertionError):
            config_class(**(settings | changes), blend=([corpus], None), split="1")
    data = CLASSES["bert"].build_low_level_dataset(corpus, config)
    assert type(data) is FacadeIndexedDataset
    assert CLASSES["bert"].numel_low_level_dataset(data) == 4


# --- hooks ------------------------------------------------------------------------------------------------------------


@both
def test_hooks_that_kernels_do_not_call_are_refused(corpus, kind):
    for name in ("_build_sample_index", "_create_masked_lm_predictions", "_get_token_mask"):
        mine = type("Mine", (CLASSES[kind],), {name: lambda self, *given: None})
        with pytest.raises(ConfigError, match=f"`Mine` overrides `{name}`, which tokenloom does not call"):
            make(mine, corpus, kind)


# --- beside the reference ---------------------------------------------------------------------------------------------


def forks(bert, t5, config_of):
    """Returns results of classes as forks write them, over the modules of either package; each is written once."""

    class Changed(t5.T5MaskedWordPieceDataset):
        def __getitem__(self, idx):
            sample = super().__getitem__(idx)
            sample["loss_mask"][:2] = 0
            return sample

    found = {}
    for cls, kind in ((bert.BERTMaskedWordPieceDataset, "bert"), (Changed, "t5")):
        dataset = config_of(cls, kind)
        made = {
            "index": dataset.sample_index.tolist(),
            "lookup": [int(number) for number in dataset.token_lookup],
            "samples": [
                {name: np.asarray(value).tolist() for name, value in dataset[k].items()} for k in range(len(dataset))
            ],
            "batches": [
                {name: tensor.tolist() for name, tensor in batch.items()} for batch in DataLoader(dataset, batch_size=4)
            ],
        }
        found[cls.__name__] = made
    return found


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_forks_see_what_they_see_over_the_reference(tmp_path, rng):
    peer_bert = pytest.importorskip("megatron.core.datasets.bert_dataset")
    peer_t5 = pytest.importorskip("megatron.core.datasets.t5_dataset")
    peer_indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    peer_split = pytest.importorskip("megatron.core.datasets.utils").Split
    documents = [[rng.integers(106, 130, size=int(rng.integers(1, 12))) for _ in range(5)] for _ in range(20)]
    prefix = write_sentences(tmp_path / "corpus", documents)
    tokenizer = StandInWordPieces(vocab_size=130, pad=0, num_sentinels=100, continuations=range(107, 130, 3))
    tokenizer.inv_vocab = dict(reversed(tokenizer.inv_vocab.items()))

    def over(bert, t5, indexed_dataset, split, folder):
        configs = {"bert": bert.BERTMaskedWordPieceDatasetConfig, "t5": t5.T5MaskedWordPieceDatasetConfig}

        def config_of(cls, kind):
            plain = make_config(kind, prefix)
            settings = {name: getattr(plain, name) for name in ("random_seed", "sequence_length", "split", "blend")}
            settings |= {name: value for name, value in vars(plain).items() if name.startswith(("masking", "short"))}
            own = {"classification_head": True} if kind == "bert" else {"sequence_length_decoder": 40}
            path = f"{tmp_path}/{folder}"
            config = configs[kind](**settings | own, tokenizer=tokenizer, path_to_cache=path)
            indices = np.arange(20, dtype=np.int32)
            return cls(indexed_dataset(prefix), prefix, indices, 24, split.train, config)

        return forks(bert, t5, config_of)

    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        expected = over(peer_bert, peer_t5, peer_indexed.IndexedDataset, peer_split, "theirs")
    finally:
        torch.distributed.destroy_process_group()
    assert over(bert_dataset, t5_dataset, IndexedDataset, Split, "ours") == expected
