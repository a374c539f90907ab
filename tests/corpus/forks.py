"""Jobs in forks of this process: of one that has imported all that a job does, and started no thread."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable


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


def do_not_wait_for_disks() -> None:
    """Lets this process, which may be killed but loses no power, go on before what it writes is durable."""
    os.fsync = os.fdatasync = lambda descriptor: None
