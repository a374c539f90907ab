"""`tokenloom trace`, `when` and `deny`."""

from __future__ import annotations

import math
import os
import re
import shlex

import numpy as np
import pytest
from tests.cli.runs import RUN, lock_of, objects, output, record, rows_of, run, write_run
from tests.indexed.columns import put_hashes, put_origins
from tests.run.data import write_lines_origins

from tokenloom.cli import reading
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import RUNS, OriginFile
from tokenloom.inputs.records import Texts
from tokenloom.loading.losses import LossRecorder, span_losses
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.preprocess.selection import hash_documents
from tokenloom.run.run import Run

NAMES = (
    *("position", "step", "rank", "micro_batch", "source", "pass", "document", "start", "length", "file", "record"),
    *("slot", "denied", "stage", "walk", "window", "pair", "row", "run"),
)


DEALT = ("--global-batch-size", 8, "--micro-batch-size", 2, "--data-parallel-size", 2)


@pytest.fixture
def with_lines(tmp_path, capsys):
    """A run whose source `code` has origins: two documents per line of a file, `web` none."""
    path = write_run(tmp_path)
    lines = tmp_path / "raw" / "code" / "lines.jsonl"
    lines.parent.mkdir(parents=True)
    lines.write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(1, 52)))
    status = lines.stat()
    file = OriginFile(
        path=str(lines), num_bytes=status.st_size, version=str(status.st_mtime_ns), unit="line", num_records=51
    )
    prefix = str(tmp_path / "data" / "code")
    put_origins(prefix, [file], [np.array([(0, 2, 50)], dtype=RUNS)])
    run(capsys, "run", "lock", path)
    return path


def spans_at(capsys, path, *words) -> list[dict]:
    return objects(capsys, "trace", path, *words)


def test_a_step_as_ranks_read_it(with_lines, capsys):
    rows = spans_at(capsys, with_lines, "--step", 3, *DEALT)
    assert tuple(rows[0]) == NAMES
    assert {(row["step"], row["run"], row["stage"]) for row in rows} == {(3, Run.open(with_lines).identity, "main")}
    for rank in range(2):
        batches = list(MegatronPretrainingSampler(100, 24, 2, rank, 2))[:2]
        for number, batch in enumerate(batches):
            positions = {row["position"] for row in rows if (row["rank"], row["micro_batch"]) == (rank, number)}
            assert positions == set(batch)
        mine = [row for row in rows if row["rank"] == rank]
        assert spans_at(capsys, with_lines, "--step", 3, *DEALT, "--rank", rank) == mine


