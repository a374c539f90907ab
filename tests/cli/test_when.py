"""`tokenloom when`: documents, records, texts and tokens, and what is asked wrongly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.cli.runs import RUN, lock_of, run, write_run
from tests.run.megatrons import make
from tests.run.recorded import write_lines_origins
from tests.support import write_corpus

from tokenloom import cli
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.document_hashes import write_document_hashes
from tokenloom.indexed.manifest.contents import index_start_crc32
from tokenloom.inputs.parsing import Texts
from tokenloom.preprocess.selection import hash_documents
from tokenloom.run.held_out import are_held_out
from tokenloom.run.run import Run

DEALT = ("--global-batch-size", 8, "--micro-batch-size", 2, "--data-parallel-size", 2)


@pytest.fixture
def path(tmp_path, capsys):
    """A run whose source `code` knows its input, two documents per line, and the hashes of its texts."""
    path = write_run(tmp_path, RUN.replace("samples = 100", "samples = 900"))
    prefix = str(tmp_path / "data" / "code")
    index = IndexedDataset(prefix).index
    start = index_start_crc32(index.header, index.arrays.lengths)
    write_lines_origins(prefix, [(0, 2, 50)], path="/raw/code/0007.jsonl", num_records=51)
    texts = [f"text {number}" for number in range(50)]
    hashes = hash_documents([Texts(texts=texts)], 50)
    write_document_hashes(prefix, [hashes], index_start_crc32=start)[0].publish()
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


def test_a_text_within_documents(tmp_path, capsys):
    path = write_run(tmp_path, RUN.replace("seed = 7", 'seed = 7\ntokenizer = "byte"').replace("100", "900"))
    texts = [f"document {number} says that its name is {number}." for number in range(60)]
    for name in ("web0", "code"):
        write_corpus(tmp_path / "data" / name, [list(text.encode()) for text in texts])
    rows = asked(capsys, path, "--tokens", "its name is 7")
    assert {(row["source"], row["document"]) for row in rows} == {("code", 7), ("web", 7)}
    assert {(row["match"], row["num_matched"]) for row in rows} == {(texts[7].index("its name"), len("its name is 7"))}
    assert all(row["start"] < row["match"] + 13 for row in rows)
    assert all(row["match"] < row["start"] + row["length"] for row in rows)
    status, _, err = run(capsys, "when", path, "--tokens", "it")
    assert status == 1
    assert "give more of it, or look for --ids" in err


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
    assert [line.rsplit(None, 1)[1] for line in lines[4:-2]] == [
        "denied" if row["denied"] else "seen" if row["seen"] else "come" for row in rows
    ]
    assert lines[-1] == f"{len(rows)} spans"
    assert max(map(len, lines[1:])) <= 80


def test_what_is_held_out_is_said(path, capsys):
    held = np.flatnonzero(are_held_out(lock_of(path), 0, np.arange(100)))
    status, out, _ = run(capsys, "when", path, "--document", f"web:{held[0]}")
    assert status == 0
    assert f"web:{held[0]} is held out: training never reads it\n\nnever read\n" in out


def test_an_endless_run(tmp_path, capsys):
    path = write_run(tmp_path, RUN.replace("samples = 100\n", ""))
    status, _, err = run(capsys, "when", path, "--document", "code:7")
    assert status == 1
    assert "expected where to stop, since the last stage" in err
    assert "give --until-position or --until-step" in err
    rows = asked(capsys, path, "--document", "code:7", "--until-step", 50, "--global-batch-size", 4)
    assert rows == [
        row | {"step": row["position"] // 4}
        for row in asked(capsys, path, "--document", "code:7", "--until-position", 200)
    ]
    assert max(row["position"] for row in rows) < 200


def test_positions_that_no_run_has(tmp_path, capsys):
    path = write_run(tmp_path, RUN.replace("samples = 100\n", ""))
    status, _, err = run(capsys, "when", path, "--document", "web:3", "--until-position", 2**60 + 1)
    assert status == 1
    assert f"expected a position up to {2**60}, which no run goes beyond, found {2**60 + 1}" in err


def test_a_text_that_cannot_be_read(path, tmp_path, capsys):
    status, _, err = run(capsys, "when", path, "--text-file", tmp_path)
    assert (status, err) == (
        1,
        f"error: `{tmp_path}`: expected a text in UTF-8, which cannot be read: Is a directory\n"
        "more: tokenloom explain ConfigError\n",
    )


def test_the_reference_order(tmp_path, capsys):
    path = make(tmp_path)
    (tmp_path / "cache").mkdir()
    rows = asked(capsys, path, "--document", "code:7", "--path-to-cache", tmp_path / "cache")
    table = Run.open(path).trace(np.arange(300))
    own = table.take((table.sources == 1) & (table.documents == 7))
    assert [(row["position"], row["start"], row["length"]) for row in rows] == list(
        zip(own.positions.tolist(), own.starts.tolist(), own.lengths.tolist(), strict=True)
    )


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((), 2, "say what to look for"),
        (("--document", "code:50"), 1, "expected a document of source 'code' in [0, 50), found `code:50`"),
        (("--document", "cod:5"), 1, "did you mean `code`?"),
        (("--record", "0007.jsonl:52"), 1, "which has 51, found 52"),
        (("--record", "0008.jsonl:5"), 1, "expected one of the 1 input files of this run"),
        (("--tokens", "some words here"), 1, "expected a `tokenizer` in run.toml, where texts are needed, found none"),
        (("--ids", "1,x"), 2, "expected ids such as 17,4,2051, found '1,x'"),
        (("--ids", "1,-4"), 1, "from 0 on, found -4"),
        (("--text-file", "missing"), 1, "expected a text in UTF-8, which cannot be read"),
        (("--document", "code:5", "--until-step", "3"), 2, "a step needs --global-batch-size"),
        (("--document", "code:5", "--micro-batch-size", "3"), 2, "belong together"),
    ],
)
def test_what_is_asked_wrongly(path, capsys, words, status, message):
    try:
        found, _, err = run(capsys, "when", path, *words)
    except SystemExit as error:
        found, err = error.code, capsys.readouterr().err
    assert (found, message in err) == (status, True), err
