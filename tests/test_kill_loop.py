"""A sample of the kill loop, see `make kill-loop`."""

import random
from collections import Counter

from tests.kill_cases import CASES
from tests.kill_loop import run_loop

KILLS, FAULTS = 24, 16


def test_what_is_killed_or_fails_leaves_old_or_new(tmp_path):
    seed = random.SystemRandom().randrange(1 << 32)
    names = random.Random(seed).sample(list(CASES), 8)
    print(f"seed {seed}")
    loop = run_loop(tmp_path, kills=KILLS, faults=FAULTS, seed=seed, names=names)
    assert loop.problems == []
    ends = Counter((fault == "kill", end) for (_, fault, end), number in loop.results.items() for _ in range(number))
    assert (ends[True, "killed"], ends[True, "failed"]) == (KILLS, 0)
    assert sum(number for (is_kill, _), number in ends.items() if not is_kill) == FAULTS
