import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed.columns import put_origins
from tests.indexed.origins import add_origins, all_records, files_of, random_runs, records_of, runs_of, runs_of_records
from tests.indexed.pairs import write_pair

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError
from tokenloom.indexed.layout import column_path, columns_path
from tokenloom.indexed.origins import OriginFile, Origins, joined_origins, joined_runs, read_origins, selected_runs

RUNS = st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 5), st.integers(0, 3)), max_size=8).map(runs_of)


@given(RUNS)
def test_joining_changes_no_document(runs):
    joined = joined_runs(runs)
    assert records_of(joined) == records_of(runs)
    assert len(joined_runs(joined)) == len(joined)
    assert joined["num_documents"].all()


@given(RUNS, st.randoms(use_true_random=False))
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


def small():
    runs = runs_of([(0, 1, 2), (0, 4, 1), (-1, 0, 1), (1, 1, 2)])
    return Origins.from_runs(files_of("a.jsonl", "b.jsonl"), [runs])


def test_documents_are_found_in_their_files():
    files, records = small().locate(np.array([5, 0, 2, 3, 0]))
    assert files.tolist() == [1, 0, 0, -1, 0]
    assert records.tolist() == [2, 1, 4, 0, 1]
    assert (files.dtype, records.dtype) == (np.int32, np.int64)


def test_records_are_found_in_the_pair():
    origins = small()
    assert origins.documents_of(0, 4).tolist() == [2]
    assert origins.documents_of(0, 3).tolist() == []
    assert origins.documents_of(1, 99).tolist() == []
    twice = Origins.from_runs(*joined_origins([(origins, range(6), None)] * 2))
    assert twice.documents_of(0, 4).tolist() == [2, 8]


@pytest.mark.parametrize("asked", [[6], [-1], [0, 100]])
def test_documents_beyond_the_pair_are_refused(asked):
    with pytest.raises(ConfigError, match="out of range: there are 6"):
        small().locate(np.array(asked))


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


def test_origins_of_another_pair_are_refused(tmp_path):
    prefix = write_pair(tmp_path / "pair", [[[1]]] * 6)
    add_origins(prefix, small())
    write_pair(tmp_path / "other", [[[1]]] * 5)
    other = str(tmp_path / "other")
    os.rename(column_path(prefix, "origins"), column_path(other, "origins"))
    os.rename(columns_path(prefix), columns_path(other))
    with pytest.raises(DatasetFormatError, match=r"other.columns.json`: belongs to another pair"):
        read_origins(other)
    with pytest.raises(DatasetNotFoundError):
        read_origins(str(tmp_path / "none"))


def test_more_files_than_16_bits_count_keep_their_numbers():
    files = files_of(*(f"{number}.jsonl" for number in range(40_000)))
    origins = Origins.from_runs(files, [runs_of([(0, 1, 1), (39_999, 4, 1)])])
    found = Origins.from_runs(*joined_origins([(origins, range(2), None)]))
    assert [each.tolist() for each in found.locate(np.arange(2))] == [[0, 39_999], [1, 4]]


@pytest.fixture
def path(tmp_path):
    prefix = write_pair(tmp_path / "some", [[[1]]] * 6)
    runs = [runs_of([(0, 1, 3)]), runs_of([(0, 4, 1), (-1, 9, 1)]), runs_of([(1, 2, 1)])]
    files = files_of("a.jsonl", "b.jsonl")
    put_origins(prefix, files, runs)
    return Path(f"{prefix}.origins.npy")


def read(path):
    origins = read_origins(str(path).removesuffix(".origins.npy"))
    assert origins is not None
    return all_records(origins)


def test_the_bytes_are_those_of_the_format(path):
    assert path.read_bytes()[128:] == struct.pack("<9q", 0, 0, 1, 4, -1, 0, 5, 1, 2)
    columns = json.loads(path.with_name("some.columns.json").read_bytes())["columns"]
    files = [{"path": each, "num_bytes": 7, "unit": "line"} for each in ("a.jsonl", "b.jsonl")]
    assert columns["origins"]["about"] == {"files": files}
    assert read(path) == [(0, 1), (0, 2), (0, 3), (0, 4), (-1, 0), (1, 2)]


@pytest.mark.parametrize(
    ("offset", "kind", "value"),
    [
        (0, "q", 1),  # the first document
        (8, "q", 2),  # file
        (8, "q", -2),
        (8, "q", -1),  # which has no record
        (16, "q", 0),  # record
        (16, "q", 1 << 60),
        (24, "q", 9),  # the first document of the second run
        (24, "q", -(1 << 62)),
    ],
)
def test_runs_that_cannot_be_are_refused_without_a_checksum(path, offset, kind, value):
    data = bytearray(path.read_bytes())
    struct.pack_into(f"<{kind}", data, 128 + offset, value)
    path.write_bytes(data)
    with pytest.raises(DatasetFormatError, match="expected a valid run"):
        read(path)
    origins = read_origins(str(path).removesuffix(".origins.npy"))
    with pytest.raises(DatasetFormatError, match="expected a valid run"):
        origins.locate(np.arange(6))
