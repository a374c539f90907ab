"""Runners give the same whichever way ranks are run; and what fails in a rank is told."""

from __future__ import annotations

import os
import pickle
import sys

import pytest
from tests.testing import loaders

from tokenloom.errors import ConfigError, ConformanceError
from tokenloom.testing import resume_runners
from tokenloom.testing.resume_factory import Factory, name_function
from tokenloom.testing.resume_processes import Ranks
from tokenloom.testing.resume_runners import InProcess, Point, Processes, Program, RankFailedError, Reading


def processes(make, *, timeout=20.0, fresh=False):
    return Processes(name_function(make), state_of=None, samples="auto", timeout=timeout, fresh=fresh)


def read(runner, **reading):
    """Returns what was read to a point, and from there on."""
    first = runner.run(Reading(world_size=2, begin=Point(), stop_after=3, take_state="now"))
    return first, runner.run(Reading(world_size=3, begin=first.point, num_samples=30, **reading))


def test_processes_read_what_this_process_reads():
    expected = read(InProcess(Factory(loaders.counting)))
    assert [len(found.batches) for found in expected] == [3, 3]
    assert (expected[0].point.consumed, expected[0].point.num_batches, len(expected[0].point.states)) == (24, 3, 2)
    for fresh in (False, True):
        runner = processes(loaders.counting, fresh=fresh)
        try:
            found = read(runner)
        finally:
            runner.close()
        assert [one.batches for one in found] == [one.batches for one in expected]
        assert found[0].point == expected[0].point


def test_ends_and_epochs_are_told():
    runner = InProcess(Factory(loaders.short))
    found = runner.run(Reading(world_size=1, begin=Point(epochs=2), stop_after=100))
    assert (found.ended, found.epoch_ends, len(found.batches)) == (True, [10, 20], 20)
    found = runner.run(Reading(world_size=1, begin=Point(epochs=2), stop_after=15, take_state="now"))
    assert (found.ended, found.epoch_ends, found.point.epochs) == (False, [10], 1)


def test_ranks_may_have_different_numbers_of_batches():
    def uneven(rank, state):
        return [[f"{rank}{number}"] for number in range(2 + rank)]

    found = InProcess(Factory(uneven)).run(Reading(world_size=2, begin=Point(), stop_after=10))
    assert [[len(rank) for rank in batch] for batch in found.batches] == [[1, 1], [1, 1], [0, 1]]
    assert found.ended


class Patient(Ranks):
    """Has little patience only with a rank that hangs, and only once all others are done: a machine may be busy."""

    def look(self, waiting):
        hangs = [*waiting] == [1] and "hangs" in (self.log(1) or "")
        self.timeout = 0.5 if hangs else 20.0
        return super().look(waiting)


@pytest.mark.parametrize(
    ("make", "message", "detail"),
    [
        (loaders.raises, "rank 1 raised OSError: no such bucket, in loaders.py:", "Traceback"),
        (loaders.hangs, "rank 1 gave nothing for 0.5 seconds", "in hangs"),
        (loaders.dies, "rank 0 died without a word", "out of memory"),
    ],
)
def test_a_rank_that_fails_is_named(make, message, detail, monkeypatch):
    monkeypatch.setattr(resume_runners, "Ranks", Patient)
    runner = processes(make)
    try:
        point = Point(states=(pickle.dumps({"position": 4}),), num_batches=1)
        with pytest.raises(RankFailedError) as caught:
            runner.run(Reading(world_size=2, begin=point, stop_after=3))
        assert str(caught.value).startswith(message)
        assert detail in caught.value.detail
        assert caught.value.hung == (make is loaders.hangs)
    finally:
        runner.close()


def test_what_is_wrong_before_ranks_begin_is_told(tmp_path):
    with pytest.raises(ConfigError, match="expected a function `absent` in"):
        Processes(f"{loaders.__file__}:absent", state_of=None, samples="auto", timeout=20, fresh=False)
    with pytest.raises(ConfigError, match="expected a factory that takes `state` or `consumed`"):
        processes(loaders.cannot_go_on)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ConformanceError, match=r"broken.py:make` raised ZeroDivisionError: .*, in broken.py:1"):
        Processes(f"{tmp_path}/broken.py:make", state_of=None, samples="auto", timeout=20, fresh=False)
    (tmp_path / "sleeping.py").write_text("import time\ntime.sleep(1000)\n")
    with pytest.raises(ConformanceError, match=r"importing `.*sleeping.py:make` took more than 0.3 seconds"):
        Processes(f"{tmp_path}/sleeping.py:make", state_of=None, samples="auto", timeout=0.3, fresh=False)


PROGRAM = """
import json, os, sys
from tokenloom.testing import record_batch, record_checkpoint

rank, size, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["TOKENLOOM_RESUME_FOLDER"]
path = f"{folder}/{rank}.json"
start = json.load(open(path)) if os.path.exists(path) else 0
print("pid", os.getpid(), flush=True)
with open(sys.argv[1], "a") as stream:
    stream.write(f"{os.getpid()}\\n")
for step in range(start, 20):
    record_batch([f"{step} of {rank}"])
    if step % 3 == 2:
        with open(f"{path}.new", "w") as stream:
            json.dump(step + 1, stream)
        os.replace(f"{path}.new", path)
        record_checkpoint()
raise SystemExit(int(sys.argv[2]))
"""


def program(tmp_path, *, status=0, timeout=20.0):
    (tmp_path / "train.py").write_text(PROGRAM)
    return Program([sys.executable, str(tmp_path / "train.py"), str(tmp_path / "pids"), str(status)], timeout=timeout)


def test_a_program_is_killed_and_goes_on_from_its_checkpoint(tmp_path):
    runner = program(tmp_path)
    first = runner.run(Reading(world_size=2, begin=Point(), stop_after=5))
    assert [batch[1][0].words for batch in first.batches] == [f"'{step} of 1'" for step in range(5)]
    assert (first.point.num_batches, first.point.consumed, first.first_checkpoint) == (3, 6, 3)
    rest = runner.run(Reading(world_size=2, begin=first.point, num_samples=100))
    assert rest.batches[0][0][0].words == "'3 of 0'"
    assert rest.ended
    for line in (tmp_path / "pids").read_text().splitlines():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line), 0)
    runner.close()


def test_a_program_that_fails_is_named(tmp_path):
    runner = program(tmp_path, status=3)
    with pytest.raises(RankFailedError, match="rank 0 exited with 3") as caught:
        runner.run(Reading(world_size=1, begin=Point(), stop_after=50))
    assert caught.value.detail.startswith("pid ")
    runner.close()
