"""Sentence mappings, BERT and T5 samples beside megatron-core's, for corpora and settings drawn anew in each run."""

import numpy as np
import pytest
import torch
from tests.peer.conftest import folder_bytes, rounds
from tests.support import StandInWordPieces, write_sentences

import tokenloom
from tokenloom import BlendedMegatronDatasetBuilder, IndexedDataset, Split
from tokenloom.megatron.core.datasets.bert_dataset import (
    BERTMaskedWordPieceDataset,
    BERTMaskedWordPieceDatasetConfig,
)
from tokenloom.megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig

pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("quiet", "process_group")]

pytest.importorskip("megatron.core")

from megatron.core.datasets import bert_dataset as peer_bert  # noqa: E402
from megatron.core.datasets import blended_megatron_dataset_builder as peer_builder  # noqa: E402
from megatron.core.datasets import helpers as peer_helpers  # noqa: E402
from megatron.core.datasets import indexed_dataset as peer_indexed  # noqa: E402
from megatron.core.datasets import t5_dataset as peer_t5  # noqa: E402
from megatron.core.datasets.utils import Split as PeerSplit  # noqa: E402

rng = rounds(2, 6)


# --- mappings ---------------------------------------------------------------------------------------------------------


def draw_sentences(rng):
    """Returns document boundaries and sentence lengths; empty and single-sentence documents, long sentences."""
    count = int(rng.integers(0, 80))
    lengths = rng.integers(0, int(rng.choice([5, 60, 530])), size=count).astype(np.int32)
    inner = np.sort(rng.integers(0, count + 1, size=int(rng.integers(0, 25))))
    return np.concatenate([[0], inner, [count]]).astype(np.int64), lengths


def assert_same_rows(ours, peers):
    assert ours.dtype == peers.dtype
    assert ours.shape == peers.shape
    assert (ours == peers).all()


def test_mappings_are_the_same(rng):
    for _ in range(60):
        boundaries, lengths = draw_sentences(rng)
        epochs, limit = int(rng.integers(1, 6)), int(rng.choice([0, 1, 10, 1000, 2**40]))
        length, seed = int(rng.integers(2, 90)), int(rng.integers(2**31 - 1))
        short, least = float(rng.choice([0, 0.1, 0.34, 0.5, 0.9, 1, 1e-9])), int(rng.integers(0, 4))
        peers = peer_helpers.build_mapping(boundaries, lengths, epochs, limit, length, short, seed, False, least)
        settings = {"num_epochs": epochs, "max_num_samples": limit, "max_sequence_length": length, "seed": seed}
        ours = tokenloom.build_mapping(
            boundaries, lengths, **settings, short_sequence_probability=short, min_sentences=least
        )
        assert_same_rows(ours, peers)

        titles = rng.integers(0, 9, size=len(boundaries) - 1).astype(np.int32)
        single = bool(rng.integers(2))
        peers = peer_helpers.build_blocks_mapping(
            boundaries, lengths, titles, epochs, limit, length, seed, False, single
        )
        ours = tokenloom.build_blocks_mapping(boundaries, lengths, titles, **settings, use_one_sentence_blocks=single)
        assert_same_rows(ours, peers)


