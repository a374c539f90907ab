"""A sample of the kill loop, see `make kill-loop`."""

import random
from collections import Counter

import pytest

from tests.kill_loop import CASES, run_loop


def check_loop(folder, seed, names, *, kills, faults, **options):
    loop = run_loop(folder, kills=kills, faults=faults, seed=seed, names=names, **options)
    assert loop.problems == []
    ends = Counter((fault == "kill", end) for (_, fault, end), number in loop.results.items() for _ in range(number))
    assert (ends[True, "killed"], ends[True, "failed"]) == (kills, 0)
    assert sum(number for (is_kill, _), number in ends.items() if not is_kill) == faults


def test_kills_and_failures_at_calls_leave_old_or_new_files(tmp_path, seed):
    names = ["merge", "corpus, copied parts", "chat", "index cache"]
    check_loop(tmp_path, seed, names, kills=10, faults=6, may_die_at_any_time=False)


@pytest.mark.slow
def test_kills_and_failures_at_any_time_leave_old_or_new_files(tmp_path, seed):
    check_loop(tmp_path, seed, random.Random(seed).sample(list(CASES), 8), kills=24, faults=16)
