import copy
import os
import pickle
import tracemalloc

import numpy as np
import pytest
from tests.indexed.pairs import INTEGERS, write_pair
from tests.rendering.cards import tables_of, text_of
from tests.support import write_corpus

from tokenloom import IndexedDataset
from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, StorageError
from tokenloom.indexed.dataset import PERCENTILES, DatasetStatistics
from tokenloom.indexed.layout import HEADER_BYTES
from tokenloom.indexed.prefixes import prefixes_in, sequence_counts
from tokenloom.rendering.words import name_of

CORPUS = [[[10, 11, 12], [13]], [], [[], [14, 15, 16, 17]], [[18]]]
SEQUENCES = [[10, 11, 12], [13], [], [14, 15, 16, 17], [18]]


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "corpus", CORPUS)


@pytest.fixture(params=[True, False], ids=["mapped", "positional"])
def dataset(prefix, request):
    return IndexedDataset(prefix, mmap=request.param)


def test_counts(dataset, prefix):
    assert (len(dataset), dataset.num_documents, dataset.num_tokens, dataset.dtype) == (5, 4, 9, np.int32)
    expected = f"IndexedDataset({prefix!r}, num_sequences=5, num_documents=4, num_tokens=9, dtype=int32)"
    assert repr(dataset) == expected


def test_arrays_of_the_index(dataset):
    expected = {
        "sequence_lengths": ([3, 1, 0, 4, 1], np.int32),
        "sequence_pointers": ([0, 12, 16, 16, 32], np.int64),
        "document_indices": ([0, 2, 2, 4, 5], np.int64),
    }
    for name, (values, dtype) in expected.items():
        array = getattr(dataset.index, name)
        assert array.tolist() == values
        assert array.dtype == dtype
        assert not array.flags.writeable
    assert dataset.sequence_lengths.tolist() == expected["sequence_lengths"][0]
    assert dataset.document_indices is dataset.get_document_indices()
    assert dataset.index.sequence_modes is None


def test_a_sequence_by_number(dataset):
    for integer in (int, np.int64, np.uint8, np.int8):
        for row, expected in enumerate(SEQUENCES):
            tokens = dataset[integer(row)]
            assert tokens.tolist() == expected
            assert tokens.dtype == np.int32
    assert [tokens.tolist() for tokens in dataset] == SEQUENCES
    assert [dataset[-row].tolist() for row in range(1, 6)] == SEQUENCES[::-1]
    assert dataset.get(np.int64(-2), offset=1).tolist() == [15, 16, 17]


@pytest.mark.parametrize("row", [5, -6, 2**40, -(2**40), np.int64(5)])
def test_numbers_outside_are_refused(dataset, row):
    for read in (dataset.__getitem__, dataset.get):
        with pytest.raises(IndexError) as caught:
            read(row)
        assert str(caught.value) == f"sequence {row} of `{dataset.path_prefix}` out of range: there are 5 sequences"


def test_other_types_are_refused(dataset):
    for row in (1.0, "1", None, [1], np.float64(1)):
        with pytest.raises(TypeError, match=f"must be an integer or a slice, got {type(row).__name__}"):
            dataset[row]


SLICES = [
    slice(None), slice(0, 2), slice(1, 4), slice(2, 3), slice(-2, None), slice(None, -1), slice(0, 100), slice(3, 1),
    slice(5, 9), slice(0, 0), slice(0, 5, 1), slice(np.int64(1), np.int64(3)), slice(-100, 2),
]  # fmt: skip


def test_a_slice_gives_a_list(dataset):
    for rows in SLICES:
        sequences = dataset[rows]
        assert isinstance(sequences, list)
        assert [tokens.tolist() for tokens in sequences] == SEQUENCES[rows]
        assert all(tokens.dtype == np.int32 for tokens in sequences)
    for step in (2, -1, 5):
        with pytest.raises(ValueError, match=f"slice: must have a step of 1, got {step}"):
            dataset[::step]


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, None, [14, 15, 16, 17]),
        (1, None, [15, 16, 17]),
        (4, None, []),
        (0, 2, [14, 15]),
        (2, 2, [16, 17]),
        (3, 0, []),
        (np.int64(1), np.int32(2), [15, 16]),
    ],
)
def test_a_part_of_a_sequence(dataset, offset, length, expected):
    assert dataset.get(3, offset, length).tolist() == expected
    assert dataset.get(3, offset=offset, length=length).tolist() == expected


