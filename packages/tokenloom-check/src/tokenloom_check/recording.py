"""Records the batches that a training program reads, in a file of whole lines that survives a kill.

The program calls `record_batch` with every batch and `record_checkpoint` after every checkpoint. Both do nothing unless
`tokenloom verify-resume` started the program.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from typing import Any

from tokenloom_check.fingerprints import CutSamples, SampleCutter

# Environment variables of a rank
FILE = "TOKENLOOM_RESUME_RECORD"  # path of its record
FOLDER = "TOKENLOOM_RESUME_FOLDER"  # folder of checkpoints shared by all ranks, initially empty
STOP_AFTER = "TOKENLOOM_RESUME_STOP_AFTER"  # number of batches after which it waits to be killed
STOP_SAMPLES = "TOKENLOOM_RESUME_STOP_SAMPLES"  # number of samples after which it waits to be killed

_POLL_SECONDS = 0.05


class RecordWriter:
    """Appends events to a file, one JSON line per event."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: str, value: Any = None) -> None:
        line = json.dumps([kind, value]).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]


@cache
class _Program:
    """The recording of the process `pid`; a forked process starts its own."""

    def __init__(self, pid: int, path: str) -> None:
        self.writer = RecordWriter(path)
        self.parent = os.getppid()
        self.num_batches = 0
        self.num_samples = 0
        self.cutters: dict[Any, SampleCutter] = {}


def record_batch(batch: Any, *, samples: CutSamples = "auto") -> None:
    """Records a batch that a training program is about to use, for `tokenloom verify-resume PROGRAM`.

    Call it in the process of each rank, in the order of use, before a checkpoint can contain the batch. It does nothing
    unless `verify-resume` started the program. It does not return where the rank is to be killed.

    Args:
        batch: tensors, arrays, mappings, sequences, strings or numbers.
        samples: how to split the batch into samples; see `--samples` of `tokenloom verify-resume`.

    Raises:
        ConfigError: a value of the batch cannot be hashed.
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
    """Records that a checkpoint is complete: a restart continues after the batches recorded so far.

    Call it in one or all ranks after the last file of the checkpoint has its final name. It does nothing unless
    `tokenloom verify-resume` started the program.
    """
    if FILE in os.environ:
        program = _Program(os.getpid(), os.environ[FILE])
        program.writer.write("checkpoint", program.num_batches)


def wait_to_be_killed(parent: int) -> None:
    """Sleeps until this process is killed; exits if its parent process `parent` is gone."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
