"""`tokenloom check-proof` of what is no proof, or is a forged one."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import run, write_run


@pytest.fixture
def proof(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    for words in (("run", "lock", path), ("run", "commit", path)):
        assert run(capsys, *words)[0] == 0
    words = ("--document", "web:5", "--position", 0, "--until-position", 50)
    assert run(capsys, "prove", path, *words, "-o", tmp_path / "proof.json")[0] == 0
    return tmp_path / "proof.json"


def test_a_forged_claim_is_refused(proof, capsys):
    told = json.loads(proof.read_text())
    told["claim"]["read"] = []
    proof.write_text(json.dumps(told))
    status, out, err = run(capsys, "check-proof", proof, "--commitment", proof.with_name("run.commitment.json"))
    assert (status, out) == (1, "")
    assert "expected a proof that holds, found one of 0 readings of the document" in err


def test_another_root_and_what_is_no_proof(proof, capsys):
    status, _, err = run(capsys, "check-proof", proof, "--root", "0" * 64)
    assert (status, "does not lead to the root 0000" in err) == (1, True)
    assert run(capsys, "check-proof", proof, "--root", "00")[0] == 1
    status, _, err = run(capsys, "check-proof", proof.with_name("run.lock"), "--root", "0" * 64)
    assert (status, "expected an object whose `format`" in err) == (1, True)
    status, _, err = run(capsys, "check-proof", proof.with_name("none"), "--root", "0" * 64)
    assert (status, "cannot read" in err) == (1, True)
    with pytest.raises(SystemExit) as stopped:
        run(capsys, "check-proof", proof)
    assert stopped.value.code == 2