@pytest.mark.parametrize(
    ("offset", "length"), [(5, None), (0, 5), (-1, 2), (2, -1), (4, 1), (-1, None), (2**62, 2**62)]
)
def test_a_part_that_leaves_its_sequence_is_refused(dataset, offset, length):
    stop = 4 if length is None else offset + length
    with pytest.raises(IndexError) as caught:
        dataset.get(3, offset, length)
    expected = f"tokens [{offset}, {stop}) of sequence 3 of `{dataset.path_prefix}` out of range: there are 4 tokens"
    assert str(caught.value) == expected


def gather(dataset, *spans):
    sequences, starts, lengths = (np.array(column, dtype=np.int64) for column in zip(*spans, strict=True))
    return dataset.gather(sequences, starts, lengths)


def test_gather_joins_spans(dataset):
    assert gather(dataset, (3, 1, 2), (0, 0, 3), (2, 0, 0), (4, 0, 1), (3, 4, 0)).tolist() == [15, 16, 10, 11, 12, 18]
    nothing, one, two = (np.zeros(size, dtype=np.int64) for size in range(3))
    assert dataset.gather(nothing, nothing, nothing).tolist() == []
    rows = np.tile(np.array([0, 3]), 10)  # more tokens than the file has
    lengths = dataset.sequence_lengths[rows].astype(np.int64)
    assert dataset.gather(rows, np.zeros_like(rows), lengths).tolist() == [10, 11, 12, 14, 15, 16, 17] * 10
    with pytest.raises(ValueError, match="got 2 sequences, 1 starts and 2 lengths"):
        dataset.gather(two, one, two)


@pytest.mark.parametrize("dtype", [*INTEGERS, np.float32, np.float64])
def test_gather_keeps_the_dtype(tmp_path, dtype):
    prefix = write_pair(tmp_path / "typed", [[[1, 2, 3]], [[4, 5]]], dtype=dtype)
    for mmap in (True, False):
        tokens = gather(IndexedDataset(prefix, mmap=mmap), (1, 0, 2), (0, 1, 1))
        assert tokens.dtype == dtype
        assert tokens.tolist() == [4, 5, 2]


@pytest.mark.parametrize("span", [(3, 0, 5), (3, -1, 2), (3, 2, -1), (3, 2**62, 1), (3, 5, 0)])
def test_gather_refuses_spans_that_leave_their_sequence(dataset, span):
    with pytest.raises(IndexError) as caught:
        gather(dataset, (0, 0, 3), span)
    expected = f"tokens [{span[1]}, {span[1] + span[2]}) of sequence 3 of `{dataset.path_prefix}`"
    assert str(caught.value) == f"{expected} out of range: there are 4 tokens"


@pytest.mark.parametrize("row", [5, -1, 2**62])
def test_gather_refuses_unknown_sequences(dataset, row):
    with pytest.raises(IndexError, match=f"sequence {row} of .* out of range: there are 5"):
        gather(dataset, (0, 0, 3), (row, 0, 1))


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "positional"])
def test_gather_compares_lengths_with_the_file_before_it_asks_for_memory(prefix, mmap):
    with open(f"{prefix}.idx", "r+b") as stream:
        stream.seek(HEADER_BYTES)
        stream.write(np.array([2**31 - 1] * 4, dtype=np.int32).tobytes())
    dataset = IndexedDataset(prefix, mmap=mmap)
    rows = np.tile(np.arange(4), 100)
    starts, lengths = np.zeros_like(rows), dataset.sequence_lengths[rows].astype(np.int64)
    tracemalloc.start()
    try:
        with pytest.raises(StorageError, match=r"bytes \[0, 8589934588\) out of range: `.*corpus.bin` has 36"):
            dataset.gather(rows, starts, lengths)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mmap", [True, False])
