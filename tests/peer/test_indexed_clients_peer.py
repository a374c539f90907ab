"""Clients of Megatron's `indexed_dataset`, run against it and ours: the same results, or errors that they catch.

Each case is written as a client would write it, for a module, a folder of its own and the prefix of a pair.
"""

import pickle
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.indexed.pairs import pair_bytes

from tokenloom import IndexedDatasetBuilder
from tokenloom.megatron.core.datasets import indexed_dataset as ours

peer = pytest.importorskip("megatron.core.datasets.indexed_dataset")

pytestmark = [
    pytest.mark.peer,
    # Of a dataset that could not be opened, the reference's finalizer complains.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DOCUMENTS = [[[5, 6, 7], [8]], [], [[9, 10, 11, 12]], [[], [13, 14]]]


def write_pair(path, *, multimodal=False, dtype=np.uint16):
    with IndexedDatasetBuilder(f"{path}.bin", dtype=dtype, multimodal=multimodal) as builder:
        for number, document in enumerate(DOCUMENTS):
            for sequence in document:
                builder.add_item(np.array(sequence, dtype=dtype), number)
            builder.end_document()
        builder.finalize(f"{path}.idx")
    return str(path)


def build(module, folder, fill, *, dtype=np.uint16, multimodal=False):
    """What both builders write for the same calls."""
    prefix = f"{folder}/built"
    builder = module.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=multimodal)
    with closing(builder.data_file):
        fill(builder)
    builder.finalize(f"{prefix}.idx")
    return pair_bytes(prefix)


def raised(action, *kinds):
    """Whether a client that expects one of these errors catches it."""
    try:
        action()
    except kinds as error:
        return [kind.__name__ for kind in kinds if isinstance(error, kind)]
    return "nothing"


KEPT = []
"""Of the reference, arrays must not outlive their dataset, which unmaps them: reading them then kills the process."""


def keep(opened):
    KEPT.append(opened)
    return opened


def open_pair(module, prefix, *arguments, **named):
    return keep(module.IndexedDataset(prefix, *arguments, **named))


def attributes_of_builder(m, folder, prefix):
    builder = m.IndexedDatasetBuilder(f"{folder}/a.bin", dtype=np.int32)
    builder.add_item(torch.tensor([1, 2]))
    builder.end_document()
    text = m.IndexedDatasetBuilder(f"{folder}/b.bin", multimodal=True)
    text.add_item(torch.tensor([1]), 3)
    names = ("sequence_lengths", "document_indices", "sequence_modes", "dtype", "multimodal")
    kept = [getattr(builder, name) for name in names], text.sequence_modes, text.dtype
    builder.data_file.close()
    text.data_file.close()
    return kept


def lists_of_builder_changed(builder):
    builder.data_file.write(np.array([1, 2, 3], dtype=np.uint16).tobytes())
    builder.sequence_lengths.append(3)
    builder.document_indices.append(1)


def visible(m, folder, prefix):
    builder = m.IndexedDatasetBuilder(f"{folder}/a.bin")
    there = (folder / "a.bin").exists(), (folder / "a.idx").exists()
    builder.data_file.close()
    return there


def index_written(m, folder, modes):
    with m._IndexWriter(f"{folder}/w.idx", np.int32) as writer:
        writer.write([3, 0, 4], modes, [0, 2, 3])
    return (folder / "w.idx").read_bytes()


def index_read(m, path, *arguments):
    reader = keep(m._IndexReader(path, *arguments))
    arrays = reader.sequence_lengths, reader.sequence_pointers, reader.document_indices, reader.sequence_modes
    return arrays, reader.dtype, reader.dtype_size, reader.sequence_count, reader.document_count, len(reader), reader[2]


def replaced_boundaries(m, prefix):
    dataset = open_pair(m, prefix)
    dataset.set_document_indices(np.array([0, 2, 5]))
    return dataset.document_indices, dataset.get_document_indices(), dataset.index.document_indices


