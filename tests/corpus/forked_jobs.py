"""Jobs in forks of this process, killed at steps of their assembly or sharing one folder: run by `test_crashes`.

    python -m tests.corpus.forked_jobs kill FOLDER OPTIONS STRIDE
    python -m tests.corpus.forked_jobs share FOLDER SEED

The steps are what the interpreter itself announces to audit hooks, from the first look at the lock on. Each job is a
fork of this process, which has imported everything and started no thread.
"""

import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.corpus.jobs import files_of, preprocess
from tests.support import small_shards

from tokenloom.tokenizers.load import load_tokenizer

STEPS = {"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate", "os.scandir"}
NUM_ROUNDS = 12


def forked(work: Callable[[], object]) -> int:
    """Does some work in a fork of this process; returns its number."""
    if (process := os.fork()) == 0:
        status = 1
        try:  # a fork must not go on as its parent
            work()
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    return process


def ended(process: int) -> int:
    """Waits for a process; returns its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def import_what_it_imports(work: Callable[[], object]) -> None:
    """Does some work in a fork, and imports here what it has imported there."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def report() -> None:
        work()
        sender.send(sorted(sys.modules))

    process = forked(report)
    sender.close()
    modules = receiver.recv()
    assert ended(process) == 0
    for module in modules:
        if module.startswith("tokenloom."):
            importlib.import_module(module)


def do_job(folder: Path, **options: Any) -> None:
    """Does a job over the two files of a folder."""
    paths = [folder / "0.jsonl", folder / "1.jsonl"]
    preprocess(paths, folder / "out" / "out", load_tokenizer("byte"), num_workers=1, **options)


def expected_of(folder: Path, *, last: str = "", **options: Any) -> dict[str, bytes]:
    """Writes two files of twelve documents, seven of them different; returns the files of a job."""
    for number in range(2):
        lines = "".join(json.dumps({"text": f"text {row % 7}"}) + "\n" for row in range(12))
        (folder / f"{number}.jsonl").write_text(lines + last)
    (folder / "out").mkdir()
    os.fsync = os.fdatasync = lambda descriptor: None  # processes are killed, but no power is lost
    import_what_it_imports(lambda: do_job(folder, **options))
    return files_of(folder / "out")


def run_and_die(folder: Path, *, die_at: int | None, **options: Any) -> int:
    """Runs the job in a fork, which dies at a step of a number; returns how it ended."""

    def work() -> None:
        num_steps = 0

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal num_steps
            if event in STEPS and any(str(folder / "out") in str(argument) for argument in arguments):
                num_steps += bool(num_steps) or "assembly.lock" in str(arguments[0])
                if num_steps == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        do_job(folder, **options)

    return ended(forked(work))


def kill(folder: Path, options: dict[str, Any], stride: int) -> None:
    """Prints how often a job was killed; raises if the bytes differ afterwards."""
    out, options = folder / "out", {"skip_bad_records": True, **options}
    expected = expected_of(folder, last="bad\n", **options)
    num_kills = 0
    while True:
        shutil.rmtree(out)
        out.mkdir()
        status = run_and_die(folder, die_at=1 + num_kills * stride, **options)
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        num_kills += 1
        assert run_and_die(folder, die_at=None, **options) == 0, num_kills
        assert files_of(out) == expected, (num_kills, sorted(files_of(out)))
        assert [path.name for path in out.iterdir() if path.is_dir()] == [], num_kills
    print(num_kills)


def share(folder: Path, seed: int) -> None:
    """Starts and kills processes at random moments; raises if another one fails, or the bytes differ."""
    out, rng, options = folder / "out", random.Random(seed), {"drop_duplicates": True, "shard_bytes": 100}
    expected = expected_of(folder, **options)

    def start(seconds: float) -> int:
        return forked(lambda: (time.sleep(seconds), do_job(folder, **options)))

    for number in range(NUM_ROUNDS):
        shutil.rmtree(out)
        out.mkdir()
        processes = [start(rng.random() * 0.15) for _ in range(6)]
        for process in processes[: 3 * (number % 2)]:
            time.sleep(rng.random() * 0.06)
            os.kill(process, signal.SIGKILL)
        for process in processes:
            assert ended(process) in (0, -signal.SIGKILL), number
        assert ended(start(0)) == 0  # all may have been killed, or the last while it removed the folder
        assert files_of(out) == expected, (number, sorted(files_of(out)))
        assert not [path.name for path in out.iterdir() if path.is_dir()], number


if __name__ == "__main__":
    with small_shards():
        if sys.argv[1] == "kill":
            kill(Path(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]))
        else:
            share(Path(sys.argv[2]), int(sys.argv[3]))
