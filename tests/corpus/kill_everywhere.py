"""Kills a job at every step of its assembly that others could see, and lets it end: run by `test_crashes`.

The steps are what the interpreter itself announces to audit hooks, from the first look at the lock on. Each job is a
fork of this process, which has imported everything and started no thread.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from tests.corpus.forks import do_job, do_not_wait_for_disks, import_what_it_imports, write_inputs
from tests.corpus.jobs import files_of

STEPS = {"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate", "os.scandir"}
KILLED = -signal.SIGKILL


def run(folder: Path, *, die_at: int | None, options: dict[str, Any]) -> int:
    """Runs the job in a fork, which dies at a step of a number; returns how it ended."""
    if (process := os.fork()) == 0:
        num_steps = 0

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal num_steps
            if event in STEPS and any(str(folder / "out") in str(argument) for argument in arguments):
                num_steps += bool(num_steps) or "assembly.lock" in str(arguments[0])
                if num_steps == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        do_job(folder, skip_bad_records=True, **options)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    """Prints how often a job was killed; raises if one ended otherwise than one that was left alone."""
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    out = folder / "out"
    write_inputs(folder, last="bad\n")
    do_not_wait_for_disks()
    import_what_it_imports(lambda: do_job(folder, skip_bad_records=True, **options))
    expected = files_of(out)
    num_kills = 0
    while True:
        shutil.rmtree(out)
        out.mkdir()
        status = run(folder, die_at=num_kills + 1, options=options)
        if status == 0:
            break
        assert status == KILLED, status
        num_kills += 1
        assert run(folder, die_at=None, options=options) == 0, num_kills
        assert files_of(out) == expected, (num_kills, sorted(files_of(out)))
        assert [path.name for path in out.iterdir() if path.is_dir()] == [], num_kills
    print(num_kills)


if __name__ == "__main__":
    main()