def test_long_mappings_are_the_same(rng):
    """Shuffles of many blocks, and memory that grows many times."""
    count = 200_000
    lengths = rng.integers(1, 40, size=count).astype(np.int32)
    boundaries = np.unique(np.concatenate([[0, count], rng.integers(0, count, size=count // 9)])).astype(np.int64)
    peers = peer_helpers.build_mapping(boundaries, lengths, 2, 2**40, 128, 0.1, 7, False, 1)
    settings = {"num_epochs": 2, "max_sequence_length": 128, "short_sequence_probability": 0.1}
    ours = tokenloom.build_mapping(boundaries, lengths, **settings, seed=7, min_sentences=1)
    assert_same_rows(ours, peers)


# --- datasets ---------------------------------------------------------------------------------------------------------


def draw_tokenizer(rng, *, num_sentinels=100):
    vocab_size = int(rng.choice([130, 1000, 65_499, 65_500, 65_536]))
    share = float(rng.choice([0, 0.3, 0.9]))
    continuations = np.flatnonzero(rng.random(vocab_size) < share)
    continuations = continuations[continuations >= 6 + num_sentinels]
    tokenizer = StandInWordPieces(
        vocab_size=vocab_size,
        pad=[None, 0, 0, 0, 5, 120][rng.integers(6)],
        num_sentinels=num_sentinels,
        continuations=continuations.tolist(),
    )
    tokenizer.inv_vocab = {number: tokenizer.inv_vocab[number] for number in rng.permutation(vocab_size).tolist()}
    return tokenizer


def draw_settings(rng):
    """Returns settings that both sides take, the tokenizer included."""
    geometric = bool(rng.integers(2))
    return {
        "random_seed": int(rng.integers(2**31 - 1)),
        "sequence_length": int(rng.choice([5, 9, 32, 128])),
        "split": "60,30,10",
        "tokenizer": draw_tokenizer(rng),
        "masking_probability": float(rng.choice([0.02, 0.15, 0.5, 0.99])),
        "short_sequence_probability": float(rng.choice([0, 0.1, 1])),
        "masking_max_ngram": int(rng.choice([1, 3, 10])),
        "masking_do_full_word": bool(rng.integers(2)),
        "masking_do_permutation": not geometric and bool(rng.integers(2)),
        "masking_use_longer_ngrams": bool(rng.integers(2)),
        "masking_use_geometric_distribution": geometric,
    }


def draw_documents(rng, tokenizer):
    """Returns documents of sentences; some empty, some of one token, some too long, some with specials inside."""
    first = 0 if rng.random() < 0.3 else tokenizer.first_piece

    def sentence():
        length = int(rng.choice([0, 1, rng.integers(1, 12), rng.integers(1, 60), 513], p=[0.05, 0.1, 0.4, 0.44, 0.01]))
        return rng.integers(first, tokenizer.vocab_size, size=length)

    return [[sentence() for _ in range(int(rng.choice([0, 1, 2, 7, 20])))] for _ in range(int(rng.integers(10, 40)))]


def draw_corpus(rng, prefix, tokenizer):
    dtype = np.uint16 if tokenizer.vocab_size < 65_500 else np.int32
    documents = draw_documents(rng, tokenizer)
    return write_sentences(prefix, [*documents, [[120] * 5, [121] * 6, [122] * 7]], dtype=dtype)


def sample_generators(monkeypatch):
    """Makes the peer draw permutations from the sample's generator, as we do, instead of from the global one."""
    created = []

    class Recorded(np.random.RandomState):
        def __init__(self, seed=None):
            super().__init__(seed)
            created[:] = [self]

    monkeypatch.setattr(np.random, "RandomState", Recorded)
    monkeypatch.setattr(np.random, "choice", lambda *args, **kwargs: created[0].choice(*args, **kwargs))


KINDS = {
    "bert": (BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig),
    "t5": (T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig),
}
PEERS = {
    "bert": (peer_bert.BERTMaskedWordPieceDataset, peer_bert.BERTMaskedWordPieceDatasetConfig),
    "t5": (peer_t5.T5MaskedWordPieceDataset, peer_t5.T5MaskedWordPieceDatasetConfig),
}


def draw_own_settings(rng, kind, settings):
    if kind == "bert":
        return {"classification_head": bool(rng.integers(2))}
    return {"sequence_length_decoder": int(settings["sequence_length"] * rng.choice([1, 2]) + 1)}


def assert_same(ours, peers):
    assert list(ours) == list(peers)
    for name, expected in peers.items():
        assert type(ours[name]) is type(expected), name
        if isinstance(expected, np.ndarray):
            assert ours[name].dtype == expected.dtype, name
            assert ours[name].shape == expected.shape, name
        assert np.array_equal(ours[name], expected), name


def peer_sample(peer, k):
    """Returns a sample of the peer, or None where it runs out of sentinels or of room in the decoder."""
    try:
        return peer[k]
    except (IndexError, AssertionError):
        return None


def compare_samples(dataset, peer, rng, *, most=25):
    assert len(dataset) == len(peer)
    chosen = rng.permutation(len(peer))[:most].tolist()
    peers = {k: peer_sample(peer, k) for k in chosen}
    for k, expected in peers.items():
        if expected is None:
            with pytest.raises(tokenloom.ConfigError, match=f"sample {k} of .*(sentinel tokens|the decoder needs)"):
                dataset[k]
        else:
            assert_same(dataset[k], expected)
    whole = [k for k in chosen if peers[k] is not None]
    batch = dataset.batch(whole)
    for name, array in batch.items():
        assert np.array_equal(array, [peers[k][name] for k in whole]) or not whole, name
    return len(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_indices_files_and_samples_are_the_same(tmp_path, rng, kind, monkeypatch):
    sample_generators(monkeypatch)
    compared = 0
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        settings = draw_settings(rng)
        settings |= draw_own_settings(rng, kind, settings)
        prefix = draw_corpus(rng, f"{folder}/corpus", settings["tokenizer"])
        settings["blend"] = ([prefix], None)
        data, peer_data = IndexedDataset(prefix), peer_indexed.IndexedDataset(prefix)
        first = int(rng.integers(data.num_documents))
        indices = np.arange(first, data.num_documents, dtype=np.int32)
        num_samples, split = int(rng.choice([1, 20, 200])), Split(int(rng.integers(3)))
        dataset_class, config_class = KINDS[kind]
        peer_class, peer_config = PEERS[kind]
        ours = config_class(**settings, path_to_cache=f"{folder}/ours")
        theirs = peer_config(**settings, path_to_cache=f"{folder}/theirs")

        given = prefix, indices, num_samples
        dataset = dataset_class(data, *given, split, ours)
        peer = peer_class(peer_data, *given, PeerSplit[split.name], theirs)
        assert_same_rows(dataset.sample_index, peer.sample_index)
        assert dataset.unique_description == peer.unique_description
        assert folder_bytes(f"{folder}/ours") == folder_bytes(f"{folder}/theirs")
        compared += compare_samples(dataset, peer, rng)

        # Each reads what the other has written.
        ours.path_to_cache, theirs.path_to_cache = theirs.path_to_cache, ours.path_to_cache
        dataset = dataset_class(data, *given, split, ours)
        peer = peer_class(peer_data, *given, PeerSplit[split.name], theirs)
        compare_samples(dataset, peer, rng, most=3)
    assert compared


@pytest.mark.parametrize("kind", KINDS)
def test_the_builder_makes_the_same_splits_and_blends(tmp_path, rng, kind):
    settings = draw_settings(rng) | {"masking_do_permutation": False, "masking_probability": 0.15}
    settings |= draw_own_settings(rng, kind, settings)
    prefixes = [draw_corpus(rng, f"{tmp_path}/{name}", settings["tokenizer"]) for name in "ab"]
    settings |= {"blend": (prefixes, [0.7, 0.3]), "split": "1,0,0"}
    built = []
    for (dataset_class, config_class), builder, name in (
        (KINDS[kind], BlendedMegatronDatasetBuilder, "ours"),
        (PEERS[kind], peer_builder.BlendedMegatronDatasetBuilder, "theirs"),
    ):
        config = config_class(**settings, path_to_cache=f"{tmp_path}/{name}")
        built.append(builder(dataset_class, [60, 0, 0], lambda: True, config).build()[0])
    assert folder_bytes(tmp_path / "ours") == folder_bytes(tmp_path / "theirs")
    blend, peer = built
    assert len(blend) == len(peer)
    for k in rng.permutation(len(blend))[:20].tolist():
        if (expected := peer_sample(peer, k)) is not None:
            assert_same(blend[k], expected)


@pytest.mark.parametrize("variable", [None, "NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN"])
@pytest.mark.parametrize(
    "version",
    [None, "1.7.0", "2.8.0+cu13", *(pytest.param(v, marks=pytest.mark.slow) for v in ("1.6.0", "1.9.1", "1.10.0"))],
)
def test_attention_masks_of_t5_are_the_same(rng, monkeypatch, version, variable):
    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN"):
        monkeypatch.setenv(name, "1" if name == variable else "0")
    tokens = [torch.from_numpy(rng.integers(0, 3, size=(4, length))) for length in (7, 5)]
    arguments = (*tokens, *(token.ne(0).long() for token in tokens), version is None, version)
    if version == "1.6.0" and variable is not None:
        with pytest.raises(tokenloom.ConfigError, match=f"T5 needs flash and fused attention off, got {variable}"):
            T5MaskedWordPieceDataset.config_attention_mask(*arguments)
        with pytest.raises(AssertionError):
            peer_t5.T5MaskedWordPieceDataset.config_attention_mask(*arguments)
        return
    ours = T5MaskedWordPieceDataset.config_attention_mask(*arguments)
    peers = peer_t5.T5MaskedWordPieceDataset.config_attention_mask(*arguments)

    def assert_equal(left, right):
        assert type(left) is type(right)
        if isinstance(left, tuple):
            for pair in zip(left, right, strict=True):
                assert_equal(*pair)
        elif left is not None:
            assert left.dtype == right.dtype
            assert torch.equal(left, right)

    assert_equal(ours, peers)
