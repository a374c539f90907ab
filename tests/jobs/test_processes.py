"""Several processes of this machine: what they tell, and what they cannot be given."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.jobs.numbers import NumberBook, NumberPlan

from tokenloom.errors import ConfigError
from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.processes import work_in_processes

HINT = "put functions and classes of your own into a module that can be imported, or use one process"

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
"""What a user writes into a file and starts, whose classes no other process can import."""


@dataclass(frozen=True)
class WithFunction(NumberPlan):
    """A job that holds a function."""

    function: object = None


@pytest.mark.parametrize("unnamed", [lambda texts: texts, open(os.devnull)])  # noqa: SIM115 - only to be pickled
def test_what_has_no_name_is_refused_before_a_process_is_started(tmp_path: Path, unnamed: object):
    plan = WithFunction(2, function=unnamed)
    folder: JobFolder = JobFolder(os.fspath(tmp_path / "job"), plan)
    with folder.joined(), pytest.raises(ConfigError, match="cannot hand the job to another process: ") as caught:
        work_in_processes(plan, folder, num_processes=1, num_workers=1, book=NumberBook())
    assert caught.value.hint == HINT
    assert list(tmp_path.iterdir()) == []


def test_a_class_of_a_script_is_told_of_at_once(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "job")],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    message, hint = done.stdout.strip().split("; ")
    assert message.startswith("a new process cannot find what the job is made of: ")
    assert "MyPlan" in message
    assert hint == HINT
    assert not (tmp_path / "job").exists()
