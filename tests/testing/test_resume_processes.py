"""Processes of ranks: watched, and gone in the end, with all that they have started."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from tests.support import wait_until

from tokenloom.errors import ConformanceError
from tokenloom.testing.recording import RecordWriter
from tokenloom.testing.resume_processes import HUNG, Ranks, environment_of, free_port, last_lines, start_program


def start(ranks, code, rank=0):
    process = start_program([sys.executable, "-c", code], rank, 1, free_port(), {}, f"{ranks.path(rank)}.log")
    ranks.add(process)
    return process


def ended(ranks):
    while not (found := list(ranks.look([0]))):
        pass
    return found


def test_all_that_a_rank_has_started_is_killed(tmp_path):
    with Ranks(str(tmp_path), 1, 20) as ranks:
        code = "import os, time; pid = os.fork(); print(pid if pid else '', flush=True); time.sleep(1000)"
        process = start(ranks, code)
        while not (words := (ranks.log(0) or "").split()):
            time.sleep(0.005)
    assert process.how_it_ended() == "was killed by signal 9"

    def is_gone() -> bool:
        state = subprocess.run(["ps", "-o", "stat=", "-p", words[0]], capture_output=True, text=True).stdout
        return not state or state.startswith("Z")

    wait_until(is_gone)


def test_a_rank_that_leads_no_group_yet_is_killed_too(tmp_path):
    process = Plain(subprocess.Popen(["sleep", "60"]))
    with Ranks(str(tmp_path), 1, 20) as ranks:
        ranks.add(process)
    assert process.how_it_ended() == "-9"


class Plain:
    """A process of this group, as a fork is before its first steps."""

    def __init__(self, process):
        self.process, self.pid = process, process.pid

    def how_it_ended(self):
        return None if self.process.poll() is None else str(self.process.returncode)


@pytest.mark.parametrize(
    ("code", "timeout", "how"),
    [("", 20, ""), ("raise SystemExit(3)", 20, "exited with 3"), ("import time; time.sleep(1000)", 0.05, HUNG)],
)
def test_the_way_a_rank_ends_is_told(tmp_path, code, timeout, how):
    with Ranks(str(tmp_path), 1, timeout) as ranks:
        start(ranks, code)
        assert ended(ranks) == [(0, how)]


def test_last_words_are_heard_before_an_end(tmp_path):
    with Ranks(str(tmp_path), 1, 20) as ranks:
        process = start(ranks, "")
        RecordWriter(f"{ranks.path(0)}.events").write("end")
        while process.how_it_ended() is None:
            time.sleep(0.005)
        assert list(ranks.look([0])) == []
        assert ranks.events(0) == [("end", None)]
        assert list(ranks.look([0])) == [(0, "")]
        assert ranks.state(0) == b""


def test_a_rank_knows_its_place(tmp_path):
    found = environment_of(2, 4, 1234)
    assert (found["RANK"], found["WORLD_SIZE"], found["MASTER_PORT"]) == ("2", "4", "1234")
    (tmp_path / "log").write_text("\n".join(map(str, range(20))))
    assert last_lines(str(tmp_path / "log")).split() == [*map(str, range(8, 20))]
    assert last_lines(str(tmp_path / "absent")) is None
    assert os.path.isdir(tmp_path)


def test_a_program_that_cannot_be_started(tmp_path):
    (tmp_path / "program").write_text("no program")
    with pytest.raises(ConformanceError, match=r"cannot start .*program: Permission denied"):
        start_program([str(tmp_path / "program")], 0, 1, 1, {}, str(tmp_path / "log"))
