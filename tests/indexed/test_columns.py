import json
import os
import shutil
import struct
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.indexed.columns import put_origins, read_hashes
from tests.indexed.origins import all_records, files_of, random_runs, records_of, runs_of, runs_of_records
from tests.indexed.pairs import write_pair

from tokenloom import IndexedDataset
from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, OutputExistsError, TokenloomError
from tokenloom.indexed.columns import ScatteredColumn, add_column, open_column, read_columns, remove_column
from tokenloom.indexed.manifests import index_start_crc32
from tokenloom.indexed.origins import OriginFile, Origins, joined_origins, joined_runs, read_origins, selected_runs
from tokenloom.indexed.roles import PartKind, read_roles
from tokenloom.indexed.verify import verify_dataset

CORPUS = [[[1, 2, 3], [4]], [], [[5, 6]]]
"""Six tokens in three sequences and three documents."""


@pytest.fixture
def prefix(tmp_path):
    return str(write_pair(tmp_path / "pair", CORPUS))


def names_beside(prefix):
    return sorted(os.listdir(os.path.dirname(prefix)))


def opened(prefix, name):
    column = open_column(IndexedDataset(prefix), name)
    assert column is not None
    return column.data


def test_the_bytes_are_those_of_the_format(prefix):
    blocks = [np.array([0.5, 1.0]), np.array([2.0, 0.25, 0.0, 1.0])]
    add_column(prefix, "weight", blocks, dtype="float16", of="label", padding=1, made_by="a test")
    data = Path(f"{prefix}.weight.npy").read_bytes()
    header = b"{'descr': '<f2', 'fortran_order': False, 'shape': (6,), }"
    assert data[:10] == b"\x93NUMPY\x01\x00\x76\x00"
    assert data[10:128] == header.ljust(117) + b"\n"
    assert data[128:] == np.array([0.5, 1, 2, 0.25, 0, 1], dtype="<f2").tobytes()
    index = IndexedDataset(prefix).index
    found = json.loads(Path(f"{prefix}.columns.json").read_bytes())
    assert len(found.pop("pair")) == 64
    start_crc32 = f"{index_start_crc32(index.header, index.sequence_lengths):08x}"
    weight = {"kind": "token", "dtype": "float16", "shape": [6], "num_bytes": len(data)}
    weight |= {"crc32": f"{zlib.crc32(data):08x}", "of": "label", "padding": 1.0, "made_by": "a test", "about": {}}
    expected = {"format": "tokenloom columns", "version": 1, "index_start_crc32": start_crc32}
    assert found == expected | {"columns": {"weight": weight}}


@pytest.mark.parametrize(
    ("kind", "dtype", "rows"),
    [
        ("token", "float32", np.arange(6) / 7),
        ("token", "uint16", np.arange(18).reshape(6, 3)),
        ("sequence", "bool", np.array([True, False, True])),
        ("document", "int64", np.array([-1, 2**62, 0])),
        ("document", "float64", np.zeros((3, 0))),
    ],
)
def test_numpy_and_we_read_what_was_added(prefix, kind, dtype, rows):
    add_column(prefix, "x", [rows[:1], rows[1:]], dtype=dtype, kind=kind)
    add_column(prefix, "whole", rows, dtype=dtype, kind=kind)
    assert np.array_equal(opened(prefix, "whole"), opened(prefix, "x"))
    for found in (opened(prefix, "x"), np.load(f"{prefix}.x.npy", allow_pickle=False)):
        assert found.dtype == dtype
        assert np.array_equal(found, rows.astype(dtype))
    assert verify_dataset(prefix).ok


def test_a_column_is_replaced_or_removed_when_that_is_asked_for(prefix):
    add_column(prefix, "a", [np.zeros(6)], dtype="uint8")
    add_column(prefix, "b", [np.ones(6)], dtype="uint8")
    with pytest.raises(OutputExistsError, match=r"pair\.a\.npy` exists"):
        add_column(prefix, "a", [np.ones(6)], dtype="uint8")
    assert opened(prefix, "a").tolist() == [0] * 6
    add_column(prefix, "a", [np.full(6, 7)], dtype="int32", overwrite=True)
    assert opened(prefix, "a").tolist() == [7] * 6
    remove_column(prefix, "a")
    assert [*read_columns(IndexedDataset(prefix))] == ["b"]
    with pytest.raises(DatasetNotFoundError, match="has no column `a`\nhint: the columns of the pair are: b"):
        remove_column(prefix, "a")
    remove_column(prefix, "b")
    assert names_beside(prefix) == ["pair.bin", "pair.idx"]


