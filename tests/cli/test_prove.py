"""`tokenloom run commit`, `tokenloom prove`, and what `tokenloom check-proof` says of it."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import run, write_run

from tokenloom.run.run import Run


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    assert run(capsys, "run", "commit", path)[0] == 0
    return path


def test_a_proof_holds_until_it_is_forged(path, capsys, tmp_path):
    proof, commitment = tmp_path / "proof.json", path.with_name("run.commitment.json")
    words = ("--document", "web:5", "--step", 2, "--until-step", 8, "--global-batch-size", 10)
    status, out, err = run(capsys, "prove", path, *words, "-o", proof)
    assert (status, err.startswith(f"wrote {proof}, ")) == (0, True)
    assert "document 5 of web: 32 tokens\n" in out
    opened = Run.open(path).dataset()
    read = [k for k in range(20, 80) if ("web", 5) in {(opened.place(k).source, d) for d in opened.spans(k).documents}]
    root = json.loads(commitment.read_text())["root"]
    told = json.loads(run(capsys, "check-proof", proof, "--root", root, "--json")[1])
    assert (told["begin"], told["end"], told["read"]) == (20, 80, read)
    assert run(capsys, "check-proof", proof, "--commitment", commitment)[:2] == (0, out)
    status, _, err = run(capsys, "check-proof", proof, "--root", "0" * 64)
    assert (status, "does not lead to the root 0000" in err) == (1, True)
    forged = json.loads(proof.read_text())
    forged["claim"]["read"] = []
    proof.write_text(json.dumps(forged))
    status, out, err = run(capsys, "check-proof", proof, "--commitment", commitment)
    assert (status, out, "expected a proof that holds, found one of 0 readings" in err) == (1, "", True)


def test_changed_data_are_not_committed_to(path, capsys):
    path.with_name("run.commitment.json").unlink()
    data = path.parent / "data" / "code.bin"
    data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))
    status, _, err = run(capsys, "run", "commit", path)
    assert (status, "code.bin` changed after it was locked" in err) == (1, True)
    assert not path.with_name("run.commitment.json").exists()