def test_positions_and_ranges_of_them(with_lines, capsys):
    rows = spans_at(capsys, with_lines, "--position", "7,20:22", "--sample", 3)
    assert list(dict.fromkeys(row["position"] for row in rows)) == [7, 20, 21, 3]
    assert {(row["step"], row["rank"]) for row in rows} == {(None, None)}
    plain = [row for k in (7, 20, 21, 3) for row in Run.open(with_lines).trace([k]).rows()]
    assert [row | {"file": None, "record": None} for row in rows] == plain
    tokens = Run.open(with_lines).dataset().sample(20)["tokens"]
    assert sum(row["length"] for row in rows if row["position"] == 20) == len(tokens) + 1
    dealt = spans_at(capsys, with_lines, "--position", 20, "--batch-size-schedule", "0:8 160:4")
    assert dealt[0]["step"] == 1 + 1 + (20 - 16) // 4  # 8, 8 as 160 tokens are 10 samples, then 4
    assert spans_at(capsys, with_lines, "--step", "4:6", "--global-batch-size", 5) == [
        row | {"step": row["position"] // 5} for row in spans_at(capsys, with_lines, "--position", "20:30")
    ]


def test_files_and_records(with_lines, capsys):
    rows = spans_at(capsys, with_lines, "--position", "0:100")
    code = [row for row in rows if row["source"] == "code"]
    assert code
    assert all(row["record"] == row["document"] + 2 for row in code)
    assert {os.path.basename(row["file"]) for row in code} == {"lines.jsonl"}
    web = [row for row in rows if row["source"] == "web"]
    assert {(row["file"], row["record"]) for row in web} == {(None, None)}
    status, out, err = run(capsys, "trace", with_lines, "--position", "0:100")
    assert status == 0
    assert err.count("\n") == 1
    assert err.startswith("input files are unknown for 1 pair without origins (`")
    assert "`tokenloom preprocess`, which writes PREFIX.origins.npy" in err
    lines = out.splitlines()
    assert lines[0] == f"run {Run.open(with_lines).identity}"
    assert lines[1].startswith("stage ")
    assert lines[3].split()[-4:] == ["start", "length", "document", "origin"]
    shown = [line for line in lines if "lines.jsonl:" in line]
    assert len(shown) == len(code)
    assert len(lines) == 6 + len(rows)


def test_texts_and_records_read_again(with_lines, capsys):
    rows = spans_at(capsys, with_lines, "--position", "0:20", "--text", "--from-input")
    for row in rows:
        tokens = IndexedDataset(row["pair"]).get(row["row"], row["start"], row["length"])
        assert row["text"] == " ".join(map(str, tokens))  # the run names no tokenizer
        known = row["source"] == "code"
        assert row["input"] == (f'{{"text": "line {row["record"]}"}}' if known else None)
    _, out, _ = run(capsys, "trace", with_lines, "--position", 0, "--text")
    assert re.search(r"\n(web|code):\d+ text \| \d+ ", out)


@pytest.fixture
def recorded(tmp_path, capsys):
    """A run whose source `code` has origins, without lines 1 and 52 of the file, and hashes of its texts."""
    path = write_run(tmp_path, RUN.replace("samples = 100", "samples = 900"))
    prefix = str(tmp_path / "data" / "code")
    write_lines_origins(prefix, [(0, 2, 50)], path="/raw/code/0007.jsonl", num_records=52)
    put_hashes(prefix, hash_documents([Texts(texts=[f"text {number}" for number in range(50)])], 50))
    run(capsys, "run", "lock", path)
    return path


def asked(capsys, path, *words) -> list[dict]:
    return objects(capsys, "when", path, *words)


def traced(path, document: int, source: str = "code") -> list[tuple]:
    rows = Run.open(path).trace(np.arange(900)).rows()
    return [spot(row) for row in rows if (row["source"], row["document"]) == (source, document)]


def spot(row: dict) -> tuple:
    return tuple(row[name] for name in ("position", "pass", "document", "start", "length", "walk", "window"))


def test_a_document_of_a_source(recorded, capsys):
    rows = asked(capsys, recorded, "--document", "code:7", *DEALT)
    assert [spot(row) for row in rows] == traced(recorded, 7)
    assert rows
    assert {(row["source"], row["record"], row["file"]) for row in rows} == {("code", 9, "/raw/code/0007.jsonl")}
    assert [row["step"] for row in rows] == [row["position"] // 8 for row in rows]
    assert [row["rank"] for row in rows] == [row["position"] % 4 // 2 for row in rows]
    unknown = {(row["match"], row["num_matched"], row["seen"], row["denied"]) for row in rows}
    assert unknown == {(None, None, None, False)}
    several = asked(capsys, recorded, "--document", "code:7", "--document", "web:3", "--document", "code:8")
    expected = [*traced(recorded, 7), *traced(recorded, 8), *traced(recorded, 3, "web")]
    assert [spot(row) for row in several] == sorted(expected, key=lambda spot: spot[0])


def test_a_record_and_a_text(recorded, tmp_path, capsys):
    (tmp_path / "text").write_text("text 7\n")
    named = (("--record", "code/0007.jsonl:9"), ("--document", "0007.jsonl:9"), ("--text-file", tmp_path / "text"))
    for words in named:
        assert [spot(row) for row in asked(capsys, recorded, *words)] == traced(recorded, 7)
    status, out, err = run(capsys, "when", recorded, "--record", "0007.jsonl:1")
    assert (status, "never read" in out) == (0, True)
    assert "0007.jsonl:1 has no document in this run: it was blank, bad or a duplicate, or is part of other data" in err
    assert "without origins" in err  # `web` may contain that record


def test_tokens_and_the_spans_that_hold_them(recorded, capsys):
    everything = asked(capsys, recorded, "--document", "code:7")
    rows = asked(capsys, recorded, "--ids", ",".join(["7"] * 60), "--until-position", 900)
    code = [row for row in rows if row["source"] == "code"]  # sixty-four of them, so five places
    assert {(row["match"], row["num_matched"]) for row in code} == {(start, 60) for start in range(5)}
    for row in code:
        assert row["start"] < row["match"] + 60
        assert row["match"] < row["start"] + row["length"]
    assert {spot(row) for row in code} <= {spot(row) for row in everything}
    assert not [row for row in rows if row["source"] == "web"]  # thirty-two tokens each


def test_what_was_seen_and_what_is_denied(recorded, tmp_path, capsys):
    run(capsys, "run", "lock", recorded, "--consumed-samples", 300)
    recorded.write_text(recorded.read_text() + '[[denied]]\ndocuments = ["code:7"]\nfrom = 600\n')
    run(capsys, "run", "lock", recorded, "--consumed-samples", 300)
    assert lock_of(recorded).consumed == 300
    rows = asked(capsys, recorded, "--document", "code:7")
    assert {(row["seen"], row["position"] < 300) for row in rows} == {(True, True), (False, False)}
    assert all(row["denied"] == (row["position"] >= 600) for row in rows)
    lines = output(capsys, "when", recorded, "--document", "code:7", *DEALT).splitlines()
    assert lines[0].startswith("run ")
    assert lines[1] == "1 document"
    assert [line.rsplit(None, 1)[1] for line in lines[-2 - len(rows) : -2]] == [
        "denied" if row["denied"] else "seen" if row["seen"] else "come" for row in rows
    ]
    assert lines[-1] == f"{len(rows)} spans"
    assert max(map(len, lines[1:])) <= 80


def test_denials_as_lines(recorded, capsys):
    words = ("--document", "web:3", "--record", "0007.jsonl:9", "--reason", 'asked for in "May"')
    words += ("--from-step", 30, "--global-batch-size", 10, "--since-start")
    status, out, err = run(capsys, "deny", recorded, *words)
    assert status == 0
    assert err.startswith("copies of these records may still be read: input files are unknown for ")
    lines = out.splitlines()
    assert '+documents = ["0007.jsonl:9", "web:3"]' in lines
    assert "+from = 300" in lines
    assert '+reason = "asked for in \\"May\\""' in lines
    rows = {cells[0]: cells[1] for line in lines if len(cells := re.split(r"  +", line.strip())) == 2}
    assert (rows["position"], rows["documents"]) == ("300", "web:3, code:7")
    opened = Run.open(recorded)
    changed = opened.when("web:3", "code:7", start=300)
    assert changed.denied.all()
    assert rows["positions"] == str(len(np.unique(changed.positions)))
    assert rows["tokens"] == f"{changed.lengths.sum():,}"
    assert rows["digest before"] == rows["digest after"] == opened.digest(300)
    assert "spans that become padding:" in lines
    assert "spans read before the denial:" in lines
    assert lines[-1] == "nothing else moves"


def test_denials_as_json(recorded, capsys):
    words = ("--document", "web:3", "--document", "web:4", "--from-position", 300)
    told = record(capsys, "deny", recorded, *words, "--dry-run")
    assert list(told) == [
        "path", "written", "position", "reason", "documents", "already_denied", "held_out", "no_document",
        "unknown_pairs", "listed_until", "num_positions", "num_tokens", "changed", "seen", "digest",
        "order_without_denials", "diff",
    ]  # fmt: skip
    assert (told["written"], told["position"], told["reason"], told["listed_until"]) == (False, 300, None, 900)
    assert (told["documents"], told["already_denied"], told["seen"]) == (["web:3", "web:4"], [], None)
    assert told["digest"]["before"] == told["digest"]["after"] == Run.open(recorded).digest(300)
    assert told["order_without_denials"]["before"] == told["order_without_denials"]["after"]
    assert {row["document"] for row in told["changed"]} == {3, 4}
    assert told["num_tokens"] == sum(row["length"] for row in told["changed"])
    assert told["num_positions"] == len({row["position"] for row in told["changed"]})
    told = record(capsys, "deny", recorded, *words, *DEALT, "--since-start", "--until-step", 50)
    assert (told["written"], told["listed_until"]) == (True, 400)
    assert {row["step"] == row["position"] // 8 for row in told["changed"] + told["seen"]} == {True}
    assert max(row["position"] for row in told["seen"]) < 300 <= min(row["position"] for row in told["changed"])
    assert all(row["rank"] is not None for row in told["seen"])


GLOBAL = ("--global-batch-size", 8)


def spans_of(path, positions) -> list[dict]:
    return list(Run.open(path).trace(positions).rows())


def test_documents_by_their_share_of_a_step(path, tmp_path, capsys):
    with LossRecorder(tmp_path / "losses") as recorder:
        recorder.append(range(24, 32), [[1.0] * 4] * 6 + [[100.0, 1.0, 1.0, 1.0]] * 2)
    spans = spans_of(path, range(24, 32))
    by_document: dict[tuple, float] = {}
    for span in spans:
        key = span["source"], span["document"]
        by_document[key] = by_document.get(key, 0) + (100 if span["position"] >= 30 and not span["slot"] else 1)
    rows = spans_at(capsys, path, "--step", 3, *GLOBAL, "--worst", 3)
    assert [row["loss"] for row in rows] == sorted(by_document.values(), reverse=True)[:3]
    total = sum(by_document.values())
    for row in rows:
        assert row["loss"] == by_document[row["source"], row["document"]]
        assert row["share"] == row["loss"] / total
        assert row["loss_of"] == "document"
        own = [span for span in spans if (span["source"], span["document"]) == (row["source"], row["document"])]
        assert row["positions"] == [span["position"] for span in own]
        assert row["length"] == sum(span["length"] for span in own)
        assert len(row["text"].split()) == own[0]["length"]  # ids: the run names no tokenizer
    assert len(spans_at(capsys, path, "--step", 3, *GLOBAL, "--worst", 100)) == len(by_document)


def test_a_table_and_a_command_to_type(path, tmp_path, capsys):
    with LossRecorder(tmp_path / "other") as recorder:
        recorder.append([24, 25, 26], [3.0, math.nan, 1234.5])
    words = ("--losses", tmp_path / "other", *GLOBAL, "--worst", 4)
    out = output(capsys, "trace", path, "--step", 3, *words)
    lines = out.splitlines()
    assert lines[:2] == [f"run {Run.open(path).identity}", "8 positions, 5 without a recorded loss; loss nan"]
    rows = rows_of(out)
    place = rows.index(["document", "share", "loss", "per token", "tokens", "samples", "origin"])
    assert re.fullmatch(r"(web|code):\d+ ~- nan nan \d+ 1", " ".join(rows[place + 2][:-1]))
    assert any(line.startswith(f"{rows[place + 2][0]} text | ") for line in lines)
    assert "~ estimate: the loss of the sample, divided among its documents in proportion to their tokens" in lines
    command = shlex.split(out[out.index("tokenloom deny") :].replace("\\\n", ""))
    assert command[:6] == ["tokenloom", "deny", str(path), "--from-step", "3", "--global-batch-size"]
    assert len(command) == 7 + 2 * 4
    assert "nothing else moves" in output(capsys, *command[1:])
    after = spans_at(capsys, path, "--position", "24:27", "--worst", 100, "--losses", tmp_path / "other")
    denied = {command[place + 1] for place, word in enumerate(command) if word == "--document"}
    assert not denied & {f"{row['source']}:{row['document']}" for row in after}


def test_a_command_begins_behind_what_is_consumed(path, tmp_path, capsys):
    with LossRecorder(tmp_path / "losses") as recorder:
        recorder.append(range(8), [1.0] * 8)
    run(capsys, "run", "lock", path, "--consumed-samples", 30)
    for words, expected in (
        (("--step", 0, *GLOBAL), "--from-step 4 --global-batch-size 8 "),
        (("--step", 0, "--batch-size-schedule", "0:8 160:4"), "--from-step 6 --batch-size-schedule '0:8 160:4' "),
        (("--position", "0:8"), "--from-position 30 "),
    ):
        out = output(capsys, "trace", path, *words, "--worst", 1)
        assert f"  tokenloom deny {path} {expected}" in out.replace("\\\n   ", "")


def test_when_shows_the_losses_of_reads(path, tmp_path, capsys):
    (span,) = spans_of(path, [24])[:1]
    name = f"{span['source']}:{span['document']}"
    assert "loss" not in output(capsys, "when", path, "--document", name)
    with LossRecorder(tmp_path / "losses") as recorder:
        recorder.append([24], [[2.0 * span["length"]]])
    out = output(capsys, "when", path, "--document", name)
    (heading,) = [line for line in out.splitlines() if line.rstrip().endswith(" loss")]
    rows = [line for line in out.splitlines() if line.lstrip().startswith("24 ")]
    assert rows[0].rstrip()[heading.index("loss") :].strip() == "2"
    found = {row["position"]: (row["loss"], row["loss_of"]) for row in asked(capsys, path, "--document", name)}
    assert found.pop(24) == (2.0 * span["length"], "document")
    assert set(found.values()) <= {(None, None)}


def test_when_reads_losses_once_and_shows_high_ones_in_colour(path, tmp_path, capsys, monkeypatch):
    spans = spans_of(path, range(40))
    with LossRecorder(tmp_path / "losses") as recorder:
        recorder.append(range(40), [{24: 4 * 17, 25: 2 * 17}.get(position, 17) for position in range(40)])
    calls = []
    monkeypatch.setattr(reading, "span_losses", lambda *words: calls.append(words) or span_losses(*words))
    monkeypatch.setattr(reading, "_CHUNK_DOCUMENTS", 1)
    monkeypatch.setenv("FORCE_COLOR", "1")
    names = [word for span in spans for word in ("--document", f"{span['source']}:{span['document']}")]
    _, out, _ = run(capsys, "when", path, *names)
    assert len(calls) == 1
    lines = {words[0]: line for line in out.splitlines() if (words := line.split())[:1] > ["23"]}
    assert re.search(r"\x1b\[1;31m *~4\x1b\[0m", lines["24"])
    assert re.search(r"\x1b\[33m *~2\x1b\[0m", lines["25"])
    assert lines["26"].split()[-1] == "~1"


def test_what_goes_wrong_is_said(path, tmp_path, capsys):
    status, _, err = run(capsys, "trace", path, "--position", 3, "--worst", 5)
    assert status == 1
    assert f"no folder `losses` beside `{path}`" in err
    with LossRecorder(tmp_path / "losses") as recorder:
        recorder.append([3], [1.0])
    (file,) = (tmp_path / "losses").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    status, out, err = run(capsys, "trace", path, "--position", 3, "--worst", 5)
    assert (status, out.splitlines()[1]) == (0, "1 position, 1 without a recorded loss; loss 0")
    assert f"`{file}`: its last record is incomplete and ignored" in err