@pytest.mark.parametrize(
    ("options", "blocks", "message"),
    [
        ({}, [np.zeros(5)], "expected 6 rows, one per token, found 5"),
        ({"kind": "document"}, [np.zeros(6)], "expected 3 rows, one per document, found 6"),
        ({}, [np.zeros(3), np.zeros((3, 2))], r"column `x`: expected rows of shape \[\], found \[2\]"),
        ({"dtype": "uint8"}, [np.array([1, 2, 300, 4, 5, 6])], "column `x`: value 300 does not fit uint8"),
        ({"dtype": "uint8"}, [np.array([0.5] * 6)], r"column `x`: value 0\.5 does not fit uint8"),
        ({"dtype": object}, [np.zeros(6)], "of at most 8 bytes, got <class 'object'>"),
        ({"dtype": "U4"}, [np.zeros(6)], "of at most 8 bytes, got 'U4'"),
        ({"kind": "word"}, [np.zeros(6)], "`kind`: must be one of token, sequence, document, runs, got 'word'"),
        ({"kind": "runs"}, [np.zeros((1, 3))], "got 'runs', which only preprocessing writes"),
        ({"padding": -1, "dtype": "uint8"}, [np.zeros(6)], "`padding`: -1 does not fit uint8"),
        ({"padding": float("nan")}, [np.zeros(6)], "`padding`: nan does not fit float32"),
        ({"name": "a/b"}, [np.zeros(6)], "`name`: must be a letter, .* got 'a/b'"),
        ({"name": ""}, [np.zeros(6)], "`name`: must be a letter, .* got ''"),
    ],
)
def test_what_is_no_column_is_refused_and_leaves_nothing(prefix, options, blocks, message):
    with pytest.raises(TokenloomError, match=message):
        add_column(prefix, **{"name": "x", "dtype": "float32", "blocks": blocks, **options})
    assert names_beside(prefix) == ["pair.bin", "pair.idx"]


def npy(values, **options):
    return lambda path: np.save(path, np.asarray(values, **options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (npy([0.0] * 5, dtype="float32"), r"expected 152 bytes, found 148"),
        (npy([0] * 6, dtype="int32"), r"expected a NumPy file of float32\[6\] in C order"),
        (npy([[0.0]] * 6, dtype="float32"), r"expected a NumPy file of float32\[6\] in C order"),
        (lambda path: path.write_bytes(b"\0" * 152), r"expected a NumPy file of float32\[6\] in C order"),
        (lambda path: path.write_bytes(path.read_bytes()[:20]), "expected 152 bytes, found 20"),
        (lambda path: path.unlink(), r"no file `.*pair\.x\.npy`, which `.*pair\.columns\.json` describes"),
    ],
)
def test_a_file_that_is_not_as_described_is_refused(prefix, change, message):
    add_column(prefix, "x", [np.zeros(6)], dtype="float32")
    change(Path(f"{prefix}.x.npy"))
    with pytest.raises((DatasetFormatError, DatasetNotFoundError), match=message):
        open_column(IndexedDataset(prefix), "x")
    assert len(verify_dataset(prefix).problems) == 1


def test_fortran_order_is_refused_and_a_changed_value_found_by_reading_all(prefix):
    add_column(prefix, "x", [np.zeros((6, 2))], dtype="float32")
    np.save(f"{prefix}.x.npy", np.asfortranarray(np.zeros((6, 2), dtype=np.float32)))
    with pytest.raises(DatasetFormatError, match=r"expected a NumPy file of float32\[6, 2\] in C order"):
        open_column(IndexedDataset(prefix), "x")
    remove_column(prefix, "x")
    add_column(prefix, "x", [np.zeros(6)], dtype="uint8")
    np.save(f"{prefix}.x.npy", np.array([0, 0, 0, 0, 0, 1], dtype=np.uint8))
    column = open_column(IndexedDataset(prefix), "x")
    with pytest.raises(DatasetFormatError, match=r"pair\.x\.npy`: expected CRC-32 "):
        column.verify()
    assert "expected CRC-32" in verify_dataset(prefix).problems[0]


