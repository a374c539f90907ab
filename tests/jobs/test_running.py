from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.jobs.numbers import NumberBook, NumberPlan, sum_of

from tokenloom.errors import ConfigError, WorkerError
from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.processes import local_runner, work_in_processes
from tokenloom.preprocess.sharded import Counts, Runner, work_on_shards


def runner(num_processes: int) -> Runner:
    return local_runner(most_processes=8, num_processes=num_processes, num_workers=1)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_all_shards_are_done_and_the_folder_goes(tmp_path: Path, num_processes: int):
    book = NumberBook()
    assert sum_of(NumberPlan(5), tmp_path / "job", runner(num_processes), book=book) == 0 + 1 + 4 + 9 + 16
    assert set(book.done) == {0, 1, 2, 3, 4}  # each process tells of those that others did, too
    assert set(map(str, book.told.values())) == {"{'written': 1}"}
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    plan = NumberPlan(3, folder=str(tmp_path), dies_at=1, deaths=2)
    assert sum_of(plan, tmp_path / "job", runner(2)) == 5
    assert "a process that worked on shard 1 (the number 1) died (signal 9)" in caplog.text


def test_a_shard_that_kills_everybody_ends_the_job_and_keeps_the_others(tmp_path: Path):
    plan = NumberPlan(3, folder=str(tmp_path), dies_at=2, deaths=100)
    with pytest.raises(WorkerError, match=r"shard 2 \(the number 2\) died \(signal 9\), as did 2 processes before it"):
        sum_of(plan, tmp_path / "job", runner(2))
    assert {path.name for path in (tmp_path / "job").glob("*.json")} == {"job.json", f"{0:024x}.json", f"{1:024x}.json"}
    (tmp_path / "deaths").write_text("x" * 100)
    assert sum_of(plan, tmp_path / "job", runner(1)) == 5


@pytest.mark.parametrize("setting", ["num_processes", "num_workers"])
def test_a_number_below_one_is_refused(setting: str):
    with pytest.raises(ConfigError, match=setting):
        local_runner(most_processes=3, **{"num_processes": 1, "num_workers": 1, setting: 0})


@pytest.mark.parametrize("num_processes", [1, 2])
def test_what_a_shard_raises_reaches_the_caller_with_its_hint(tmp_path: Path, num_processes: int):
    with pytest.raises(ConfigError, match="the number 1 cannot be squared") as caught:
        sum_of(NumberPlan(2, wrong_at=1), tmp_path / "job", runner(num_processes))
    assert caught.value.hint == "leave it out"
    with pytest.raises(ConfigError, match="num_processes"):
        runner(0)


def test_a_shard_that_another_holds_comes_last_and_is_waited_for(tmp_path: Path):
    plan, is_at_the_end = NumberPlan(4), threading.Event()

    class Watched(NumberBook):
        def update(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
            super().update(number, counts, is_done=is_done)
            if number == 3 and is_done:
                is_at_the_end.set()

    folder, other, book = *(JobFolder(str(tmp_path / "job"), plan) for _ in range(2)), Watched()
    with other.joined(), folder.joined():
        with other.claimed(plan.shards[1], wait=False) as is_theirs:
            assert is_theirs
            options = {"num_workers": 1, "book": book}
            thread = threading.Thread(target=work_on_shards, args=(plan, folder), kwargs=options)
            thread.start()
            assert is_at_the_end.wait(60)
            plan.square(plan.shards[1], other.part_prefix(plan.shards[1]))
        thread.join()
        folder.remove()
    assert book.done == [0, 2, 3, 1]


HINT = "move your own functions and classes to an importable module, or use `num_processes=1`"

SCRIPT = """
import sys
from tests.jobs.numbers import NumberBook, NumberPlan
from tokenloom.errors import ConfigError
from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.processes import work_in_processes

class MyPlan(NumberPlan):
    pass

plan = MyPlan(2)
folder = JobFolder(sys.argv[1], plan)
try:
    with folder.joined():
        work_in_processes(plan, folder, num_processes=1, num_workers=1, book=NumberBook())
except ConfigError as error:
    print(error.message, error.hint, sep="; ")
"""


@dataclass(frozen=True)
class WithFunction(NumberPlan):
    function: object = None


@pytest.mark.parametrize("unnamed", [lambda texts: texts, open(os.devnull)])  # noqa: SIM115 - only to be pickled
def test_what_has_no_name_is_refused_before_a_process_is_started(tmp_path: Path, unnamed: object):
    plan = WithFunction(2, function=unnamed)
    folder: JobFolder = JobFolder(os.fspath(tmp_path / "job"), plan)
    with folder.joined(), pytest.raises(ConfigError, match="cannot pickle the job for another process: ") as caught:
        work_in_processes(plan, folder, num_processes=1, num_workers=1, book=NumberBook())
    assert caught.value.hint == HINT
    assert list(tmp_path.iterdir()) == []


def test_a_class_of_a_script_is_told_of_at_once(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "job")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    message, hint = done.stdout.strip().split("; ")
    assert message.startswith("cannot load the job in another process: ")
    assert "MyPlan" in message
    assert hint == HINT
    assert not (tmp_path / "job").exists()