def hooks(m, prefix):
    """Hooks of subclasses, as they call each other."""

    class Raised(m.IndexedDataset):
        def get(self, idx, offset=0, length=None):
            return super().get(idx, offset, length) + 100

    class Both(Raised):
        def __getitem__(self, idx):
            return super().__getitem__(idx) + 1

    class Through(m.IndexedDataset):
        def get(self, idx, offset=0, length=None):
            return self[idx][offset:][:length]

    class Begun(m.IndexedDataset):
        def initialize(self, path_prefix, *rest):
            super().initialize(path_prefix.removesuffix("-v1"), *rest)

    begun = keep(Begun(f"{prefix}-v1", False, False))
    raised, both, through = (keep(kind(prefix)) for kind in (Raised, Both, Through))
    return (
        *(dataset[0].tolist() for dataset in (raised, both)),
        *(dataset.get(0).tolist() for dataset in (raised, both, through)),
        [tokens.tolist() for tokens in raised[:2]],
        begun[0].tolist(),
        begun.path_prefix == prefix,
    )


def other_reader(m, prefix):
    """A reader of one's own, named before and put into a dataset afterwards."""

    class Doubled(m._MMapBinReader):
        def read(self, dtype, count, offset):
            return super().read(dtype, count, offset) * 2

    dataset = open_pair(m, prefix)
    keep(dataset.bin_reader)
    dataset.bin_reader = Doubled(m.get_bin_path(prefix))
    found = [dataset[0].tolist(), dataset.get(2, 1, 1).tolist(), [tokens.tolist() for tokens in dataset[0:3]]]
    patched = pytest.MonkeyPatch()
    with patched.context() as patch:
        patch.setattr(m, "_MMapBinReader", Doubled)
        found.append(open_pair(m, prefix)[0].tolist())
    return found


def state(m, prefix):
    dataset = open_pair(m, prefix, False, False)
    copy = keep(m.IndexedDataset.__new__(m.IndexedDataset))
    copy.__setstate__((prefix, False, True, None, False, None, None))
    again = keep(pickle.loads(pickle.dumps(dataset)))
    values = tuple(dataset.__getstate__())
    return values[0] == prefix, values[1:], copy[0].tolist(), again[0].tolist(), again.mmap


def multimodal(m, prefix):
    dataset = open_pair(m, prefix, multimodal=True)
    return dataset[1], dataset.get(2, 1, 2), dataset[0:2], dataset.index[2], dataset.index.sequence_modes


def counts(m, prefix):
    dataset = open_pair(m, prefix)
    index = dataset.index
    return len(dataset), len(index), index.sequence_count, index.document_count, index.dtype_size


def scalars(m, prefix):
    index = open_pair(m, prefix).index
    return index.dtype, index.dtype.__name__, index.dtype(3), index.dtype == np.uint16, m.DType.size(index.dtype)


def sums(m, prefix):
    dataset = open_pair(m, prefix)
    both = dataset + dataset
    return isinstance(dataset, torch.utils.data.Dataset), len(both), both[6].tolist()


def types(m, prefix):
    made = [open_pair(m, prefix, False, mmap).bin_reader for mmap in (True, False)]
    kinds = m._BinReader, m._MMapBinReader, m._FileBinReader, m._S3BinReader, m._MultiStorageClientBinReader
    return [[isinstance(reader, kind) for kind in kinds] for reader in made]


def readers(m, prefix):
    path = m.get_bin_path(prefix)
    made = [
        m._MMapBinReader(path),
        m._FileBinReader(path),
        m._FileBinReader(path, 1, 0),
        open_pair(m, prefix).bin_reader,
        open_pair(m, prefix, mmap=False).bin_reader,
    ]
    found = [reader.read(np.uint16, 3, 4) for reader in made]
    found += [reader.read(dtype=np.uint8, count=np.int32(2), offset=np.int64(1)) for reader in made]
    return [array.copy() for array in found], all(isinstance(reader, m._BinReader) for reader in made)


