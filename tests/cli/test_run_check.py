"""`tokenloom run check`."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import run, write_run

from tokenloom.run.run import Run


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    return path


def test_check_finds_what_changed(path, capsys):
    head = f"run {Run.open(path).identity}\n2 pairs of 2 sources"
    assert run(capsys, "run", "check", path)[:2] == (0, f"{head}, sizes, counts and manifests: ok\n")
    assert run(capsys, "run", "check", path, "--full")[:2] == (0, f"{head}, every byte: ok\n")
    data = path.parent / "data" / "code.bin"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    assert run(capsys, "run", "check", path)[0] == 0
    status, out, err = run(capsys, "run", "check", path, "--full")
    assert (status, out) == (1, f"{head}, every byte: 1 problem\n")
    assert "code.bin` changed after it was locked" in err
    status, out, _ = run(capsys, "run", "check", path, "--full", "--json")
    assert status == 1
    assert [problem["source"] for problem in json.loads(out)["problems"]] == ["code"]


def test_check_says_what_has_no_checksum(tmp_path, capsys):
    path = write_run(tmp_path)
    run(capsys, "run", "lock", path)
    status, out, err = run(capsys, "run", "check", path, "--full")
    assert status == 0
    assert "every byte: ok, 4 files without a checksum to compare with" in out
    assert err.count("unknown: ") == 4
