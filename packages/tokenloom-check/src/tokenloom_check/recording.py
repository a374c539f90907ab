"""Records of the batches that a program reads, appended to a file as whole lines, which survive a kill.

A training program calls `record_batch` with every batch that it uses, and `record_checkpoint` once a checkpoint is
safe. Both do nothing unless `tokenloom verify-resume` has started the program.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from typing import Any

from tokenloom_check.fingerprints import CutSamples, SampleCutter

FILE = "TOKENLOOM_RESUME_RECORD"
"""Environment variable: the file for the records of a rank."""

FOLDER = "TOKENLOOM_RESUME_FOLDER"
"""Environment variable: the folder for checkpoints, empty at first, shared by the ranks."""

STOP_AFTER = "TOKENLOOM_RESUME_STOP_AFTER"
"""Environment variable: the batches after which a rank waits to be killed."""

STOP_SAMPLES = "TOKENLOOM_RESUME_STOP_SAMPLES"
"""Environment variable: the samples from which on a rank waits to be killed."""

_SECONDS_BETWEEN_LOOKS = 0.05


class RecordWriter:
    """Appends events to a file, a line each, each in one write."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: str, value: Any = None) -> None:
        """Adds an event, such as "batch" with its samples."""
        line = json.dumps([kind, value]).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]


@cache
class _Program:
    """The records of a process; a fork has its own."""

    def __init__(self, pid: int, path: str) -> None:
        self.writer = RecordWriter(path)
        self.parent = os.getppid()
        self.num_batches = 0
        self.num_samples = 0
        self.cutters: dict[Any, SampleCutter] = {}


def record_batch(batch: Any, *, samples: CutSamples = "auto") -> None:
    """Records a batch that a training program is about to use, for `tokenloom verify-resume PROGRAM`.

    Call it in the process of a rank, in the order of use, before anything that a checkpoint may hold of the batch. It
    does nothing unless the program was started by the check. Where the rank is to be killed, it does not return.

    Args:
        batch: tensors, arrays, mappings, sequences, texts, numbers.
        samples: how it is cut into samples; see `tokenloom verify-resume --help`.

    Raises:
        ConfigError: the batch holds what has no fingerprint.
    """
    if FILE not in os.environ:
        return
    program = _Program(os.getpid(), os.environ[FILE])
    cutter = program.cutters.setdefault(samples, SampleCutter(samples))
    found = cutter.samples(batch)
    program.num_batches += 1
    program.num_samples += len(found)
    program.writer.write("batch", (found, sorted(cutter.left_out)))
    limits = ((program.num_batches, STOP_AFTER), (program.num_samples, STOP_SAMPLES))
    if any(count >= int(os.environ.get(name, count + 1)) for count, name in limits):
        program.writer.write("stopped")
        wait_to_be_killed(program.parent)


def record_checkpoint() -> None:
    """Records that a checkpoint is complete: a restart continues after the batches recorded before.

    Call it once the last file of the checkpoint has its name, in every rank or in one. It does nothing unless the
    program was started by `tokenloom verify-resume`.
    """
    if FILE in os.environ:
        program = _Program(os.getpid(), os.environ[FILE])
        program.writer.write("checkpoint", program.num_batches)


def wait_to_be_killed(parent: int) -> None:
    """Waits until this process is killed, or the one that started it, its parent, is gone."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)
