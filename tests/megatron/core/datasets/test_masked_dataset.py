"""`tokenloom.megatron.core.datasets.masked_dataset`: BERT and T5 classes as forks change them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from tests.datasets.masked import KINDS, SENTENCES, make_config
from tests.support import MASKING, StandInWordPieces, equal_samples, write_sentences
from torch.utils.data import DataLoader, default_collate

from tokenloom.datasets.splits import Split
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


def samples_of(dataset, *, by="item"):
    if by == "item":
        return [{name: np.asarray(value) for name, value in dataset[k].items()} for k in range(len(dataset))]
    batches = DataLoader(dataset, batch_size=3)
    return [
        {name: tensor.numpy()[row] for name, tensor in b.items()} for b in batches for row in range(len(b["truncated"]))
    ]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    assert all(equal_samples(one, other) for one, other in zip(found, expected, strict=True))


# --- hooks ------------------------------------------------------------------------------------------------------------


@both
def test_masking_in_python_gives_what_the_kernel_gives(tmp_path, kind, rng):
    """A hook that changes nothing changes nothing; among drawn settings all kinds of n-grams."""

    class Asked(CLASSES[kind]):
        asked = 0

        def _get_token_mask(self, numpy_random_state):
            type(self).asked += 1
            return super()._get_token_mask(numpy_random_state)

    for number in range(8):
        documents = [
            [rng.integers(110, 131, size=int(rng.integers(0, 12))) for _ in range(int(rng.integers(0, 6)))]
            for _ in range(6)
        ]
        prefix = write_sentences(tmp_path / str(number), [*documents, [[111, 112], [113]]])
        geometric = bool(rng.integers(2))
        settings = {
            "random_seed": int(rng.integers(2**31)),
            "sequence_length": int(rng.integers(5, 40)),
            "masking_probability": float(rng.choice([0.05, 0.5, 0.95])),
            "masking_max_ngram": int(rng.integers(1, 5)),
            "masking_do_full_word": bool(rng.integers(2)),
            "masking_use_geometric_distribution": geometric,
            "masking_do_permutation": not geometric and bool(rng.integers(2)),
            "masking_use_longer_ngrams": not geometric and bool(rng.integers(2)),
            "tokenizer": StandInWordPieces(
                vocab_size=131, pad=[None, 0, 120][number % 3], num_sentinels=100, continuations=range(110, 131, 3)
            ),
        }
        settings |= (
            {"classification_head": bool(rng.integers(2))} if kind == "bert" else {"sequence_length_decoder": 90}
        )
        plain, asked = (make(cls, prefix, kind, **settings) for cls in (CLASSES[kind], Asked))
        assert_equal(samples_of(asked), samples_of(plain))
    assert Asked.asked


@both
@pytest.mark.parametrize("by", ["item", "loader"])
def test_masks_of_a_class_of_ones_own_count_on_every_path(corpus, kind, by):
    class Marked(CLASSES[kind]):
        def _create_masked_lm_predictions(self, token_ids, target_sequence_length, numpy_random_state):
            assert type(numpy_random_state) is np.random.RandomState
            return [77] * len(token_ids), [0], [88], [1] * len(token_ids), [([0], [88])]

    for sample in samples_of(make(Marked, corpus, kind), by=by):
        if kind == "bert":
            assert 77 in sample["text"]
            assert sample["labels"].tolist() == [88] + [-1] * 11
        else:
            assert sample["text_dec"][:3].tolist() == [4, 6, 88]


@both
def test_samples_of_a_class_of_ones_own(corpus, kind):
    class Chosen(CLASSES[kind]):
        asked = ()

        def _build_sample_index(self, sequence_length, min_sentences_per_sample):
            type(self).asked = (sequence_length, min_sentences_per_sample)
            return super()._build_sample_index(sequence_length, min_sentences_per_sample)[:2]

    dataset, plain = (make(cls, corpus, kind) for cls in (Chosen, CLASSES[kind]))
    assert Chosen.asked == (9 if kind == "bert" else 10, 1)
    assert len(dataset) == 2 < len(plain)
    assert_equal(samples_of(dataset), samples_of(plain)[:2])
    assert_equal(samples_of(pickle.loads(pickle.dumps(plain)), by="loader"), samples_of(plain))
    plain.sample_index = np.array(dataset.sample_index[1:])
    assert len(plain) == 1
    assert dataset.verify_indices() == []


@both
def test_more_settings_in_the_key(corpus, kind):
    class Keyed(CLASSES[kind]):
        @staticmethod
        def _key_config_attributes():
            return [*super(Keyed, Keyed)._key_config_attributes(), "mmap_bin_files"]

    assert "mmap_bin_files" in make(Keyed, corpus, kind).unique_identifiers


class Sentences(masked_dataset.MaskedWordPieceDataset):
    """A fork's class over runs of sentences, neither BERT nor T5."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.sample_index = self._build_sample_index(self.config.sequence_length, 2)

    def _get_token_mask(self, numpy_random_state):
        return 3

    def __getitem__(self, idx):
        first, stop, target = self.sample_index[idx]
        tokens = np.concatenate([self.dataset[i] for i in range(first, stop)]).tolist()[:target]
        random = np.random.RandomState(idx)
        tokens, positions, labels, _, _ = self._create_masked_lm_predictions(tokens, target, random)
        return {"text": np.array(tokens), "positions": np.array(positions), "labels": np.array(labels)}


def test_a_class_that_is_neither(corpus):
    dataset = make(Sentences, corpus, "bert", masking_probability=0.5)
    for (first, stop, _), sample in zip(dataset.sample_index, samples_of(dataset), strict=True):
        assert stop - first >= 2
        assert (sample["text"][sample["positions"]] == 3).all()
        assert len(sample["labels"])
    loader = DataLoader(dataset, batch_size=1)
    assert [batch["text"][0].tolist() for batch in loader] == [s["text"].tolist() for s in samples_of(dataset)]


# --- beside the reference ---------------------------------------------------------------------------------------------


def forks(bert, t5, config_of):
    """Returns results of classes as forks write them, over the modules of either package; each is written once."""

    class OnlyMasks(bert.BERTMaskedWordPieceDataset):
        def _get_token_mask(self, numpy_random_state):
            return self.config.tokenizer.mask if numpy_random_state.random() < 0.7 else self.token_lookup[7]

    class Spans(t5.T5MaskedWordPieceDataset):
        def _create_masked_lm_predictions(self, token_ids, target_sequence_length, numpy_random_state):
            made = super()._create_masked_lm_predictions(token_ids, target_sequence_length, numpy_random_state)
            return (*made[:4], made[4][::2])

    class Longer(bert.BERTMaskedWordPieceDataset):
        def _build_sample_index(self, sequence_length, min_sentences_per_sample):
            return super()._build_sample_index(sequence_length - 3, min_sentences_per_sample + 1)

    class Changed(t5.T5MaskedWordPieceDataset):
        def __getitem__(self, idx):
            sample = super().__getitem__(idx)
            sample["loss_mask"][:2] = 0
            return sample

    found = {}
    for cls, kind in ((OnlyMasks, "bert"), (Spans, "t5"), (Longer, "bert"), (Changed, "t5")):
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
