"""`tokenloom prove`, and what `tokenloom check-proof` says of it."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import run, write_run

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.run.run import Run


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    assert run(capsys, "run", "commit", path)[0] == 0
    return path


def test_a_proof_of_a_range_of_steps(path, capsys, tmp_path):
    proof = tmp_path / "proof.json"
    words = ("--document", "web:5", "--step", 2, "--until-step", 8, "--global-batch-size", 10)
    status, out, err = run(capsys, "prove", path, *words, "-o", proof, "--with-tokens")
    assert status == 0
    assert "document 5 of web: 32 tokens\n" in out
    assert err.startswith(f"wrote {proof}, ")
    assert all(len(line) <= 80 for line in out.splitlines())
    root = json.loads(path.with_name("run.commitment.json").read_text())["root"]
    told = json.loads(run(capsys, "check-proof", proof, "--root", root.upper(), "--json")[1])
    assert (told["begin"], told["end"], told["root"]) == (20, 80, root)
    assert told["denied"] == []
    again = run(capsys, "check-proof", proof, "--commitment", path.with_name("run.commitment.json"))
    assert (again[0], again[1]) == (0, out)


def test_one_position_and_one_step(path, capsys, tmp_path):
    proof = tmp_path / "proof.json"
    opened = Run.open(path)
    source, document = opened.place(33).source, abs(opened.dataset().spans(33).documents[0])
    words = ("prove", path, "--document", f"{source}:{document}", "-o", proof)
    read = json.loads(run(capsys, *words, "--position", 0, "--until-position", 100, "--json")[1])["read"]
    assert 33 in read
    assert f"is READ at position {read[0]}: 1 time, at\n" in run(capsys, *words, "--position", read[0])[1]
    unread = next(position for position in range(100) if position not in read)
    assert f"is NOT READ at position {unread}\n" in run(capsys, *words, "--position", unread)[1]
    step = json.loads(run(capsys, *words, "--step", read[0] // 10, "--global-batch-size", 10, "--json")[1])
    assert (step["begin"], step["end"]) == (read[0] // 10 * 10, read[0] // 10 * 10 + 10)
    assert step["read"] == [each for each in read if each // 10 == read[0] // 10]


@pytest.mark.parametrize(
    "words",
    [
        ("--document", "web:5"),
        ("--step", 1),
        ("--document", "web:5", "--step", 1),
        ("--document", "web:5", "--position", 5, "--until-position", 5),
        ("--document", "web:5", "--position", 5, "--step", 5),
    ],
)
def test_wrong_usage(path, capsys, words):
    with pytest.raises(SystemExit) as stopped:
        run(capsys, "prove", path, *words)
    assert stopped.value.code == 2


def test_what_is_not_there(path, capsys):
    words = ("--position", 5)
    assert (
        "expected a document of source 'web' in [0, 100)"
        in run(capsys, "prove", path, *words, "--document", "web:100")[2]
    )
    assert "expected a document of a source of this run" in run(capsys, "prove", path, *words, "--document", "x:1")[2]
    path.with_name("run.commitment.json").unlink()
    status, _, err = run(capsys, "prove", path, *words, "--document", "web:1")
    assert status == 1
    assert "run.commitment.json" in err


def test_a_changed_run_needs_another_commitment(path, capsys):
    words = ("--at-step", 6, "--global-batch-size", 10, "--weights", "web=1,code=1")
    assert run(capsys, "run", "amend", path, *words)[0] == 0
    status, _, err = run(capsys, "prove", path, "--document", "web:5", "--position", 1)
    assert status == 1
    assert "to another state of it" in err


def test_whether_it_is_a_certain_text(path, capsys, tmp_path):
    proof, text = tmp_path / "proof.json", tmp_path / "text"
    assert run(capsys, "prove", path, "--document", "code:7", "--position", 5, "-o", proof)[0] == 0
    tokens = IndexedDataset(str(tmp_path / "data" / "code"))[7].tolist()
    text.write_text(" ".join(map(str, tokens)))
    words = ("check-proof", proof, "--commitment", path.with_name("run.commitment.json"))
    of_text = ("--text-file", text, "--tokenizer", "null:1000")
    assert run(capsys, *words, *of_text)[0] == 0
    text.write_text(" ".join(map(str, [*tokens[1:], 3])))
    status, _, err = run(capsys, *words, *of_text)
    assert status == 1
    assert "expected the text of document 7 of 'code', 64 tokens with sha256" in err
    with pytest.raises(SystemExit):
        run(capsys, *words, "--text-file", text)
