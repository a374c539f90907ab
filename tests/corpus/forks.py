"""Jobs in forks of this process: of one that has imported all that a job does, and started no thread."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.corpus.jobs import preprocess

from tokenloom.tokenizers.load import load_tokenizer


def import_what_it_imports(work: Callable[[], object]) -> None:
    """Does some work in a fork, and imports here what it has imported there."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    if (process := os.fork()) == 0:
        work()
        sender.send(sorted(sys.modules))
        os._exit(0)
    sender.close()
    modules = receiver.recv()
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    for module in modules:
        if module.startswith("tokenloom."):
            importlib.import_module(module)


def write_inputs(folder: Path, *, last: str = "") -> None:
    """Writes two files of twelve documents, seven of them different, and makes the folder of what a job writes."""
    for number in range(2):
        lines = "".join(json.dumps({"text": f"text {row % 7}"}) + "\n" for row in range(12))
        (folder / f"{number}.jsonl").write_text(lines + last)
    (folder / "out").mkdir()


def do_job(folder: Path, **options: Any) -> None:
    """Does a job over those files in this process alone."""
    preprocess(
        [folder / "0.jsonl", folder / "1.jsonl"],
        folder / "out" / "out",
        load_tokenizer("byte"),
        num_processes=1,
        num_workers=1,
        **options,
    )


def do_not_wait_for_disks() -> None:
    """Lets this process, which may be killed but loses no power, go on before what it writes is durable."""
    os.fsync = os.fdatasync = lambda descriptor: None
