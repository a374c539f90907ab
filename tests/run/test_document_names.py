"""Names of documents: of sources and numbers, of input files and records."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.run.locks import make_pair
from tests.run.recorded import write_lines_origins
from tests.support import write_corpus

from tokenloom.errors import ConfigError
from tokenloom.run.audit.source_origins import resolve_names
from tokenloom.run.lock import LockedSource
from tokenloom.run.settings import parse_name, record_name


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
    with pytest.raises(ConfigError, match=r"expected a document such as `web:12345` or `crawl/0007\.jsonl:88`, found"):
        parse_name(text, ["web"])


def test_a_typing_error():
    with pytest.raises(ConfigError, match=r"(?s)of a source of this run, found 'wbe:1'.*did you mean `web`"):
        parse_name("wbe:1", ["web"])
    with pytest.raises(ConfigError, match=r"(?s)found 'lines:1'.*without a folder is written `./lines:1`"):
        parse_name("lines:1", ["web"])


@pytest.fixture
def sources(tmp_path):
    """Source `web` of ten documents without origins, `code` of six: lines 1, 2, 3, 5, 5, 6 of a file of seven."""
    found = []
    for name, count in (("web", 10), ("raw/code.jsonl", 6)):
        prefix = str(tmp_path / Path(name).stem)
        write_corpus(prefix, [[1, 2]] * count)
        found.append(LockedSource(name=name, pairs=(make_pair(prefix, num_documents=count),)))
    prefix = str(tmp_path / "code")
    runs = [(0, 1, 3), (0, 5, 1), (0, 5, 2)]
    write_lines_origins(prefix, runs, path="/data/raw/code.jsonl", num_records=7)
    return found


def test_records_are_the_documents_made_of_them(sources):
    found = resolve_names([("code.jsonl", 2), ("web", 9), ("data/raw/code.jsonl", 5)], sources)
    assert found.by_source == ((0, (9,)), (1, (1, 3, 4)))
    assert found.of_records == {(1, 1), (1, 3), (1, 4)}
    assert found.empty_records == ()
    assert resolve_names([("code.jsonl", 4), ("code.jsonl", 7)], sources).empty_records == (
        "code.jsonl:4",
        "code.jsonl:7",
    )
    assert resolve_names([], sources).by_source == ()


def test_a_source_comes_before_a_file(sources):
    assert resolve_names([("raw/code.jsonl", 1)], sources).by_source == ((1, (1,)),)
    assert resolve_names([("./raw/code.jsonl", 1)], sources).by_source == ((1, (0,)),)
    names = [source.name for source in sources]
    assert record_name("raw/code.jsonl:1", names) == "./raw/code.jsonl:1"
    assert record_name("lines:7", names) == "./lines:7"
    assert record_name(" /raw/code.jsonl:1", names) == "/raw/code.jsonl:1"


def test_what_is_not_there(sources):
    with pytest.raises(ConfigError, match=r"expected a document of source 'web' in \[0, 10\), found `web:10`"):
        resolve_names([("web", 10)], sources)
    with pytest.raises(ConfigError, match=r"`code.jsonl:8`: expected a record of `/data/raw/code.jsonl`, which has 7"):
        resolve_names([("code.jsonl", 8)], sources)
    with pytest.raises(ConfigError, match=r"`other.jsonl:1`: expected one of the 1 input files"):
        resolve_names([("other.jsonl", 1)], sources)
    with pytest.raises(ConfigError, match=r"(?s)expected pairs that know their input files.*PREFIX.origins.npy"):
        resolve_names([("other.jsonl", 1)], sources[:1])
