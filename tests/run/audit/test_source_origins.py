"""Records of documents of a run, and documents of records, over pairs with and without origins."""

from __future__ import annotations

import numpy as np
import pytest
from tests.indexed import columns
from tests.run.locks import make_lock, make_pair
from tests.support import write_corpus, write_sentences

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import RUNS, OriginFile
from tokenloom.run.audit.source_origins import SourceOrigins
from tokenloom.run.audit.trace import PairRows
from tokenloom.run.lock import LockedSource

A = OriginFile(path="data/crawl/0007.jsonl", num_bytes=100, version="5", unit="line", num_records=20)
B = OriginFile(path="data/books/0007.jsonl", num_bytes=100, unit="line")
C = OriginFile(path="s3://bucket/table.parquet", num_bytes=100, unit="row", num_records=9)


def put_origins(prefix: str, files, runs) -> None:
    """Writes origins beside a pair."""
    columns.put_origins(prefix, files, [np.array(runs, dtype=RUNS)])


def source_of(name: str, *prefixes: str) -> LockedSource:
    counts = [len(IndexedDataset(prefix)) for prefix in prefixes]
    return LockedSource(
        name=name,
        pairs=tuple(make_pair(prefix, num_documents=n) for prefix, n in zip(prefixes, counts, strict=True)),
    )


@pytest.fixture
def prefixes(tmp_path) -> list[str]:
    """Three pairs of four documents: of A and B, of B alone, without origins."""
    found = [write_corpus(tmp_path / name, [[1, 2]] * 4) for name in ("one", "two", "three")]
    put_origins(found[0], [A, B], [(0, 3, 2), (-1, 0, 1), (1, 8, 1)])
    put_origins(found[1], [C, B], [(1, 9, 1), (0, 2, 3)])
    return found


def test_documents_are_found_in_files(prefixes):
    origins = SourceOrigins(make_lock(source_of("web", *prefixes)))
    files, records = origins.locate(0, np.array([11, 7, 0, 1, 2, 3, 4]))
    names = [origins.file_names[file] if file >= 0 else None for file in files]
    assert names == [None, C.path, A.path, A.path, None, B.path, B.path]
    assert records.tolist() == [0, 4, 3, 4, 0, 8, 9]
    assert (files.dtype, records.dtype) == (np.int32, np.int64)
    assert origins.files == [A, B, C]
    assert origins.missing == [prefixes[2]]


def test_records_are_found_in_documents(prefixes):
    origins = SourceOrigins(make_lock(source_of("code", prefixes[2]), source_of("web", *prefixes[:2])))
    assert origins.documents_of("crawl/0007.jsonl", 4) == [(1, 1)]
    assert origins.documents_of("./crawl/0007.jsonl", 5) == []
    assert origins.documents_of("data/books/0007.jsonl", 8) == [(1, 3)]
    assert origins.documents_of("books/0007.jsonl", 9) == [(1, 4)]
    assert origins.documents_of("table.parquet", 4) == [(1, 7)]
    assert origins.missing == [prefixes[2]]


def test_records_and_files_that_are_not_there(prefixes):
    origins = SourceOrigins(make_lock(source_of("web", *prefixes)))
    with pytest.raises(ConfigError, match=r"expected the end of one input file, found '0007.jsonl', which 2 end in"):
        origins.documents_of("0007.jsonl", 1)
    with pytest.raises(
        ConfigError, match=r"expected one of the 3 input files of this run, found '007.jsonl'"
    ) as caught:
        origins.documents_of("007.jsonl", 1)
    assert "data/books/0007.jsonl" in str(caught.value.hint)
    with pytest.raises(ConfigError, match=r"expected a record of `data/crawl/0007.jsonl`, which has 20, found 21"):
        origins.documents_of(A.path, 21)
    assert origins.documents_of(B.path, 10**9) == []  # nobody knows how many it has
    with pytest.raises(ConfigError, match="expected a record from 1 on, found 0"):
        origins.documents_of(A.path, 0)


def test_sequences_of_documents_have_the_record_of_these(tmp_path):
    prefix = write_sentences(tmp_path / "sentences", [[[1], [2], [3]], [], [[4], [5]]])
    put_origins(prefix, [A], [(0, 1, 3)])
    origins = SourceOrigins(PairRows.of([[("other", 10), (prefix, 5)]]))
    assert origins.locate(0, np.arange(10, 15))[1].tolist() == [1, 1, 1, 3, 3]
    origins = SourceOrigins(PairRows.of([[(prefix, 5)]]))
    assert origins.documents_of("0007.jsonl", 1) == [(0, 0), (0, 1), (0, 2)]
    assert origins.documents_of("0007.jsonl", 2) == []
    assert origins.documents_of("0007.jsonl", 3) == [(0, 3), (0, 4)]
