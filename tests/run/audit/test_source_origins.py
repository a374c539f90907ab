"""Records of documents of a run, and documents by their names, over pairs with and without origins."""

from __future__ import annotations

import numpy as np
import pytest
from tests.indexed import columns
from tests.run.data import write_lines_origins
from tests.run.locks import make_lock, make_pair
from tests.support import write_corpus, write_sentences

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import RUNS, OriginFile
from tokenloom.run.audit.source_origins import SourceOrigins, resolve_names
from tokenloom.run.audit.trace import PairRows
from tokenloom.run.lock import LockedSource
from tokenloom.run.settings import parse_name, record_name

A = OriginFile(path="data/crawl/0007.jsonl", num_bytes=100, version="5", unit="line", num_records=20)
B = OriginFile(path="data/books/0007.jsonl", num_bytes=100, unit="line")
C = OriginFile(path="s3://bucket/table.parquet", num_bytes=100, unit="row", num_records=9)


def put_origins(prefix: str, files, runs) -> None:
    """Writes origins beside a pair."""
    columns.put_origins(prefix, files, [np.array(runs, dtype=RUNS)])


def source_of(name: str, *prefixes: str) -> LockedSource:
    counts = [len(IndexedDataset(prefix)) for prefix in prefixes]
    pairs = (make_pair(prefix, num_documents=count) for prefix, count in zip(prefixes, counts, strict=True))
    return LockedSource(name=name, pairs=tuple(pairs))


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
    with pytest.raises(ConfigError, match=r"2 input files end with '0007.jsonl'"):
        origins.documents_of("0007.jsonl", 1)
    with pytest.raises(ConfigError, match=r"(?s)'007.jsonl' is not one of the 3 input files.*data/books/0007.jsonl"):
        origins.documents_of("007.jsonl", 1)
    for record in (0, 21):
        with pytest.raises(ConfigError, match=rf"record {record} of `.*0007.jsonl` out of range: records are 1 to 20"):
            origins.documents_of(A.path, record)
    assert origins.documents_of(B.path, 10**9) == []  # nobody knows how many it has


def test_sequences_of_documents_have_the_record_of_these(tmp_path):
    prefix = write_sentences(tmp_path / "sentences", [[[1], [2], [3]], [], [[4], [5]]])
    put_origins(prefix, [A], [(0, 1, 3)])
    origins = SourceOrigins(PairRows.of([[("other", 10), (prefix, 5)]]))
    assert origins.locate(0, np.arange(10, 15))[1].tolist() == [1, 1, 1, 3, 3]
    origins = SourceOrigins(PairRows.of([[(prefix, 5)]]))
    assert origins.documents_of("0007.jsonl", 1) == [(0, 0), (0, 1), (0, 2)]
    assert origins.documents_of("0007.jsonl", 2) == []
    assert origins.documents_of("0007.jsonl", 3) == [(0, 3), (0, 4)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("web:0", ("web", 0)), (" web:12345\n", ("web", 12345)), ("a:b:7", ("a:b", 7)), ("web:007", ("web", 7)),
        ("crawl/0007.jsonl:88", ("crawl/0007.jsonl", 88)), ("s3://b/x.parquet:1", ("s3://b/x.parquet", 1)),
    ],
)  # fmt: skip
def test_names(text, name):
    assert parse_name(text, ["web", "a:b"]) == name


@pytest.mark.parametrize(
    "text", ["", "web", "web:", ":1", "web:-1", "web:1.0", "web:1_0", "web:\u0661", f"web:{9**40}", "a/b.jsonl"]
)
def test_what_is_no_name(text):
    with pytest.raises(ConfigError, match=r"document name must be like `web:12345` or `crawl/0007\.jsonl:88`, got "):
        parse_name(text, ["web"])


def test_a_typing_error():
    with pytest.raises(ConfigError, match=r"(?s)'wbe:1': the run has no source 'wbe'.*did you mean `web`"):
        parse_name("wbe:1", ["web"])
    with pytest.raises(ConfigError, match=r"(?s)'lines:1'.*write an input file as `./lines:1`"):
        parse_name("lines:1", ["web"])


@pytest.fixture
def sources(tmp_path):
    """Source `web` of ten documents without origins, `code` of six: lines 1, 2, 3, 5, 5, 6 of a file of seven."""
    web, code = (write_corpus(tmp_path / name, [[1, 2]] * count) for name, count in (("web", 10), ("code", 6)))
    write_lines_origins(code, [(0, 1, 3), (0, 5, 1), (0, 5, 2)], path="/data/raw/code.jsonl", num_records=7)
    return [source_of("web", web), source_of("raw/code.jsonl", code)]


def test_records_are_the_documents_made_of_them(sources):
    found = resolve_names([("code.jsonl", 2), ("web", 9), ("data/raw/code.jsonl", 5)], sources)
    assert found.by_source == ((0, (9,)), (1, (1, 3, 4)))
    assert found.of_records == {(1, 1), (1, 3), (1, 4)}
    assert found.empty_records == ()
    empty = resolve_names([("code.jsonl", 4), ("code.jsonl", 7)], sources).empty_records
    assert empty == ("code.jsonl:4", "code.jsonl:7")
    assert resolve_names([], sources).by_source == ()


def test_a_source_comes_before_a_file(sources):
    assert resolve_names([("raw/code.jsonl", 1)], sources).by_source == ((1, (1,)),)
    assert resolve_names([("./raw/code.jsonl", 1)], sources).by_source == ((1, (0,)),)
    names = [source.name for source in sources]
    assert record_name("raw/code.jsonl:1", names) == "./raw/code.jsonl:1"
    assert record_name("lines:7", names) == "./lines:7"
    assert record_name(" /raw/code.jsonl:1", names) == "/raw/code.jsonl:1"


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("web", 10, "document `web:10` out of range: the source has 10"),
        ("code.jsonl", 8, "`code.jsonl:8`: record 8 of `/data/raw/code.jsonl` out of range: records are 1 to 7"),
        ("other.jsonl", 1, "`other.jsonl:1`: 'other.jsonl' is not one of the 1 input files"),
    ],
)
def test_what_is_not_there(sources, name, number, message):
    with pytest.raises(ConfigError, match=message):
        resolve_names([(name, number)], sources)
    with pytest.raises(ConfigError, match=r"(?s)none of 1 pairs has origins.*PREFIX.origins.npy"):
        resolve_names([("other.jsonl", 1)], sources[:1])
