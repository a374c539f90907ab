"""`tokenloom trace --worst` and the losses of `when`: shares, what they are of, and the command that denies."""

from __future__ import annotations

import json
import math
import re
import shlex

import pytest
from tests.cli.runs import rows_of, run, write_run

from tokenloom.cli import reading
from tokenloom.loading.losses import LossRecorder, span_losses
from tokenloom.run.run import Run

GLOBAL = ("--global-batch-size", 8)


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path)
    run(capsys, "run", "lock", path)
    return path


def spans_of(path, positions) -> list[dict]:
    return list(Run.open(path).trace(positions).rows())


def worst(capsys, path, *words) -> list[dict]:
    status, out, _ = run(capsys, "trace", path, *words, "--json")
    assert status == 0
    return [json.loads(line) for line in out.splitlines()]


def test_documents_by_their_share_of_a_step(path, tmp_path, capsys):
    with LossRecorder(tmp_path / "losses") as recorder:
        recorder.append(range(24, 32), [[1.0] * 4] * 6 + [[100.0, 1.0, 1.0, 1.0]] * 2)
    spans = spans_of(path, range(24, 32))
    by_document: dict[tuple, float] = {}
    for span in spans:
        key = span["source"], span["document"]
        by_document[key] = by_document.get(key, 0) + (100 if span["position"] >= 30 and not span["slot"] else 1)
    rows = worst(capsys, path, "--step", 3, *GLOBAL, "--worst", 3)
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
    assert len(worst(capsys, path, "--step", 3, *GLOBAL, "--worst", 100)) == len(by_document)


def test_a_table_and_a_command_to_type(path, tmp_path, capsys):
    with LossRecorder(tmp_path / "other") as recorder:
        recorder.append([24, 25, 26], [3.0, math.nan, 1234.5])
    words = ("--losses", tmp_path / "other", *GLOBAL, "--worst", 4)
    status, out, _ = run(capsys, "trace", path, "--step", 3, *words)
    assert status == 0
    lines = out.splitlines()
    assert lines[:2] == [f"run {Run.open(path).identity}", "8 positions, 5 without a recorded loss; loss nan"]
    rows = rows_of(out)
    place = rows.index(["document", "share", "loss", "per token", "tokens", "samples", "origin"])
    assert re.fullmatch(r"(web|code):\d+ ~- nan nan \d+ 1", " ".join(rows[place + 2][:-1]))
    assert any(line.startswith(f"{rows[place + 2][0]} text | ") for line in lines)
    assert "~ of the loss of samples, divided among their documents by tokens" in lines
    command = shlex.split(out[out.index("tokenloom deny") :].replace("\\\n", ""))
    assert command[:6] == ["tokenloom", "deny", str(path), "--from-step", "3", "--global-batch-size"]
    assert len(command) == 7 + 2 * 4
    status, out, _ = run(capsys, *command[1:])
    assert status == 0
    assert "nothing else moves" in out
    after = worst(capsys, path, "--position", "24:27", "--worst", 100, "--losses", tmp_path / "other")
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
        _, out, _ = run(capsys, "trace", path, *words, "--worst", 1)
        assert f"  tokenloom deny {path} {expected}" in out.replace("\\\n   ", "")


def test_when_shows_the_losses_of_reads(path, tmp_path, capsys):
    (span,) = spans_of(path, [24])[:1]
    name = f"{span['source']}:{span['document']}"
    _, out, _ = run(capsys, "when", path, "--document", name)
    assert "loss" not in out
    with LossRecorder(tmp_path / "losses") as recorder:
        recorder.append([24], [[2.0 * span["length"]]])
    _, out, _ = run(capsys, "when", path, "--document", name)
    (heading,) = [line for line in out.splitlines() if line.rstrip().endswith(" loss")]
    rows = [line for line in out.splitlines() if line.lstrip().startswith("24 ")]
    assert rows[0].rstrip()[heading.index("loss") :].strip() == "2"
    _, out, _ = run(capsys, "when", path, "--document", name, "--json")
    found = {row["position"]: (row["loss"], row["loss_of"]) for row in map(json.loads, out.splitlines())}
    assert found.pop(24) == (2.0 * span["length"], "document")
    assert set(found.values()) <= {(None, None)}


def test_when_reads_losses_once_and_shows_high_ones_in_colour(path, tmp_path, capsys, monkeypatch):
    spans = spans_of(path, range(40))
    with LossRecorder(tmp_path / "losses") as recorder:
        recorder.append(range(40), [{24: 4 * 17, 25: 2 * 17}.get(position, 17) for position in range(40)])
    calls = []
    monkeypatch.setattr(reading, "span_losses", lambda *words: calls.append(words) or span_losses(*words))
    monkeypatch.setattr(reading, "_DOCUMENTS_AT_ONCE", 1)
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
    assert f"expected losses that training recorded, in `losses` beside `{path}`, found no such folder" in err
    with LossRecorder(tmp_path / "losses") as recorder:
        recorder.append([3], [1.0])
    (file,) = (tmp_path / "losses").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    status, out, err = run(capsys, "trace", path, "--position", 3, "--worst", 5)
    assert (status, out.splitlines()[1]) == (0, "1 position, 1 without a recorded loss; loss 0")
    assert f"`{file}` ends within a record, which does not count" in err
    for words, expected in (
        (("--losses", "x"), "--losses needs --worst"),
        (("--worst", 2, "--holdout"), "--worst is about losses of training: what is held out has none"),
    ):
        with pytest.raises(SystemExit):
            run(capsys, "trace", path, "--position", 3, *words)
        assert expected in capsys.readouterr().err