def dtypes(m, prefix):
    codes = [m.DType.code_from_dtype(kind) for kind in (np.uint8, np.int32, np.float64, np.uint16)]
    kinds = [m.DType.dtype_from_code(code) for code in range(1, 9)]
    sizes = [m.DType.size(8), m.DType.size(np.int64)]
    return codes, kinds, sizes, [m.DType.optimal_dtype(count) for count in (None, 10, 65499, 65500, 1 << 20)]


PAIR_CASES = {
    "positional_all": lambda m, p: len(open_pair(m, p, False, True, None, None, False, (5, 5), 8)),
    "positional_some": lambda m, p: len(open_pair(m, p, False, False, None, None, True)),
    "keyword_object_storage_config": lambda m, p: len(open_pair(m, p, object_storage_config=None, s3_config=None)),
    "keyword_counts": lambda m, p: open_pair(m, p, sequences_per_dataset=[5, 5], dtype_code=8)[0],
    "no_counts": lambda m, p: open_pair(m, p, sequences_per_dataset=(), dtype_code=4)[0],
    "dtype_code_differs": lambda m, p: open_pair(m, p, dtype_code=4).index.dtype,
    "index_item": lambda m, p: [open_pair(m, p).index[i] for i in (0, 2, -1)],
    "index_item_beyond": lambda m, p: raised(lambda: open_pair(m, p).index[5], IndexError),
    "index_counts": counts,
    "index_dtype": scalars,
    "index_reader": lambda m, p: index_read(m, m.get_idx_path(p), False),
    "index_reader_counts": lambda m, p: index_read(m, m.get_idx_path(p), False, (5, 5), 8),
    "bin_readers": readers,
    "bin_reader_types": types,
    "bin_reader_beyond": lambda m, p: raised(
        lambda: m._MMapBinReader(m.get_bin_path(p)).read(np.uint16, 100, 0), ValueError
    ),
    "bin_reader_missing": lambda m, p: raised(lambda: m._MMapBinReader(f"{p}-none.bin"), OSError),
    "set_document_indices": replaced_boundaries,
    "get": lambda m, p: [open_pair(m, p).get(i, *rest) for i, *rest in ((0,), (2, 1), (2, 1, 2), (-1,), (3,))],
    "get_numpy": lambda m, p: open_pair(m, p).get(np.int64(2), np.int32(1), np.int64(2)),
    "get_beyond_the_end_of_file": lambda m, p: raised(lambda: open_pair(m, p).get(4, 0, 1 << 20), ValueError),
    "item_beyond": lambda m, p: raised(lambda: open_pair(m, p)[5], IndexError),
    "items": lambda m, p: [open_pair(m, p)[i] for i in (0, -1, np.int32(2), slice(1, 4), slice(None), slice(-2, None))],
    "empty_slice": lambda m, p: [open_pair(m, p)[i] for i in (slice(2, 2), slice(3, 1), slice(0, 0))],
    "empty_slice_at_the_end": lambda m, p: raised(lambda: open_pair(m, p)[5:5], IndexError),
    "slice_with_steps": lambda m, p: raised(lambda: open_pair(m, p)[::2], ValueError),
    "no_integer": lambda m, p: raised(lambda: open_pair(m, p)["0"], TypeError),
    "sequence_modes": lambda m, p: raised(lambda: open_pair(m, p).sequence_modes, AssertionError),
    "missing": lambda m, p: raised(lambda: open_pair(m, f"{p}-none"), AssertionError),
    "missing_when_fast": lambda m, p: raised(
        lambda: open_pair(m, f"{p}-none", fast_cache_load=True), FileNotFoundError
    ),
    "no_index": lambda m, p: raised(lambda: m._IndexReader(m.get_bin_path(p), False), AssertionError),
    "mapped_objects": lambda m, p: raised(lambda: open_pair(m, p, object_storage_config=object()), AssertionError),
    "exists": lambda m, p: (m.IndexedDataset.exists(p), m.IndexedDataset.exists(f"{p}-none")),
    "torch_dataset": sums,
    "paths": lambda m, p: (m.get_bin_path("a/b.c"), m.get_idx_path("a/b.c")),
    "state": state,
    "hooks": hooks,
    "other_reader": other_reader,
    "dtypes": dtypes,
    "header": lambda m, p: (m._INDEX_HEADER, sorted(m.OBJECT_STORAGE_BIN_READERS)),
}

