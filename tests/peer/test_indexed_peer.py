"""The format layer against megatron-core: the same bytes from the same calls, and each reads what the other wrote.

`TOKENLOOM_TEST_SEED=fresh` draws other corpora; a failure prints the seed.
"""

import itertools

import numpy as np
import pytest
from tests.indexed.pairs import pair_bytes

from tokenloom import DType, IndexedDataset, IndexedDatasetBuilder, merge_datasets

torch = pytest.importorskip("torch")
peer = pytest.importorskip("megatron.core.datasets.indexed_dataset")

pytestmark = pytest.mark.peer

DTYPES = [np.uint16, np.int32, np.uint8, np.int8, np.int16, np.int64, np.float32, np.float64]


def draw_corpus(rng, dtype, *, sequences_per_document=5):
    """Draws documents of sequences; some documents and some sequences are empty."""
    if np.dtype(dtype).kind == "f":
        draw = lambda size: rng.normal(size=size).astype(dtype)  # noqa: E731
    else:
        bounds = np.iinfo(dtype)
        draw = lambda size: rng.integers(bounds.min, bounds.max, size=size, dtype=dtype, endpoint=True)  # noqa: E731
    sizes = [rng.integers(0, sequences_per_document, size=1) for _ in range(int(rng.integers(1, 40)))]
    return [[draw(int(rng.integers(0, 50))) for _ in range(int(size[0]))] for size in sizes]


def as_tensor(tokens):
    """The reference takes tensors; torch has uint16 tensors, but few operations on them."""
    return torch.from_numpy(tokens.astype(np.int64) if tokens.dtype == np.uint16 else tokens)


def write(builder, corpus, prefix, *, rng=None):
    """Writes the corpus; modes are drawn where a generator is given. The same code drives both builders."""
    for document in corpus:
        for sequence in document:
            builder.add_item(as_tensor(sequence), *([] if rng is None else [int(rng.integers(0, 3))]))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


def write_both(folder, corpus, dtype, *, seed=None, name="corpus"):
    """Writes the corpus with both builders; returns our prefix and theirs."""
    multimodal = seed is not None
    prefixes = f"{folder}/{name}-ours", f"{folder}/{name}-theirs"
    for prefix, kind in zip(prefixes, (IndexedDatasetBuilder, peer.IndexedDatasetBuilder), strict=True):
        rng = np.random.default_rng(seed) if multimodal else None
        write(kind(f"{prefix}.bin", dtype=dtype, multimodal=multimodal), corpus, prefix, rng=rng)
    return prefixes


def assert_equal_arrays(ours, theirs):
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours, theirs)


def assert_equal_datasets(ours, theirs, rng):
    assert len(ours) == len(theirs)
    for name in ("sequence_lengths", "sequence_pointers", "document_indices"):
        assert_equal_arrays(getattr(ours.index, name), getattr(theirs.index, name))
    assert_equal_arrays(ours.get_document_indices(), theirs.get_document_indices())
    for row in range(-len(ours), len(ours)):
        assert_equal_arrays(ours[row], theirs[row])
    for _ in range(20):
        row = int(rng.integers(len(ours)))
        offset = int(rng.integers(0, ours.sequence_lengths[row] + 1))
        length = int(rng.integers(0, ours.sequence_lengths[row] - offset + 1))
        assert_equal_arrays(ours.get(row, offset, length), theirs.get(row, offset, length))
        assert_equal_arrays(ours.get(row, offset), theirs.get(row, offset))
        start, stop = sorted(int(bound) for bound in rng.integers(0, len(ours) + 1, size=2))
        if start == stop:
            continue  # the reference gives a list of one empty array for no sequences
        mine, other = ours[start:stop], theirs[start:stop]
        assert len(mine) == len(other) == stop - start
        for left, right in zip(mine, other, strict=True):
            assert_equal_arrays(left, right)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("multimodal", [False, True])
def test_items_give_the_same_bytes(tmp_path, rng, seed, dtype, multimodal):
    ours, theirs = write_both(tmp_path, draw_corpus(rng, dtype), dtype, seed=seed if multimodal else None)
    assert pair_bytes(ours) == pair_bytes(theirs)


KINDS = ["tensor", "array", "list"]
CHOSEN = [(dtype, KINDS[number % 3], number % 2 == 1) for number, dtype in enumerate(DTYPES)]
OTHERS = [case for case in itertools.product(DTYPES, KINDS, [False, True]) if case not in CHOSEN]


@pytest.mark.parametrize(
    ("dtype", "kind", "multimodal"), [*CHOSEN, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]
)
def test_documents_give_the_same_bytes(tmp_path, rng, seed, dtype, kind, multimodal):
    corpus = draw_corpus(rng, dtype)
    written = []
    for name, builder_type in (("ours", IndexedDatasetBuilder), ("theirs", peer.IndexedDatasetBuilder)):
        draw = np.random.default_rng(seed)
        builder = builder_type(f"{tmp_path}/{name}.bin", dtype=dtype, multimodal=multimodal)
        for document in corpus:
            tokens = np.concatenate([np.empty(0, dtype=dtype), *document])
            shaped = {"tensor": as_tensor, "array": lambda array: array, "list": lambda array: array.tolist()}[kind]
            lengths = [len(sequence) for sequence in document]
            modes = draw.integers(-128, 128, size=len(lengths)).tolist()
            builder.add_document(shaped(tokens), lengths, *([modes] if multimodal else []))
        builder.finalize(f"{tmp_path}/{name}.idx")
        written.append(pair_bytes(f"{tmp_path}/{name}"))
    assert written[0] == written[1]