def test_columns_of_another_pair_are_refused(prefix, tmp_path):
    add_column(prefix, "x", [np.zeros(6)], dtype="uint8")
    for name, last in ("longer", [5, 6, 7]), ("as-long", [5, 9]):
        other = write_pair(tmp_path / name, [*CORPUS[:2], [last]])
        for suffix in ("x.npy", "columns.json"):
            shutil.copyfile(f"{prefix}.{suffix}", f"{other}.{suffix}")
        with pytest.raises(DatasetFormatError, match=rf"{name}.*`: belongs to another pair"):
            open_column(IndexedDataset(other), "x")
    with pytest.raises(DatasetNotFoundError):
        read_origins(str(tmp_path / "none"))
    os.unlink(f"{prefix}.columns.json")
    with pytest.raises(DatasetNotFoundError, match=r"pair\.columns\.json` does not describe `.*pair\.x\.npy`"):
        open_column(IndexedDataset(prefix), "x")
    assert open_column(IndexedDataset(prefix), "y") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "expected version 1, found 2"),
        ({"columns": []}, "expected `columns` to be an object"),
        ({"index_start_crc32": "00000000"}, "belongs to another pair"),
    ],
)
def test_a_damaged_description_is_refused(prefix, change, message):
    add_column(prefix, "x", [np.zeros(6)], dtype="uint8")
    path = Path(f"{prefix}.columns.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DatasetFormatError, match=message):
        read_columns(IndexedDataset(prefix))
    assert len(verify_dataset(prefix).problems) == 1


def test_verifying_names_the_first_value_that_is_no_number(prefix):
    add_column(prefix, "x", [np.array([0, 0, 0, 0, 0, np.nan])], dtype="float32")
    expected = f"`{prefix}.x.npy`: expected numbers, found NaN at token 1 of document 2"
    assert verify_dataset(prefix).problems == (expected,)
    add_column(prefix, "y", [np.array([0, np.nan, 0])], dtype="float32", kind="document")
    assert verify_dataset(prefix).problems[1].endswith("found NaN for document 1")


def test_hashes_are_a_column_and_a_pair_that_is_replaced_loses_its_columns(prefix):
    hashes = np.array([[1, 2], [3, 4], [5, 2**64 - 1]], dtype=np.uint64)
    add_column(prefix, "hashes", [hashes], dtype=np.uint64, kind="document")
    assert np.array_equal(read_hashes(prefix), hashes)
    write_pair(prefix, [[[1]]])
    assert names_beside(prefix) == ["pair.bin", "pair.idx"]


def test_a_failed_writer_leaves_nothing(prefix):
    def blocks():
        yield np.zeros(3)
        raise ConfigError("the teacher is out")

    with pytest.raises(ConfigError, match="the teacher is out"):
        add_column(prefix, "x", blocks(), dtype="float32")
    assert names_beside(prefix) == ["pair.bin", "pair.idx"]


def test_rows_are_written_in_any_order_by_any_process_until_all_are_there(prefix):
    def scattered(**changes):
        return ScatteredColumn(prefix, "teacher", **{"dtype": "uint16", "width": 2, **changes})

    rows = np.arange(12).reshape(6, 2)
    with scattered() as column:
        column.write(2, rows[5:], offset=1)
        column.write(0, rows[1:3], offset=1)
        gap = "`teacher`: 3 tokens have no row, the first one at token 0 of document 0"
        with pytest.raises(ConfigError, match=gap):
            column.finish()
        for wrong, offset in ((rows[:2], 1), (rows[:3], 0), (rows[:1], -1)):
            with pytest.raises(ConfigError, match=rf"tokens \[{offset}, .*\) of sequence 2 do not exist"):
                column.write(2, wrong, offset=offset)
        with pytest.raises(ConfigError, match=r"`teacher`: expected rows of shape \[2\], found \[\]"):
            column.write(2, rows[:1, 0])
    with pytest.raises(ConfigError, match="pass the dtype and width that the column was begun with"):
        scattered(dtype="uint8")
    child = os.fork()
    if child == 0:
        with scattered() as column:
            column.write(1, rows[3:4])
        os._exit(0)
    os.waitpid(child, 0)
    with scattered() as column:
        assert column.num_missing() == 2
        column.write(0, rows[:1] + 50)
        column.write(0, rows[:1])
        column.write(2, rows[4:5])
        assert column.finish(padding=1, of="label").padding == 1
    assert np.array_equal(opened(prefix, "teacher"), rows)
    assert names_beside(prefix) == ["pair.bin", "pair.columns.json", "pair.idx", "pair.teacher.npy"]
    with scattered() as column:
        column.write(0, rows[:3])
    for resumes, missing in ((True, 3), (False, 6)):
        with scattered(resumes=resumes) as column:
            assert column.num_missing() == missing


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("step", range(10))
def test_a_death_while_a_column_is_replaced_leaves_the_old_or_the_new(prefix, step, looks):
    add_column(prefix, "x", [np.zeros(6)], dtype="uint8")
    child = os.fork()
    if child == 0:
        steps = iter(range(100))

        def dying(call, *paths):
            if next(steps) == step:
                os._exit(0)
            call(*paths)

        os.replace, os.unlink = partial(dying, os.replace), partial(dying, os.unlink)
        add_column(prefix, "x", [np.full(6, 7)], dtype="float32", overwrite=True)
        os._exit(0)
    os.waitpid(child, 0)
    if looks:
        assert opened(prefix, "x").tolist() in ([0] * 6, [7] * 6)
        assert verify_dataset(prefix).ok
    add_column(prefix, "y", [np.ones(6)], dtype="uint8")
    assert opened(prefix, "x").tolist() in ([0] * 6, [7] * 6)
    assert verify_dataset(prefix).ok
    names = [name for name in names_beside(prefix) if not name.endswith(".tmp")]
    assert names == ["pair.bin", "pair.columns.json", "pair.idx", "pair.x.npy", "pair.y.npy"]


DRAWN_RUNS = st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 5), st.integers(0, 3)), max_size=8).map(runs_of)


