"""Which record each document was made of: found forwards and backwards, in memory and beside a pair."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from tests.indexed.origins import add_origins, all_records, files_of, random_runs, records_of, runs_of, runs_of_records
from tests.indexed.pairs import write_pair

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError
from tokenloom.indexed.layout import column_path, columns_path
from tokenloom.indexed.origins import OriginFile, Origins, joined_origins, read_origins


def small() -> Origins:
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
    with pytest.raises(ConfigError, match="expected documents from 0 to 5, found"):
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
    with pytest.raises(DatasetFormatError, match=r"other.columns.json` was written for another pair"):
        read_origins(other)
    with pytest.raises(DatasetNotFoundError):
        read_origins(str(tmp_path / "none"))


def test_more_files_than_16_bits_count_keep_their_numbers():
    files = files_of(*(f"{number}.jsonl" for number in range(40_000)))
    origins = Origins.from_runs(files, [runs_of([(0, 1, 1), (39_999, 4, 1)])])
    found = Origins.from_runs(*joined_origins([(origins, range(2), None)]))
    assert [each.tolist() for each in found.locate(np.arange(2))] == [[0, 39_999], [1, 4]]
