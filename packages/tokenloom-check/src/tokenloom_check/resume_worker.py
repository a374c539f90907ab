"""The process that forks ranks of a factory: `python -m tokenloom_check.resume_worker FACTORY STATE_OF SAMPLES`.

It answers on what was its standard output: first whether the factory was found, then with a process id for every line
of its standard input, the name of a file with the job of a rank.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import sys
import threading
import traceback
from typing import IO, Any

from tokenloom.errors import ConfigError, TokenloomError
from tokenloom_check.fingerprints import WAYS
from tokenloom_check.recording import RecordWriter, wait_to_be_killed
from tokenloom_check.resume_factory import Factory, RankJob, error_words, load_function, read_rank


def main(name: str, state_of: str, samples: str) -> None:
    """Serves until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's code prints is no answer
    try:
        factory = Factory(
            load_function(name),
            state_of=load_function(state_of) if state_of else None,
            samples=samples if samples in WAYS else load_function(samples),
        )
    except ConfigError as error:
        _answer(answers, "config", (error.message, error.hint))
        return
    except BaseException as error:  # noqa: BLE001 - the one that asked words it
        _answer(answers, "error", (error_words(error), traceback.format_exc()))
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a rank
    gc.freeze()
    _answer(answers, "ready", threading.active_count())
    for line in sys.stdin.buffer:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            answers.close()
            _run(factory, line.decode().rstrip("\n"), server)
        _answer(answers, "pid", pid)


def _answer(stream: IO[bytes], kind: str, value: Any) -> None:
    pickle.dump((kind, value), stream)
    stream.flush()


def _run(factory: Factory, path: str, server: int) -> None:
    """Runs a rank, and never returns."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with open(path, "rb") as stream:
            job, files, variables = pickle.load(stream)
        log = os.open(f"{files}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        faulthandler.enable(file=2)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
        os.environ.update(variables)
        _read(factory, job, files, server)
    finally:
        os._exit(1)


def _read(factory: Factory, job: RankJob, files: str, server: int) -> None:
    """Records what a rank reads, then waits to be killed in the middle of it."""
    writer = RecordWriter(f"{files}.events")
    reader = read_rank(factory, job)
    try:
        for kind, value in reader:
            if kind == "state":
                with open(f"{files}.state", "wb") as stream:
                    stream.write(value)
            writer.write(kind, None if kind == "state" else value)
            if kind in ("state", "stopped", "end"):
                wait_to_be_killed(server)
    except TokenloomError as error:
        writer.write("error", (f"failed: {error.message}", error.hint))
    except BaseException as error:  # noqa: BLE001 - the one that asked words it
        writer.write("error", (f"raised {error_words(error)}", traceback.format_exc()))


if __name__ == "__main__":
    main(*sys.argv[1:])