def test_a_multimodal_dataset_returns_modes(tmp_path, mmap):
    prefix = write_pair(tmp_path / "modes", CORPUS, multimodal=True)
    dataset = IndexedDataset(prefix, multimodal=True, mmap=mmap)
    assert dataset.sequence_modes.tolist() == [0, 1, 0, 1, 0]
    assert dataset.sequence_modes.dtype == np.int8
    tokens, mode = dataset[1]
    assert (tokens.tolist(), mode) == ([13], 1)
    tokens, mode = dataset.get(3, 1, 2)
    assert (tokens.tolist(), mode) == ([15, 16], 1)
    sequences, modes = dataset[1:4]
    assert [tokens.tolist() for tokens in sequences] == SEQUENCES[1:4]
    assert modes.tolist() == [1, 0, 1]
    sequences, modes = dataset[3:1]
    assert (sequences, modes.tolist()) == ([], [])


def test_a_text_reader_has_no_modes(tmp_path):
    dataset = IndexedDataset(write_pair(tmp_path / "modes", CORPUS, multimodal=True))
    assert dataset[1].tolist() == [13]
    with pytest.raises(ConfigError, match="was opened without modes") as caught:
        _ = dataset.sequence_modes
    assert caught.value.hint == "open it with `multimodal=True`"


@pytest.mark.parametrize("copied", [lambda value: pickle.loads(pickle.dumps(value)), copy.copy, copy.deepcopy])
def test_a_copy_opens_the_files_again(tmp_path, copied):
    prefix = write_pair(tmp_path / "modes", CORPUS, multimodal=True)
    again = copied(IndexedDataset(prefix, multimodal=True, mmap=False, sequences_per_dataset=(5, 5), dtype_code=4))
    assert (again.path_prefix, again.multimodal, again.mmap) == (prefix, True, False)
    assert (again.sequences_per_dataset, again.dtype_code) == ((5, 5), 4)
    assert again[3][0].tolist() == [14, 15, 16, 17]


def test_a_pickle_holds_no_tokens_and_is_checked_again(tmp_path):
    prefix = write_pair(tmp_path / "large", [[list(range(10_000))]])
    state = pickle.dumps(IndexedDataset(prefix))
    assert len(state) < 1000
    os.truncate(f"{prefix}.bin", 4)
    with pytest.raises(DatasetFormatError, match="expected 40000 bytes"):
        pickle.loads(state)


