"""`tokenloom verify-resume`."""

from __future__ import annotations

import json

import pytest
from tests.testing import loaders

from tokenloom import cli

PROGRAM = """
import json, os, sys
from tokenloom.testing import record_batch, record_checkpoint

path = os.path.join(os.environ["TOKENLOOM_RESUME_FOLDER"], "step.json")
start = json.load(open(path)) if os.path.exists(path) else 0
for step in range(start, 20):
    record_batch([step])
    if "--save" in sys.argv:
        with open(f"{path}.new", "w") as stream:
            json.dump(step + int(sys.argv[-1]), stream)
        os.replace(f"{path}.new", path)
        record_checkpoint()
"""


def run(capsys, *words):
    status = cli.main(["verify-resume", *map(str, words)])
    return status, *capsys.readouterr()


def test_a_loader_that_is_right_exits_with_0(capsys):
    options = ("--batches", 5, "--kill-at", 2, "--world-sizes", "1:2")
    status, out, err = run(capsys, f"{loaders.__file__}:counting", *options)
    assert status == 0
    assert "5 cases, 0 failed; 5 batches, order batch, seed " in out
    assert err == f"seed {out.splitlines()[1].split()[-1]}\n"
    assert all(len(line) <= 80 for line in out.splitlines()[1:])


def test_a_loader_that_is_wrong_exits_with_1(capsys):
    options = ("--batches", 5, "--kill-at", 2, "--world-sizes", "1", "--seed", 3, "--json")
    status, out, err = run(capsys, "tests.testing.loaders:forgets_read_ahead", *options)
    assert (status, err) == (1, "")
    found = json.loads(out)
    assert (found["ok"], found["seed"]) == (False, 3)
    assert {case["kind"]: case["missing"] for case in found["cases"]}["resumed"] == 8


def test_programs_are_killed_and_started_again(capsys, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ("--batches", 5, "--kill-at", 3, "--world-sizes", "1", "--seed", 1)
    status, out, _ = run(capsys, tmp_path / "train.py", *options, "--arguments=--save 2")
    assert (status, "it went on at batch 3 instead of 2" in out) == (1, True)
    status, _, err = run(capsys, tmp_path / "train.py", *options)
    assert status == 1
    assert "found none in 10 batches\nhint: let it call `tokenloom.testing.record_checkpoint`" in err


def test_what_fails_is_told(capsys):
    status, _, err = run(capsys, f"{loaders.__file__}:absent")
    assert status == 1
    assert "error: expected a function `absent` in" in err
    status, out, _ = run(capsys, f"{loaders.__file__}:always_raises", "--json")
    assert status == 1
    assert "rank 0 raised OSError: no such bucket" in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.py:make"], "found no file absent.py"),
        (["absent"], "expected FILE.py:FUNCTION, MODULE:FUNCTION or a program as LOADER, found no file absent"),
        (["a.b:make", "--arguments=x"], "expected --arguments for a program only"),
        ([__file__, "--fresh"], "expected --state-of, --samples, --epochs and --fresh for a factory only"),
        (["a.b:make", "--timeout", "0"], "expected seconds above 0 as --timeout, found 0"),
        (["a.b:make", "--kill-at", "24"], "expected --kill-at below --batches 24, found 24"),
        (["a.b:make", "--world-sizes", "1,x"], "expected a number from 1 on, found 'x'"),
        (["a.b:make", "--world-sizes", "2:0"], "expected a number from 1 on, found '0'"),
        (["a.b:make", "--state-of", "state"], "expected FILE.py:FUNCTION or MODULE:FUNCTION, found 'state'"),
        (["a.b:make", "--samples", "row"], "expected FILE.py:FUNCTION or MODULE:FUNCTION, found 'row'"),
    ],
)
def test_wrong_usage_exits_with_2(capsys, words, message):
    with pytest.raises(SystemExit) as stopped:
        run(capsys, *words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
