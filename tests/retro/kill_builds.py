"""Kills builds of a project at calls drawn at random, or lets the disk be full: run by `test_crashes`.

Each build is a fork of this process, which has imported everything and started no thread. Prints how many ended so.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.faults import arm_all
from tests.retro.whole import SETTINGS, assert_whole, build, copy_of, outputs_of, project

from tokenloom.retro.block_job import local_blocks
from tokenloom.retro.project import RetroProject

OLD = replace(SETTINGS, num_neighbors=1, chunk_length=2, num_index_chunks=6)
"""What is replaced, where something is."""


def run(made: RetroProject, how: str, number: int, *, overwrite: bool = False) -> tuple[int, int]:
    """Builds in a fork, and returns how it ended, and the number of its calls.

    Args:
        made: the project.
        how: what happens: "alone" for nothing; "kill" at a call; "full" for a disk that has no room from a call on;
            "limit" for one that has no room for files of so many bytes.
        number: of the call, or of bytes.
        overwrite: whether what is there may be replaced.
    """
    reading, writing = os.pipe()
    if (process := os.fork()) == 0:
        told = arm_all(made.folder, number if how in ACTS else NEVER, ACTS.get(how, full), lasting=how == "full")
        if how == "limit":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))
        try:
            build(made, runner=local_blocks(num_processes=1, num_workers=1), overwrite=overwrite)
        except OSError:  # a `StorageError`, but for unlocking, which fails of no full disk
            os._exit(FAILED)
        if how == "alone":
            os.write(writing, str(told()).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:
        num_calls = int(stream.read() or b"0")
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), num_calls


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


NEVER, FAILED = 1 << 40, 3
ACTS = {"kill": kill, "full": full}
ENDS = {"kill": {-signal.SIGKILL, 0}, "full": {FAILED, 0}, "limit": {FAILED, 0}}


def main() -> None:
    """Raises if a build ends otherwise than one that was left alone, or leaves something half written on the way."""
    folder, rng, num_runs = Path(sys.argv[1]), np.random.default_rng(int(sys.argv[2])), int(sys.argv[3])
    first = project(folder / "first", rng, num_documents=15)
    status, num_calls = run(first, "alone", 0)
    assert status == 0
    expected, num_ended = outputs_of(first), 0
    for overwrite in (False, True):
        made = copy_of(first, folder / f"again{overwrite:d}")
        if overwrite:
            if (process := os.fork()) == 0:
                build(made, OLD)
                os._exit(0)
            assert os.waitpid(process, 0)[1] == 0
        for number in range(num_runs):
            how = ("kill", "full", "limit")[number % 3]
            at = int(rng.integers(20_000 if how == "limit" else num_calls // 2))
            status, _ = run(made, how, at, overwrite=overwrite)
            assert status in ENDS[how], (how, at, status)
            num_ended += status != 0
            assert_whole(made)
        assert run(made, "alone", 0, overwrite=overwrite)[0] == 0
        assert_whole(made)
        found = outputs_of(made)
        assert found == expected, sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        assert [str(path) for path in Path(made.folder).rglob("*.job*")] == []
    print(num_ended)


if __name__ == "__main__":
    main()
