"""`tokenloom run digest`, `id`, `check` and `stream`: what is asked of a locked run."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import rows_of, run, write_run

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
        assert ["run", identity] in [line.split() for line in run(capsys, "run", *words, path)[1].splitlines()]
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
    for words in ((), ("--full",)):
        status, out, _ = run(capsys, "run", "check", path, *words)
        assert (status, rows_of(out)[1]) == (0, ["ok"])
        assert ["pairs", "2"] in rows_of(out)
    data = path.parent / "data" / "code.bin"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    assert run(capsys, "run", "check", path)[0] == 0
    status, out, _ = run(capsys, "run", "check", path, "--full")
    assert (status, rows_of(out)[1]) == (1, ["1 problem"])
    assert "code.bin` changed after it was locked" in out
    status, out, _ = run(capsys, "run", "check", path, "--full", "--json")
    assert status == 1
    assert [problem["source"] for problem in json.loads(out)["problems"]] == ["code"]


def test_check_says_what_has_no_checksum(tmp_path, capsys):
    path = write_run(tmp_path)
    run(capsys, "run", "lock", path)
    status, out, _ = run(capsys, "run", "check", path, "--full")
    assert (status, rows_of(out)[1], out.count("\nunknown: ")) == (0, ["ok"], 4)


def test_stream_reads_from_a_position(path, capsys):
    pytest.importorskip("torch")
    status, out, err = run(capsys, "run", "stream", path, "--position", 40, "--micro-batch-size", 4, "--batches", 3)
    assert (status, err) == (0, "")
    rows = rows_of(out)
    assert rows[1][0].endswith(" tokens/s")
    assert rows[3:7] == [["position", "40"], ["batches", "3"], ["samples", "12"], ["tokens", "192"]]
    assert [row[0] for row in rows[7:10]] == ["seconds", "wait seconds", "longest wait seconds"]
    told = json.loads(run(capsys, "run", "stream", path, "--holdout", "--micro-batch-size", 2, "--json")[1])
    assert told["num_samples"] == 8
    assert told["num_tokens"] == 8 * 16
    status, _, err = run(capsys, "run", "stream", path, "--position", 97)
    assert status == 1
    assert "expected a batch of 8 samples from position 97 on, found 3 samples there" in err