def test_a_dataset_survives_a_fork(dataset):
    child = os.fork()
    if child == 0:
        os._exit(0 if [tokens.tolist() for tokens in dataset[:]] == SEQUENCES else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("mmap", [True, False])
def test_an_empty_dataset_can_be_read(tmp_path, mmap):
    dataset = IndexedDataset(write_pair(tmp_path / "empty", []), mmap=mmap)
    assert (len(dataset), dataset.num_documents, dataset.num_tokens) == (0, 0, 0)
    assert (dataset[:], list(dataset), dataset.document_indices.tolist()) == ([], [], [0])
    with pytest.raises(IndexError, match=r"sequence 0 of .* out of range: there are 0"):
        dataset[0]


def test_mapped_tokens_are_views(prefix):
    tokens = IndexedDataset(prefix)[0]
    assert (tokens.flags.owndata, tokens.flags.writeable) == (False, False)


def test_a_pair_that_is_not_there_is_named_with_a_near_one_or_as_incomplete(prefix):
    with pytest.raises(FileNotFoundError) as caught:
        IndexedDataset(prefix[:-2])
    expected = f"no file `{prefix[:-2]}.idx` and `{prefix[:-2]}.bin`\nhint: did you mean `{prefix}`?"
    assert str(caught.value) == expected
    os.unlink(f"{prefix}.idx")
    assert not IndexedDataset.exists(prefix)
    with pytest.raises(DatasetNotFoundError) as caught:
        IndexedDataset(prefix)
    hint = "the pair is incomplete: write it again, or move both files together"
    assert (caught.value.message, caught.value.hint) == (f"no file `{prefix}.idx`", hint)


def test_recorded_counts_and_dtypes_are_checked(prefix):
    recorded = {"sequences_per_dataset": (5, 5), "fast_cache_load": True, "dtype_code": 4}
    assert len(IndexedDataset(prefix, **recorded)) == 5
    with pytest.raises(DatasetFormatError) as caught:
        IndexedDataset(prefix, sequences_per_dataset=(5, 4))
    expected = f"`{prefix}.idx`: expected (5, 4) sequences and boundaries, found (5, 5)"
    assert caught.value.message == expected
    with pytest.raises(DatasetFormatError, match=r"expected dtype code 8, found 4 \(int32\)"):
        IndexedDataset(prefix, dtype_code=8)


def test_either_file_may_be_named_instead_of_the_prefix(prefix):
    for name in (prefix, f"{prefix}.bin", f"{prefix}.idx"):
        assert IndexedDataset(name).path_prefix == prefix
        assert IndexedDataset.exists(name)


def test_statistics_of_a_small_dataset(tmp_path):
    prefix = write_pair(tmp_path / "corpus", [[[1, 2, 3], [4]], [[]], [[5, 6]], []], dtype=np.uint16)
    counts = {"num_sequences": 4, "num_documents": 4, "num_tokens": 6, "num_bytes": 12, "dtype": "uint16"}
    lengths = {"shortest": 0, "longest": 3, "mean_length": 1.5, "num_empty": 1}
    lengths["percentiles"] = ((1, 0), (5, 0), (25, 0), (50, 1), (75, 2), (95, 2), (99, 2))
    lengths["histogram"] = ((0, 1, 1), (1, 2, 1), (2, 4, 2))
    assert IndexedDataset(prefix).statistics() == DatasetStatistics(**counts, **lengths)


def test_statistics_agree_with_numpy(tmp_path, rng):
    lengths = rng.integers(0, 5000, size=int(rng.integers(1, 500))).tolist()
    statistics = IndexedDataset(write_corpus(tmp_path / "made", map(np.zeros, lengths))).statistics()
    assert statistics.mean_length == pytest.approx(np.mean(lengths))
    assert (statistics.shortest, statistics.longest) == (min(lengths), max(lengths))
    assert sum(count for _, _, count in statistics.histogram) == len(lengths)
    for start, stop, count in statistics.histogram:
        assert count == sum(start <= length < stop for length in lengths)
    ordered = sorted(lengths)
    assert [percent for percent, _ in statistics.percentiles] == list(PERCENTILES)
    for percent, tokens in statistics.percentiles:
        assert tokens == ordered[(len(lengths) - 1) * percent // 100]


def test_a_pair_shows_its_counts(tmp_path):
    prefix = write_corpus(tmp_path / "a", [[1] * 16, [1] * 16, [1] * 100])
    dataset = IndexedDataset(prefix)
    [[path, *counts]] = tables_of(dataset._repr_html_())
    assert path == ["path", name_of(prefix, width=120)]
    assert [*map(" ".join, counts)] == ["documents 3", "sequences 3", "tokens 132", "dtype uint16", "bytes 264"]
    assert text_of(dataset._repr_html_()).startswith("IndexedDataset")


def test_prefixes_of_a_folder_are_sorted_by_name(tmp_path):
    for name in ("b", "a", "a-1", "a.b", "A"):
        write_pair(tmp_path / name, [])
    (tmp_path / ".hidden.bin").touch()
    (tmp_path / "notes.txt").touch()
    assert prefixes_in(str(tmp_path)) == [f"{tmp_path}/{name}" for name in ("A", "a", "a-1", "a.b", "b")]


@pytest.mark.parametrize(("kept", "missing"), [("bin", "idx"), ("idx", "bin")])
def test_half_a_pair_in_a_folder_is_named(tmp_path, kept, missing):
    (tmp_path / f"a.{kept}").touch()
    with pytest.raises(DatasetNotFoundError) as caught:
        prefixes_in(str(tmp_path))
    assert caught.value.message == f"`{tmp_path}`: the pair `a` is incomplete, `a.{missing}` is missing"


def test_a_folder_without_pairs_and_a_missing_folder_are_named(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"`: contains no \.bin/\.idx pair"):
        prefixes_in(str(tmp_path))
    with pytest.raises(StorageError, match=r"cannot list `.*absent`: No such file or directory"):
        prefixes_in(f"{tmp_path}/absent")


def test_counts_are_sequences_and_boundaries(tmp_path):
    one = write_pair(tmp_path / "one", [[[1, 2], [3]], [], [[4]]])
    none = write_pair(tmp_path / "none", [])
    assert sequence_counts([one, f"{none}.idx"]) == {one: [3, 4], none: [0, 1]}
