"""Runs one job by many processes that come, and are killed, at random moments: run by `test_crashes`.

Each is a fork of this process, which has imported everything and started no thread.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.corpus.forks import do_job, do_not_wait_for_disks, import_what_it_imports, write_inputs
from tests.corpus.jobs import files_of

NUM_ROUNDS = 12


def start(folder: Path, *, seconds: float) -> int:
    """Starts a process that works on the job after some time; returns its number."""
    if (process := os.fork()) == 0:
        time.sleep(seconds)
        status = 1
        try:  # a fork must not go on as its parent
            do_job(folder, drop_duplicates=True, shard_bytes=100)
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    return process


def ended(process: int) -> int:
    """Returns how a process ended."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    """Raises if a process that was not killed fails, or the bytes are not those of one that was alone."""
    folder, rng = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    out = folder / "out"
    write_inputs(folder)
    do_not_wait_for_disks()
    import_what_it_imports(lambda: do_job(folder, drop_duplicates=True, shard_bytes=100))
    expected = files_of(out)
    for number in range(NUM_ROUNDS):
        shutil.rmtree(out)
        out.mkdir()
        processes = [start(folder, seconds=rng.random() * 0.15) for _ in range(6)]
        for process in processes[: 3 * (number % 2)]:
            time.sleep(rng.random() * 0.06)
            os.kill(process, signal.SIGKILL)
        for process in processes:
            assert ended(process) in (0, -signal.SIGKILL), number
        assert ended(start(folder, seconds=0)) == 0  # all may have been killed, or the last while it removed the folder
        assert files_of(out) == expected, (number, sorted(files_of(out)))
        assert not [path.name for path in out.iterdir() if path.is_dir()], number


if __name__ == "__main__":
    main()