@given(DRAWN_RUNS)
def test_joining_changes_no_document(runs):
    joined = joined_runs(runs)
    assert records_of(joined) == records_of(runs)
    assert len(joined_runs(joined)) == len(joined)
    assert joined["num_documents"].all()


@given(DRAWN_RUNS, st.randoms(use_true_random=False))
def test_selecting_is_that_of_lists(runs, random):
    records = records_of(runs)
    kept = [random.random() < 0.5 for _ in records]
    chosen = selected_runs(runs, np.array(kept, dtype=np.bool_))
    assert records_of(chosen) == [record for record, keep in zip(records, kept, strict=True) if keep]


def test_a_file_has_counts_and_a_unit():
    with pytest.raises(ConfigError, match="`unit`: must be one of line, row, file, pair, got 'page'"):
        OriginFile(path="a", num_bytes=1, unit="page")
    with pytest.raises(ConfigError, match="num_records of the file"):
        OriginFile(path="a", num_bytes=1, unit="row", num_records=-1)


def test_documents_are_found_in_their_files_and_records_in_the_pair():
    origins = Origins.from_runs(
        files_of("a.jsonl", "b.jsonl"), [runs_of([(0, 1, 2), (0, 4, 1), (-1, 0, 1), (1, 1, 2)])]
    )
    files, records = origins.locate(np.array([5, 0, 2, 3, 0]))
    assert (files.tolist(), records.tolist()) == ([1, 0, 0, -1, 0], [2, 1, 4, 0, 1])
    assert (files.dtype, records.dtype) == (np.int32, np.int64)
    for asked in ([6], [-1], [0, 100]):
        with pytest.raises(ConfigError, match="out of range: only 6 exist"):
            origins.locate(np.array(asked))
    assert [origins.documents_of(*record).tolist() for record in ((0, 4), (0, 3), (1, 99))] == [[2], [], []]
    twice = Origins.from_runs(*joined_origins([(origins, range(6), None)] * 2))
    assert twice.documents_of(0, 4).tolist() == [2, 8]


def test_all_of_it_is_as_with_lists(rng):
    for _ in range(12):
        files = files_of(*"abc")
        runs = random_runs(rng, int(rng.integers(0, 1200)), len(files))
        expected, origins = records_of(runs), Origins.from_runs(files, [runs])
        count = len(expected)
        assert (origins.num_documents, all_records(origins)) == (count, expected)
        kept = rng.random(count) < rng.random()
        chosen = [record for record, keep in zip(expected, kept, strict=True) if keep]
        assert all_records(Origins.from_runs(*joined_origins([(origins, range(count), kept)]))) == chosen
        start, stop = sorted(rng.integers(0, count + 1, 2).tolist())
        cut = Origins.from_runs(files, origins.pieces(range(start, stop)))
        assert all_records(cut) == expected[start:stop]
        parts = [(origins, range(count), kept), (None, range(2), None), (cut, range(stop - start), None)]
        joined = Origins.from_runs(*joined_origins(parts))
        assert all_records(joined) == [*chosen, (-1, 0), (-1, 0), *expected[start:stop]]
        if count:
            asked = rng.integers(0, count, 30)
            found = origins.locate(asked)
            assert list(zip(found[0].tolist(), found[1].tolist(), strict=True)) == [expected[each] for each in asked]
            file, record = expected[asked[0]]
            if file >= 0:
                same = [number for number, each in enumerate(expected) if each == (file, record)]
                assert origins.documents_of(file, record).tolist() == same


