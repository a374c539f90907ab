"""`tokenloom show --run`."""

from __future__ import annotations

import json
import re

import pytest
from tests.cli.runs import run, write_run

from tokenloom.run.run import Run


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path)
    run(capsys, "run", "lock", path)
    return path


def test_a_position_is_shown_with_the_documents_that_it_is_made_of(path, capsys):
    place = Run.open(path).dataset().place(7)
    status, out, err = run(capsys, "show", "--run", path, "--position", 7)
    assert (status, err) == (0, "")
    first, second, *rest = out.splitlines()
    assert first == "position 7 of the run"
    assert second.startswith(f"source {place.source}, pass 0, window {place.window}, stage main, tokens 17, ")
    headings = [line for line in rest if line.startswith("── ")]
    assert headings
    assert all(f" of {place.source}, " in heading for heading in headings)


def test_json_has_the_tokens_of_the_sample(path, capsys):
    sample = Run.open(path).dataset().sample(3)
    told = json.loads(run(capsys, "show", "--run", path, "--position", 3, "--json")[1])
    ids = [token["id"] for token in told["tokens"]]
    assert ids[:-1] == sample["tokens"].tolist()
    assert ids[1:] == sample["labels"].tolist()


def test_denied_documents_are_marked(path, capsys):
    dataset = Run.open(path).dataset()
    position = next(position for position in range(10, 100) if dataset.place(position).source == "code")
    document = int(dataset.spans(position).documents[0])
    (path.parent / "deny").write_text(f"code:{document}\n")
    run(capsys, "run", "amend", path, "--at-position", 10, "--deny", path.parent / "deny")
    status, out, _ = run(capsys, "show", "--run", path, "--position", position)
    assert status == 0
    assert f"── document {document} of code, " in out
    assert ", denied: padding ──" in out
    assert re.search(r"^\[denied: padding x \d+\]$", out, re.MULTILINE)
