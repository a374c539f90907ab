"""`tokenloom verify-resume`."""

from __future__ import annotations

import json

import pytest
import resume_loaders as loaders

from tokenloom import cli


def run(capsys, *words):
    status = cli.main(["verify-resume", *map(str, words)])
    return status, *capsys.readouterr()


FIVE = ("--batches", 5, "--kill-at", 2)


def test_a_correct_loader_exits_with_0(capsys):
    status, out, err = run(capsys, f"{loaders.__file__}:counting", *FIVE, "--world-sizes", "1:2")
    assert status == 0
    assert "5 cases, 0 failed; 5 batches, order batch, seed " in out
    assert err == f"seed {out.splitlines()[1].split()[-1]}\n"
    assert all(len(line) <= 80 for line in out.splitlines()[1:])


def test_a_wrong_loader_exits_with_1(capsys):
    options = ("--world-sizes", "1", "--seed", 3, "--json")
    status, out, err = run(capsys, f"{loaders.__file__}:forgets_read_ahead", *FIVE, *options)
    assert (status, err) == (1, "")
    found = json.loads(out)
    assert (found["ok"], found["seed"]) == (False, 3)
    assert {case["kind"]: case["missing"] for case in found["cases"]}["resumed"] == 8


def test_failures_are_reported(capsys):
    counting = f"{loaders.__file__}:counting"
    for words, text in (
        ([f"{loaders.__file__}:absent"], "module 'resume_loaders' has no attribute 'absent'"),
        (["absent:make"], "error: cannot import 'absent:make' as FILE.py:FUNCTION or MODULE:FUNCTION: No module named"),
        ([counting, "--samples", "rows"], "error: cannot import 'rows' as FILE.py:FUNCTION or"),
        ([counting, "--kill-at", 24], "`--kill-at` must be below 24, the number of batches, got 24"),
    ):
        status, _, err = run(capsys, *words)
        assert status == 1
        assert text in err
    status, out, _ = run(capsys, f"{loaders.__file__}:always_raises", "--json")
    assert status == 1
    assert "rank 0 raised OSError: no such bucket" in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent"], "no file absent: LOADER is FILE.py:FUNCTION, MODULE:FUNCTION or a program"),
        (["a.b:make", "--arguments=x"], "--arguments is for programs only"),
        (["a.b:make", "--world-sizes", "1,x"], "`--world-sizes`: 'x' is not an integer"),
    ],
)
def test_wrong_usage_exits_with_2(capsys, words, message):
    with pytest.raises(SystemExit) as stopped:
        run(capsys, *words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