def test_files_of_parts_become_one_table():
    one = OriginFile(path="a", num_bytes=1, version="7", unit="line")
    counted = replace(one, num_records=9)
    other = replace(one, version="8")
    parts = [
        Origins.from_runs([one, other], [runs_of_records([(0, 1), (1, 1)])]),
        Origins.from_runs([other, counted], [runs_of_records([(0, 2), (1, 2)])]),
    ]
    joined = Origins.from_runs(*joined_origins([(part, range(2), None) for part in parts]))
    assert joined.files == (counted, other)
    assert all_records(joined) == [(0, 1), (1, 1), (1, 2), (0, 2)]


def test_more_files_than_16_bits_count_keep_their_numbers():
    files = files_of(*(f"{number}.jsonl" for number in range(40_000)))
    origins = Origins.from_runs(files, [runs_of([(0, 1, 1), (39_999, 4, 1)])])
    found = Origins.from_runs(*joined_origins([(origins, range(2), None)]))
    assert [each.tolist() for each in found.locate(np.arange(2))] == [[0, 39_999], [1, 4]]


@pytest.fixture
def origins_path(tmp_path):
    prefix = write_pair(tmp_path / "some", [[[1]]] * 6)
    runs = [runs_of([(0, 1, 3)]), runs_of([(0, 4, 1), (-1, 9, 1)]), runs_of([(1, 2, 1)])]
    files = files_of("a.jsonl", "b.jsonl")
    put_origins(prefix, files, runs)
    return Path(f"{prefix}.origins.npy")


def read_records(origins_path):
    origins = read_origins(str(origins_path).removesuffix(".origins.npy"))
    assert origins is not None
    return all_records(origins)


def test_the_bytes_of_origins(origins_path):
    assert origins_path.read_bytes()[128:] == struct.pack("<9q", 0, 0, 1, 4, -1, 0, 5, 1, 2)
    columns = json.loads(origins_path.with_name("some.columns.json").read_bytes())["columns"]
    files = [{"path": each, "num_bytes": 7, "unit": "line"} for each in ("a.jsonl", "b.jsonl")]
    assert columns["origins"]["about"] == {"files": files}
    assert read_records(origins_path) == [(0, 1), (0, 2), (0, 3), (0, 4), (-1, 0), (1, 2)]


IMPOSSIBLE = {"first document": (0, [1]), "file, which has no record if it is -1": (8, [2, -2, -1])}
IMPOSSIBLE |= {"record": (16, [0, 1 << 60]), "first document of the second run": (24, [9, -(1 << 62)])}


@pytest.mark.parametrize(("offset", "value"), [(at, value) for at, values in IMPOSSIBLE.values() for value in values])
def test_runs_that_cannot_be_are_refused_without_a_checksum(origins_path, offset, value):
    data = bytearray(origins_path.read_bytes())
    struct.pack_into("<q", data, 128 + offset, value)
    origins_path.write_bytes(data)
    with pytest.raises(DatasetFormatError, match="expected valid values in row"):
        read_records(origins_path)
    origins = read_origins(str(origins_path).removesuffix(".origins.npy"))
    with pytest.raises(DatasetFormatError, match="expected valid values in row"):
        origins.locate(np.arange(6))


TALKS = [conversation((PROMPT, [1, 2]), (ANSWER, [3])), conversation(), conversation((ANSWER, [4, 5]), (ANSWER, [6]))]


@pytest.fixture
def talks(tmp_path):
    return write_conversations(tmp_path / "chat", TALKS, tokenizer_sha256="11" * 32)


def test_the_bytes_of_roles(talks):
    assert Path(f"{talks}.roles.npy").read_bytes()[128:] == bytes([128, 0, 129, 129, 1, 129])
    facts = read_columns(IndexedDataset(talks))["roles"]
    assert (facts.kind, facts.dtype, facts.about) == ("token", "uint8", {"tokenizer": "11" * 32})


def test_roles_are_read_back(talks):
    roles = read_roles(IndexedDataset(talks))
    prompt, first, second = (0, 2, PartKind.prompt), (0, 2, PartKind.answer), (2, 3, PartKind.answer)
    assert [roles.of(sequence) for sequence in range(3)] == [[prompt, second], [], [first, second]]


def test_missing_roles_are_named_and_another_column_of_that_name_is_refused(prefix):
    with pytest.raises(DatasetNotFoundError, match=r"no file `.*pair\.roles\.npy` with the roles of the tokens"):
        read_roles(IndexedDataset(prefix))
    add_column(prefix, "roles", [np.zeros(6)], dtype="int16")
    with pytest.raises(DatasetFormatError, match=r"expected one byte per token, found int16\[6\] per token"):
        read_roles(IndexedDataset(prefix))
