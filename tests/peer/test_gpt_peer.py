"""GPT indices, caches and samples beside megatron-core's, for corpora and settings drawn anew in each run."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.peer.conftest import assert_same, folder_bytes, rounds, times
from tests.support import EOD, StandInTokenizer, make_config, random_documents, write_corpus

from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.mock import MockGPTDataset, MockGPTLowLevelDataset
from tokenloom.datasets.splits import Split, split_indices
from tokenloom.indexed.dataset import IndexedDataset

pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("quiet")]

pytest.importorskip("megatron.core")

from megatron.core.datasets import blended_megatron_dataset_builder as peer_builder  # noqa: E402
from megatron.core.datasets import gpt_dataset as peer_gpt  # noqa: E402
from megatron.core.datasets import indexed_dataset as peer_indexed  # noqa: E402
from megatron.core.datasets.utils import Split as PeerSplit  # noqa: E402

BOOLEANS = [
    *("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask", "mmap_bin_files"),
    *("drop_last_partial_validation_sequence", "add_extra_token_to_sequence", "allow_ambiguous_pad_tokens"),
]
rng = rounds(4, 6)


def draw_settings(rng):
    """Returns settings that both sides take, the tokenizer included."""
    vocab_size = int(rng.choice([20, 1000, 70_000]))
    pad = [None, 0, 3, 5, EOD][rng.integers(5)]
    return {
        "random_seed": int(rng.integers(2**32)),
        "sequence_length": int(rng.integers(1, 40)),
        "split": "70,20,10",
        "tokenizer": StandInTokenizer(pad=pad, eod=int(rng.choice([0, 3, EOD])), vocab_size=vocab_size),
        **{name: bool(rng.integers(2)) for name in BOOLEANS},
    }


def draw_corpus(rng, prefix, vocab_size):
    """Writes a corpus; returns its documents."""
    documents = random_documents(
        rng,
        count=int(rng.integers(1, 60)),
        longest=int(rng.choice([3, 20, 200])),
        vocab_size=vocab_size,
        empty_share=float(rng.choice([0, 0.3])),
    )
    dtypes = [np.uint8] if vocab_size < 256 else []
    dtypes += [np.uint16, np.int16] if vocab_size < 30_000 else []
    write_corpus(prefix, documents, dtype=rng.choice([np.dtype(dtype) for dtype in [*dtypes, np.int32, np.int64]]))
    return documents


def peer_sample(peer, k):
    """Returns a sample of the peer, kept from masking it by what was masked in samples before (MLM#1711)."""
    peer.masks_and_position_ids_are_cached = False
    return peer[k]


def compare_samples(dataset, peer, rng, *, most=12):
    """Compares lengths, and samples from both ends, in single and as a batch."""
    assert len(dataset) == len(peer)
    if not len(peer):
        return 0
    chosen = rng.permutation(len(peer))[:most].tolist()
    chosen += [-1 - k for k in chosen[:2]] + [None]
    batch = dataset.__getitems__(chosen)
    for row, k in enumerate(chosen):
        expected = peer_sample(peer, k)
        assert_same(dataset[k], expected)
        assert_same(batch[row], expected)
    return len(chosen)


def peer_refuses(dataset):
    """Whether the peer has no sample index for these data: it asserts that no offset in it is negative.

    That happens when a partial sample is kept, its last token is an extra one, and the stream ends with an empty
    document: the end is then 1 before the start of that document.
    """
    return bool(dataset.sample_index.min() < 0)


def test_indices_files_and_samples_are_the_same(tmp_path, rng):
    compared = 0
    for number in range(100):
        if number >= 8 and compared:  # of a few corpora there are no samples to compare
            break
        folder = tmp_path / str(number)
        folder.mkdir()
        settings = draw_settings(rng)
        prefix = f"{folder}/corpus"
        documents = draw_corpus(rng, prefix, settings["tokenizer"].vocab_size)
        settings["blend"] = ([prefix], None)
        first = int(rng.integers(len(documents)))
        indices = np.arange(first, int(rng.integers(first, len(documents))) + 1, dtype=np.int32)
        tokens = sum(len(documents[i]) for i in indices)
        if tokens == 0:  # the peer waits for ever for samples made of nothing
            continue
        num_samples = [None, 0, int(rng.integers(1, 10)), int(rng.integers(1, 300))][rng.integers(4)]
        split = Split(int(rng.integers(3)))
        ours = GPTDatasetConfig(**settings, path_to_cache=f"{folder}/ours")
        theirs = peer_gpt.GPTDatasetConfig(**settings, path_to_cache=f"{folder}/theirs")
        data = IndexedDataset(prefix, mmap=settings["mmap_bin_files"])
        peer_data = peer_indexed.IndexedDataset(prefix, mmap=settings["mmap_bin_files"])

        given = prefix, indices, num_samples
        build_peer = partial(peer_gpt.GPTDataset, peer_data, *given, PeerSplit[split.name])
        dataset = GPTDataset(data, *given, split, ours)
        if peer_refuses(dataset):
            with pytest.raises(AssertionError):
                build_peer(theirs)
            continue
        peer = build_peer(theirs)
        for name in ("document_index", "sample_index", "shuffle_index"):
            ours_array, peer_array = getattr(dataset, name), getattr(peer, name)
            assert ours_array.dtype == peer_array.dtype
            assert ours_array.shape == peer_array.shape
            assert (ours_array == peer_array).all()
        assert dataset.unique_description == peer.unique_description
        assert dataset.unique_description_hash == peer.unique_description_hash
        assert folder_bytes(f"{folder}/ours") == folder_bytes(f"{folder}/theirs")
        compared += compare_samples(dataset, peer, rng)

        # Each reads what the other has written, and writes nothing.
        ours.path_to_cache, theirs.path_to_cache = theirs.path_to_cache, ours.path_to_cache
        before = times(folder / "ours", folder / "theirs")
        from_peer = GPTDataset(data, *given, split, ours)
        from_ours = build_peer(theirs)
        assert times(folder / "ours", folder / "theirs") == before
        compare_samples(from_peer, from_ours, rng, most=3)
        ours.defer_npy_index_mmap = theirs.defer_npy_index_mmap = True
        deferred = GPTDataset(data, *given, split, ours)
        compare_samples(deferred, build_peer(theirs), rng, most=3)
    assert compared


def test_the_default_folder_of_the_cache_is_the_same(tmp_path, rng):
    settings = draw_settings(rng) | {"drop_last_partial_validation_sequence": True}
    prefix = f"{tmp_path}/corpus"
    vocab_size = settings["tokenizer"].vocab_size
    write_corpus(prefix, random_documents(rng, count=30, longest=50, vocab_size=vocab_size), dtype=np.int32)
    settings["blend"] = ([prefix], None)
    indices = np.arange(30, dtype=np.int32)
    GPTDataset(IndexedDataset(prefix), prefix, indices, 9, Split.train, GPTDatasetConfig(**settings))
    before = folder_bytes(f"{prefix}/cache/GPTDataset_indices")
    for path in Path(f"{prefix}/cache/GPTDataset_indices").iterdir():
        path.unlink()
    data = peer_indexed.IndexedDataset(prefix)
    peer_gpt.GPTDataset(data, prefix, indices, 9, PeerSplit.train, peer_gpt.GPTDatasetConfig(**settings))
    assert folder_bytes(f"{prefix}/cache/GPTDataset_indices") == before


def build_both(tmp_path, settings, sizes, *, ours=GPTDataset, theirs=peer_gpt.GPTDataset):
    """Returns the splits of both builders."""
    datasets = BlendedMegatronDatasetBuilder(
        ours, sizes, lambda: True, GPTDatasetConfig(**settings, path_to_cache=f"{tmp_path}/ours")
    ).build()
    peers = peer_builder.BlendedMegatronDatasetBuilder(
        theirs, sizes, lambda: True, peer_gpt.GPTDatasetConfig(**settings, path_to_cache=f"{tmp_path}/theirs")
    ).build()
    return datasets, peers


def compare_builds(tmp_path, built, rng):
    datasets, peers = built
    assert folder_bytes(tmp_path / "ours") == folder_bytes(tmp_path / "theirs")
    compared = 0
    for dataset, peer in zip(datasets, peers, strict=True):
        assert (dataset is None) == (peer is None)
        if dataset is not None:
            assert (dataset.indices == peer.indices).all()
            compared += compare_samples(dataset, peer, rng)
    assert compared


@pytest.mark.parametrize("per_split", [False, True])
def test_the_builder_makes_the_same_splits_of_one_prefix(tmp_path, rng, per_split):
    # Not a kept partial sample, for the peer refuses some of them, see above.
    settings = draw_settings(rng) | {"drop_last_partial_validation_sequence": True}
    vocab_size = settings["tokenizer"].vocab_size
    prefixes = []
    for name in "abc":
        documents = random_documents(rng, count=40, longest=60, vocab_size=vocab_size)
        documents[::8] = [np.arange(3)] * 5  # each split has tokens: the peer waits for ever for samples of nothing
        documents.append(np.arange(3))
        prefixes.append(write_corpus(tmp_path / name, documents, dtype=np.int32))
    if per_split:
        del settings["split"]
        settings["blend_per_split"] = [([prefixes[0]], None), ([prefixes[1]], [2.0]), None]
        rng.shuffle(settings["blend_per_split"])
    else:
        settings["blend"] = ([prefixes[0]], None)
        settings["split"] = str(rng.choice(["60,20,20", "1,1,0", "1,0,0", "0.5, 0.2, 0.3"]))
    sizes = [None if rng.random() < 0.3 else int(rng.integers(1, 200)) for _ in Split]
    for split, blend in enumerate(settings.get("blend_per_split", [])):
        if blend is not None and blend[1] is not None and sizes[split] is None:
            sizes[split] = 50  # the peer wants a size for a weight, even if the weight means nothing
    compare_builds(tmp_path, build_both(tmp_path, settings, sizes), rng)


def test_the_builder_makes_the_same_splits_of_made_up_data(tmp_path, seed):
    rng = np.random.default_rng(seed)
    settings = draw_settings(rng)
    settings |= {"split": None, "sequence_length": int(rng.integers(1000, 3000)), "create_attention_mask": False}
    built = build_both(tmp_path, settings, [300, None, 20], ours=MockGPTDataset, theirs=peer_gpt.MockGPTDataset)
    compare_builds(tmp_path, built, rng)


def test_made_up_documents_are_the_same(rng):
    tokenizer = StandInTokenizer(vocab_size=int(rng.integers(10, 5000)))
    ours, theirs = MockGPTLowLevelDataset(tokenizer), peer_gpt.MockGPTLowLevelDataset(tokenizer)
    assert (ours.sequence_lengths == theirs.sequence_lengths).all()
    for number in rng.integers(0, 100_000, size=20).tolist():
        document = theirs[number]
        assert ours[number].dtype == document.dtype
        assert ours[number].tolist() == document.tolist()
        offset = int(rng.integers(len(document)))
        length = int(rng.integers(len(document) - offset + 1))
        assert ours.get(number, offset, length).tolist() == theirs.get(number, offset, length).tolist()
        assert ours.get(number, offset).tolist() == theirs.get(number, offset).tolist()


def test_splits_are_the_same(rng):
    from megatron.core.datasets import blended_megatron_dataset_config as peer_config

    for _ in range(50):
        weights = (rng.integers(0, 1000, size=rng.integers(1, 4)) / rng.choice([1, 10, 7])).tolist()
        if not any(weights):
            continue
        text = ",".join(map(str, weights))
        if "e" in text:
            continue
        prefix = "corpus"
        ours = make_config(prefix, split=text)
        vector = peer_config.parse_and_normalize_split(text)
        matrix = peer_config.convert_split_vector_to_split_matrix(vector)
        assert ours.split_matrix == matrix
        size = int(rng.integers(10_000))
        for bounds in filter(None, matrix):
            begin, end = (round(bound * float(size)) for bound in bounds)  # as the peer's builder has it
            assert split_indices(bounds, size).tolist() == list(range(begin, end))
