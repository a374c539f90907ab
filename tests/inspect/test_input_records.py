"""Input files that are still what they were, or are not, and records read from them again."""

from __future__ import annotations

import gzip
import json
import os

import pytest
from tests.corpus.jobs import preprocess
from tests.corpus.records import BYTES
from tests.inputs.corpora import json_lines, write_parquet
from tests.run.folders import STAGE, write_toml

from tokenloom.indexed.origins import OriginFile
from tokenloom.inspect.texts import input_problem, read_records, span_tokens
from tokenloom.run.audit.source_origins import SourceOrigins
from tokenloom.run.run import Run

LINES = [json.dumps({"text": f"line {number} ü"}, ensure_ascii=False) for number in range(1, 1001)]


def written(path, data: bytes, *, unit: str = "line") -> OriginFile:
    path.write_bytes(data)
    status = path.stat()
    return OriginFile(path=str(path), num_bytes=status.st_size, version=str(status.st_mtime_ns), unit=unit)


def test_rows_of_tables_are_json(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"text": [f"row {number}" for number in range(1, 51)], "n": list(range(50))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    file = written(tmp_path / "a.parquet", (tmp_path / "a.parquet").read_bytes(), unit="row")
    assert json.loads(read_records(file, [30])[30]) == {"text": "row 30", "n": 29}


def test_files_that_changed_are_named(tmp_path):
    path = tmp_path / "a.jsonl"
    file = written(path, b"{}\n")
    assert input_problem(file) is None
    os.utime(path, ns=(0, 5))
    assert input_problem(file) == f"`{path}` was replaced or written to since it was tokenized"
    path.write_bytes(b"{}\n{}\n")
    assert input_problem(file) == f"`{path}` has 6 bytes, and had 3 when it was tokenized"
    path.unlink()
    assert input_problem(file) == f"`{path}` is not there any more"


def test_traced_spans_are_parts_of_the_records_that_they_name(tmp_path, rng):
    texts = ["".join(rng.choice(list("abcdéü "), size=rng.integers(1, 40))) for _ in range(300)]
    rows = [{"text": text} for text in texts]
    (tmp_path / "a.jsonl").write_bytes(json_lines([None, *rows[:100]]))  # a bad record first
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json_lines(rows[100:200])))
    write_parquet(tmp_path / "c.parquet", rows[200:], row_group_size=30)
    inputs = [tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.parquet")]
    preprocess(inputs, tmp_path / "web", BYTES, skip_bad_records=True)
    sources = '[sources]\nweb = "web_text_document"\n'
    stage = STAGE.replace("web = 3, code = 1", "web = 1")
    run = Run.open(write_toml(tmp_path, stage, sources=sources))
    origins = SourceOrigins(run.lock)
    table = run.trace(range(600)).with_origins(origins)
    assert origins.missing == []
    found = {}
    for number, file in enumerate(origins.files):
        assert input_problem(file) is None
        records = read_records(file, table.records[table.files == number].tolist())
        found |= {(number, record): json.loads(text)["text"].encode() for record, text in records.items()}
    assert table.files is not None
    assert len(found) == len(set(table.documents.tolist())) > 280  # the end of a pass fills no sample
    for row, tokens in enumerate(span_tokens(table)):
        text = found[int(table.files[row]), int(table.records[row])]
        start = int(table.starts[row])
        assert tokens.tolist() == list(text[start : start + int(table.lengths[row])])