DRAWN = torch.tensor([3, 1, 4])

TOKENS = {
    "strings": (["1", "2"], [2]),
    "floats": ([1.0, 2.9], [2]),
    "float_array": (np.array([1.0, 2.0]), [1, 1]),
    "bools": ([True, False], [2]),
    "objects": (np.array([1, 2], dtype=object), [2]),
    "tensor": (DRAWN, [1, 2]),
    "float_tensor": (DRAWN.float(), [3]),
    "int32_tensor": (DRAWN.int(), torch.tensor([3])),
    "none": ([], []),
    "none_in_one": ([], [0]),
    "numpy_lengths": ((1, 2, 3), np.array([1, 2])),
}

BUILDER_CASES = {
    **{
        f"add_document_{name}": lambda m, f, p, given=given: build(m, f, lambda b: b.add_document(*given))
        for name, given in TOKENS.items()
    },
    "add_document_floats_kept": lambda m, f, p: build(
        m, f, lambda b: b.add_document(["1.5", "2"], [2]), dtype=np.float32
    ),
    "add_document_word": lambda m, f, p: raised(
        lambda: build(m, f, lambda b: b.add_document(["one"], [1])), ValueError
    ),
    "add_document_too_large": lambda m, f, p: raised(
        lambda: build(m, f, lambda b: b.add_document([70000], [1])), OverflowError
    ),
    "add_document_modes": lambda m, f, p: build(
        m, f, lambda b: b.add_document([1, 2, 3], [1, 2], [0, 1]), multimodal=True
    ),
    "add_document_unused_modes": lambda m, f, p: build(m, f, lambda b: b.add_document([1, 2, 3], [1, 2], [0, 1])),
    "add_item_tensor": lambda m, f, p: build(
        m, f, lambda b: (b.add_item(DRAWN, 2), b.add_item(DRAWN[:0]), b.end_document()), multimodal=True
    ),
    "add_index": lambda m, f, p: build(
        m, f, lambda b: (b.add_document([1], [1]), b.add_index(p), b.add_document([2], [1]), b.add_index(p))
    ),
    "add_index_multimodal": lambda m, f, p: build(m, f, lambda b: b.add_index(f"{p}-modes"), multimodal=True),
    "add_index_wrong_dtype": lambda m, f, p: raised(
        lambda: build(m, f, lambda b: b.add_index(p), dtype=np.int32), AssertionError
    ),
    "add_index_missing": lambda m, f, p: raised(
        lambda: build(m, f, lambda b: b.add_index(f"{p}-none")), FileNotFoundError
    ),
    "builder_attributes": attributes_of_builder,
    "builder_data_file": lambda m, f, p: build(m, f, lists_of_builder_changed),
    "bin_visible_before_finalize": visible,
    "no_folder": lambda m, f, p: raised(lambda: m.IndexedDatasetBuilder(f"{f}/none/a.bin"), FileNotFoundError),
    "index_writer": lambda m, f, p: [index_written(m, f, modes) for modes in (None, [1, 0, 2])],
    "index_writer_arrays": lambda m, f, p: index_written(m, f, np.array([1, 0, -2])),
    "multimodal": lambda m, f, p: multimodal(m, f"{p}-modes"),
}