@pytest.mark.parametrize("source", [np.int64, np.int32, np.uint8])
def test_tokens_are_converted_alike(tmp_path, rng, source):
    corpus = [[rng.integers(0, 128, size=9).astype(source)] for _ in range(10)]
    ours, theirs = write_both(tmp_path, corpus, np.uint16)
    assert pair_bytes(ours) == pair_bytes(theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mmap", [True, False])
def test_each_reads_what_the_other_wrote(tmp_path, rng, dtype, mmap):
    corpus = [*draw_corpus(rng, dtype), [np.ones(3, dtype=dtype)]]
    ours, theirs = write_both(tmp_path, corpus, dtype)
    reference = peer.IndexedDataset(theirs, mmap=mmap)
    assert_equal_datasets(IndexedDataset(theirs, mmap=mmap), reference, rng)
    assert_equal_datasets(IndexedDataset(ours, mmap=mmap), peer.IndexedDataset(ours, mmap=mmap), rng)


@pytest.mark.parametrize("mmap", [True, False])
def test_each_reads_the_modes_the_other_wrote(tmp_path, rng, seed, mmap):
    # Two at the least: the peer takes no slice that begins at its end.
    corpus = [*draw_corpus(rng, np.int32), *[[np.ones(3, dtype=np.int32)]] * 2]
    for prefix in write_both(tmp_path, corpus, np.int32, seed=seed):
        ours = IndexedDataset(prefix, multimodal=True, mmap=mmap)
        theirs = peer.IndexedDataset(prefix, multimodal=True, mmap=mmap)
        assert_equal_arrays(ours.sequence_modes, theirs.index.sequence_modes)
        for row in range(len(ours)):
            (tokens, mode), (other_tokens, other_mode) = ours[row], theirs[row]
            assert_equal_arrays(tokens, other_tokens)
            assert mode == other_mode
            assert type(mode) is type(other_mode)
        (tokens, modes), (other_tokens, other_modes) = ours[1:-1], theirs[1:-1]
        assert_equal_arrays(modes, other_modes)
        if len(tokens):
            for left, right in zip(tokens, other_tokens, strict=True):
                assert_equal_arrays(left, right)


@pytest.mark.parametrize("multimodal", [False, True])
def test_merges_give_the_same_bytes(tmp_path, rng, seed, multimodal):
    corpora = [[[np.ones(2, dtype=np.uint16)]], *(draw_corpus(rng, np.uint16) for _ in range(3))]
    parts = [
        write_both(tmp_path, corpus, np.uint16, seed=seed + number if multimodal else None, name=f"part{number}")[1]
        for number, corpus in enumerate(corpora)
    ]
    for name, builder_type in (("ours", IndexedDatasetBuilder), ("theirs", peer.IndexedDatasetBuilder)):
        builder = builder_type(f"{tmp_path}/{name}.bin", dtype=np.uint16, multimodal=multimodal)
        for part in parts:
            builder.add_index(part)
            builder.add_item(torch.tensor([1, 2]), *([7] if multimodal else []))  # items between the merged pairs
        builder.end_document()
        builder.finalize(f"{tmp_path}/{name}.idx")
    assert pair_bytes(f"{tmp_path}/ours") == pair_bytes(f"{tmp_path}/theirs")


def test_a_merge_gives_the_same_bytes_as_their_add_index(tmp_path, rng):
    parts = [write_both(tmp_path, draw_corpus(rng, np.int32), np.int32, name=f"part{number}")[0] for number in range(3)]
    merge_datasets(parts, f"{tmp_path}/ours")
    builder = peer.IndexedDatasetBuilder(f"{tmp_path}/theirs.bin", dtype=np.int32)
    for part in parts:
        builder.add_index(part)
    builder.finalize(f"{tmp_path}/theirs.idx")
    assert pair_bytes(f"{tmp_path}/ours") == pair_bytes(f"{tmp_path}/theirs")


def test_dtypes_have_the_same_codes():
    for ours in DType:
        scalar = DType.dtype_from_code(ours.value)
        assert peer.DType.dtype_from_code(ours.value) is scalar
        assert peer.DType.code_from_dtype(scalar) == DType.code_from_dtype(scalar) == ours.value
        assert peer.DType.size(ours.value) == DType.size(ours.value)
        assert peer.DType.size(scalar) == DType.size(scalar)
    assert [member.name for member in peer.DType] == [member.name for member in DType]
    for vocab_size in (None, 0, 65499, 65500, 65535, 65536, 65537, 10**6):
        assert peer.DType.optimal_dtype(vocab_size) is DType.optimal_dtype(vocab_size)
