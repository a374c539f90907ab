"""The process that forks ranks: it answers what it is asked, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys

from tests.support import wait_until
from tests.testing import loaders

from tokenloom.testing.resume_factory import RankJob, name_function


def test_a_server_says_that_it_is_ready_then_forks_until_its_input_ends(tmp_path):
    path = tmp_path / "rank0"
    job = RankJob(rank=0, world_size=1, stop_after=2, take_state="now")
    path.with_suffix(".job").write_bytes(pickle.dumps((job, str(path), {"RANK": "0"})))
    command = [sys.executable, "-m", "tokenloom.testing.resume_worker", name_function(loaders.counting), "", "auto"]
    done = subprocess.run(command, input=f"{path}.job\n".encode(), stdout=subprocess.PIPE, check=True)
    answers = io.BytesIO(done.stdout)
    assert pickle.load(answers)[0] == "ready"
    kind, pid = pickle.load(answers)
    assert kind == "pid"
    wait_until(lambda: not _runs(pid))  # a rank ends once its server is gone


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_function_that_is_not_there_is_an_answer():
    command = [sys.executable, "-m", "tokenloom.testing.resume_worker", f"{loaders.__file__}:absent", "", "auto"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    assert pickle.loads(done.stdout)[0] == "config"
