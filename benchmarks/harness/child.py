"""Sides as child processes that run one round per request."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from harness.row import Side

BENCHMARKS = Path(__file__).parent.parent
ROUND_SECONDS = 600  # no side takes so long to prepare, or for one round; what hangs is ended
END_SECONDS = 60


class SideError(RuntimeError):
    """A side exited early; the message is the last line of its output."""


class Child:
    """A prepared side in its own process, or, with `fresh`, a process that forks one process per round."""

    def __init__(self, side: Side, folder: Path, python: Path) -> None:
        self._side = side
        self._folder = folder
        self._python = python
        self._process: subprocess.Popen[str] | None = None
        self._start()

    def run_round(self) -> dict[str, Any]:
        """Returns the outcome of one round.

        Raises:
            SideError: the process exited.
        """
        return self._ask("go\n")

    def close(self) -> None:
        """Closes the input of the process, which then exits."""
        if self._process is None:
            return
        process, self._process = self._process, None
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself
            process.stdin.close()
        try:
            process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._errors.close()

    def _start(self) -> None:
        arguments = {"folder": str(self._folder), **self._side.arguments}
        benchmarks = self._side.checkout / "benchmarks" if self._side.checkout else BENCHMARKS
        # Modules of the benchmarks are for sides in this environment only: peers have modules of the same names.
        paths = {"PYTHONPATH": str(benchmarks)} if self._side.environment is None else {}
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [
                str(self._python),
                str(benchmarks / "sides" / self._side.script),
                json.dumps(arguments),
                *(["fresh"] * self._side.fresh),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=self._folder,
            env={**inherited, **paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )
        self._ask("")

    def _ask(self, message: str) -> dict[str, Any]:
        timer = threading.Timer(ROUND_SECONDS, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if answer:
            return json.loads(answer)
        self._process.kill()
        self._process.wait()
        words = self._last_words()
        self.close()
        raise SideError(words)

    def _last_words(self) -> str:
        """Returns the last line of the process's output, without paths of this machine."""
        self._errors.seek(0)
        text = self._errors.read()
        if os.environ.get("TOKENLOOM_BENCH_DEBUG"):
            print(text, file=sys.stderr)
        lines = text.strip().splitlines() or [f"exit status {self._process.returncode}"]
        return without_paths(lines[-1], [self._folder, BENCHMARKS.parent, Path.home(), Path(sys.prefix)])


def without_paths(text: str, paths: list[Path]) -> str:
    """Shortens a line of output, and replaces folders and addresses, since results are published."""
    text = re.sub(r"https?://\S+|host='[^']*'", "…", text)
    for path in paths:
        text = text.replace(str(path), "…")
    return text if len(text) <= 300 else text[:299] + "…"
