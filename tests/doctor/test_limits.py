"""What the system allows a process."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from tokenloom.doctor.check import Verdict
from tokenloom.doctor.limits import limit_finding, shared_memory_finding

ANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "verdict", "text", "hint"),
    [
        (ANY, ANY, Verdict.ok, "no limit", None),
        (65536, 65536, Verdict.ok, "65,536", None),
        (1024, 8192, Verdict.warning, "1,024, up to 8,192 if it is raised", "`ulimit -n 4096`"),
        (1024, ANY, Verdict.warning, "1,024, up to any number if it is raised", "`ulimit -n 4096`"),
        (256, 2048, Verdict.warning, "256, up to 2,048 if it is raised", "`ulimit -n 2048`"),
        (256, 256, Verdict.warning, "256", "the administrator"),
    ],
)
def test_a_low_limit_is_warned_of_with_the_command_that_raises_it(soft, hard, verdict, text, hint):
    found = limit_finding("open files", "num_open_files", soft, hard)
    assert (found.verdict, found.text) == (verdict, text)
    assert (found.hint is None) if hint is None else hint in found.hint
    assert found.facts == {
        "num_open_files": None if soft == ANY else soft,
        "num_most_open_files": None if hard == ANY else hard,
    }


def test_the_limits_of_this_process_are_told():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))\n"
        "from tokenloom.doctor.check import Asked\n"
        "from tokenloom.doctor.limits import check_limits\n"
        "print(*[(found.subject, found.verdict.name, found.text) for found in check_limits(Asked())], sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "('open files', 'warning', '512')" in done.stdout
    assert "('locked memory', 'ok'" in done.stdout


def test_shared_memory_that_is_not_there_is_warned_of(tmp_path):
    found = shared_memory_finding(str(tmp_path / "shm"))
    assert (found.verdict, found.text) == (Verdict.warning, f"`{tmp_path / 'shm'}`: No such file or directory")
    assert shared_memory_finding(str(tmp_path)).facts["num_free_bytes"] > 0
