"""`tokenloom run digest`, `id`, `check` and `stream`: what is asked of a locked run."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import run, write_run

from tokenloom.run.run import Run


def test_digest_is_of_a_position_or_step(path, capsys):
    status, out, _ = run(capsys, "run", "digest", path, "--position", 30)
    assert status == 0
    digest, _, rest = out.partition("  ")
    assert len(digest) == 64
    assert rest == f"{path} before position 30\n"
    by_step = run(capsys, "run", "digest", path, "--at-step", 3, "--global-batch-size", 10, "--json")[1]
    assert json.loads(by_step)["digest"] == digest
    assert json.loads(run(capsys, "run", "digest", path, "--json")[1])["position"] == 100


def test_steps_follow_a_schedule_in_tokens(path, capsys):
    words = ("--at-step", 4, "--batch-size-schedule", "0:4 160:8", "--json")
    assert json.loads(run(capsys, "run", "digest", path, *words)[1])["position"] == 4 * 3 + 8


def test_the_name_of_a_run(path, capsys):
    status, out, _ = run(capsys, "run", "id", path)
    identity = Run.open(path).identity
    assert (status, out) == (0, f"{identity}  {path}\n")
    assert run(capsys, "run", "id", path.with_name("run.lock"))[1].startswith(identity)
    told = json.loads(run(capsys, "run", "id", path, "--json")[1])
    assert told == {"path": str(path), "run": identity, "position": None, "digest": None, "num_samples": 100}
    assert f"id={identity[:16]}" in repr(Run.open(path))
    for words in (("plan",), ("check",)):
        assert f"run {identity}\n" in run(capsys, "run", *words, path)[1]
        assert json.loads(run(capsys, "run", *words, path, "--json")[1])["run"] == identity


def test_it_stays_while_the_run_changes_and_the_order_is_told_too(path, capsys):
    before = json.loads(run(capsys, "run", "id", path, "--position", 60, "--json")[1])
    words = ("--at-step", 6, "--global-batch-size", 10, "--weights", "web=1,code=1")
    assert run(capsys, "run", "amend", path, *words)[0] == 0
    status, out, _ = run(capsys, "run", "id", path, "--position", 60)
    assert status == 0
    assert out.splitlines()[0].startswith(before["run"])
    assert out.splitlines()[1] == f"{before['digest']}  order before position 60"


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


def test_stream_reads_from_a_position(path, capsys):
    pytest.importorskip("torch")
    status, out, err = run(capsys, "run", "stream", path, "--position", 40, "--micro-batch-size", 4, "--batches", 3)
    assert (status, err) == (0, "")
    assert out.startswith("3 batches of 4 samples from position 40 on: 192 tokens in ")
    assert "tokens/s; waited " in out
    told = json.loads(run(capsys, "run", "stream", path, "--holdout", "--micro-batch-size", 2, "--json")[1])
    assert told["num_samples"] == 8
    assert told["num_tokens"] == 8 * 16
    status, _, err = run(capsys, "run", "stream", path, "--position", 97)
    assert status == 1
    assert "expected a batch of 8 samples from position 97 on, found 3 samples there" in err
