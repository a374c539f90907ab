"""`tokenloom when`: documents, records, texts and tokens, and what is asked wrongly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.cli.runs import RUN, lock_of, run, write_run
from tests.indexed.columns import put_hashes
from tests.run.recorded import write_lines_origins

from tokenloom import cli
from tokenloom.inputs.records import Texts
from tokenloom.preprocess.selection import hash_documents
from tokenloom.run.run import Run

DEALT = ("--global-batch-size", 8, "--micro-batch-size", 2, "--data-parallel-size", 2)


@pytest.fixture
def path(tmp_path, capsys):
    """A run whose source `code` knows its input, two documents per line, and the hashes of its texts."""
    path = write_run(tmp_path, RUN.replace("samples = 100", "samples = 900"))
    prefix = str(tmp_path / "data" / "code")
    write_lines_origins(prefix, [(0, 2, 50)], path="/raw/code/0007.jsonl", num_records=51)
    texts = [f"text {number}" for number in range(50)]
    put_hashes(prefix, hash_documents([Texts(texts=texts)], 50))
    run(capsys, "run", "lock", path)
    return path


def asked(capsys, path, *words) -> list[dict]:
    status, out, _ = run(capsys, "when", path, *words, "--json")
    assert status == 0
    return [json.loads(line) for line in out.splitlines()]


def traced(path, document: int, source: str = "code") -> list[tuple]:
    rows = Run.open(path).trace(np.arange(900)).rows()
    return [spot(row) for row in rows if (row["source"], row["document"]) == (source, document)]


def spot(row: dict) -> tuple:
    return tuple(row[name] for name in ("position", "pass", "document", "start", "length", "walk", "window"))


def test_a_document_of_a_source(path, capsys):
    rows = asked(capsys, path, "--document", "code:7", *DEALT)
    assert [spot(row) for row in rows] == traced(path, 7)
    assert rows
    assert {(row["source"], row["record"], row["file"]) for row in rows} == {("code", 9, "/raw/code/0007.jsonl")}
    assert [row["step"] for row in rows] == [row["position"] // 8 for row in rows]
    assert [row["rank"] for row in rows] == [row["position"] % 4 // 2 for row in rows]
    assert {(row["match"], row["num_matched"], row["seen"], row["denied"]) for row in rows} == {
        (None, None, None, False)
    }
    several = asked(capsys, path, "--document", "code:7", "--document", "web:3", "--document", "code:8")
    assert [spot(row) for row in several] == sorted(
        [*traced(path, 7), *traced(path, 8), *traced(path, 3, "web")], key=lambda spot: spot[0]
    )


def test_a_record_and_a_text(path, tmp_path, capsys):
    (tmp_path / "text").write_text("text 7\n")
    for words in (
        ("--record", "code/0007.jsonl:9"),
        ("--document", "0007.jsonl:9"),
        ("--text-file", tmp_path / "text"),
    ):
        assert [spot(row) for row in asked(capsys, path, *words)] == traced(path, 7)
    status, out, err = run(capsys, "when", path, "--record", "0007.jsonl:1")
    assert (status, "never read" in out) == (0, True)
    assert "0007.jsonl:1 gave no document of this run: it was blank, bad, a duplicate, or went into other data" in err
    assert "no origins beside 1 pair" in err  # that of `web`, which may be of that record, too


def test_tokens_and_the_spans_that_hold_them(path, capsys):
    everything = asked(capsys, path, "--document", "code:7")
    rows = asked(capsys, path, "--ids", ",".join(["7"] * 60), "--until-position", 900)
    code = [row for row in rows if row["source"] == "code"]  # sixty-four of them, so five places
    assert {(row["match"], row["num_matched"]) for row in code} == {(start, 60) for start in range(5)}
    for row in code:
        assert row["start"] < row["match"] + 60
        assert row["match"] < row["start"] + row["length"]
    assert {spot(row) for row in code} <= {spot(row) for row in everything}
    assert not [row for row in rows if row["source"] == "web"]  # thirty-two tokens each


def test_what_was_seen_and_what_is_denied(path, tmp_path, capsys):
    assert cli.main(["run", "lock", str(path), "--consumed-samples", "300"]) == 0
    path.write_text(path.read_text() + '[[denied]]\ndocuments = ["code:7"]\nfrom = 600\n')
    assert cli.main(["run", "lock", str(path), "--consumed-samples", "300"]) == 0
    capsys.readouterr()
    assert lock_of(path).consumed == 300
    rows = asked(capsys, path, "--document", "code:7")
    assert {(row["seen"], row["position"] < 300) for row in rows} == {(True, True), (False, False)}
    assert all(row["denied"] == (row["position"] >= 600) for row in rows)
    _, out, _ = run(capsys, "when", path, "--document", "code:7", *DEALT)
    lines = out.splitlines()
    assert lines[0].startswith("run ")
    assert lines[1] == "1 document"
    assert [line.rsplit(None, 1)[1] for line in lines[-2 - len(rows) : -2]] == [
        "denied" if row["denied"] else "seen" if row["seen"] else "come" for row in rows
    ]
    assert lines[-1] == f"{len(rows)} spans"
    assert max(map(len, lines[1:])) <= 80