def plain(value):
    """What a client sees, in a form that can be compared: dtypes and types of numbers count."""
    if isinstance(value, np.ndarray):
        return "array", value.dtype.name, value.tolist()
    if isinstance(value, np.generic):
        return value.dtype.name, value.item()
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    return value


@pytest.fixture(autouse=True)
def by_python(monkeypatch):
    """Whether or not its library for stores is installed, the reference opens local files itself."""
    monkeypatch.setattr(peer.MultiStorageClientFeature, "_enabled", False)
    monkeypatch.setattr(peer, "gc", SimpleNamespace(collect=lambda: 0))  # a second for each index that is appended


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_pair(folder / "corpus-modes", multimodal=True)
    yield write_pair(folder / "corpus")
    KEPT.clear()


def test_clients_of_a_pair_see_no_difference(prefix):
    expected = {name: plain(case(peer, prefix)) for name, case in PAIR_CASES.items()}
    assert {name: plain(case(ours, prefix)) for name, case in PAIR_CASES.items()} == expected
    assert "nothing" not in expected.values()


def test_clients_of_a_builder_see_no_difference(prefix, tmp_path):
    found = []
    for module in (ours, peer):
        results = {}
        for name, case in BUILDER_CASES.items():
            folder = tmp_path / module.__name__ / name
            folder.mkdir(parents=True)
            results[name] = plain(case(module, folder, prefix))
        found.append(results)
    assert found[0] == found[1]
    assert "nothing" not in found[1].values()


def two_items(builder):
    builder.add_item(DRAWN, 1)
    builder.add_item(DRAWN, 2)
    builder.end_document()


def modes_of(module, folder):
    build(module, folder, two_items, multimodal=True)
    return open_pair(module, f"{folder}/built", multimodal=True).sequence_modes.tolist()


DIFFERENCES = {
    "tokens that follow a sequence": (
        lambda m, f, p: open_pair(m, p).get(0, 0, 4).tolist(),
        [5, 6, 7, 8],
        IndexError,
    ),
    "counts of other data are believed": (
        lambda m, f, p: len(open_pair(m, p, sequences_per_dataset=(4, 5), dtype_code=8, fast_cache_load=True)[0]),
        3,
        AssertionError,
    ),
    "a dtype of other data is believed": (
        lambda m, f, p: len(open_pair(m, p, sequences_per_dataset=(5, 5), dtype_code=1)[0]),
        3,
        AssertionError,
    ),
    "lengths that are not those of the tokens": (
        lambda m, f, p: len(build(m, f, lambda b: b.add_document([1, 2], [5]))),
        2,
        ValueError,
    ),
    "ids that have no room": (
        lambda m, f, p: len(build(m, f, lambda b: b.add_document(torch.tensor([70000]), [1]))),
        2,
        OverflowError,
    ),
    "modes of several sequences": (lambda m, f, p: modes_of(m, f), ValueError, [1, 2]),
    "a path with its extension": (lambda m, f, p: len(open_pair(m, f"{p}.bin")), AssertionError, 5),
    "a dtype that is no scalar type": (
        lambda m, f, p: len(build(m, f, two_items, dtype=np.dtype(np.int16))),
        AttributeError,
        2,
    ),
    "an item that is no tensor": (lambda m, f, p: len(build(m, f, lambda b: b.add_item([1]))), AttributeError, None),
}
"""What is other on purpose: a client, what it sees of the reference, and of ours."""


def test_differences_are_the_documented_ones(prefix, tmp_path):
    for number, (name, (case, *expected)) in enumerate(DIFFERENCES.items()):
        for module, wanted in zip((peer, ours), expected, strict=True):
            folder = tmp_path / f"{module.__name__}-{number}"
            folder.mkdir()
            if isinstance(wanted, type):
                with pytest.raises(wanted):
                    case(module, folder, prefix)
            elif wanted is not None:
                assert case(module, folder, prefix) == wanted, name
