"""Real processes, one per rank, that run case after case of a module: `tests/distributed/worker.py`, or packing's.

Tests that lose no process share warm ones, all of which take part in each case; a test that kills, freezes or cuts off
one starts its own.
"""

import importlib
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import wait_until

PATIENCE_SECONDS = 120
"""Before a case counts as hanging; the slowest takes 5 seconds on an idle machine."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The default process group of a case: it begins anew for each folder."""

    world_size: int
    shared: Path
    backend: str = "gloo"


@dataclass
class Outcomes:
    """What became of each rank that lived, by rank; and which files the ranks left."""

    by_rank: dict[int, dict[str, Any]]
    group: Group

    @property
    def shared(self) -> Path:
        return self.group.shared

    @property
    def results(self) -> list[Any]:
        assert not [outcome for outcome in self.by_rank.values() if "kind" in outcome], self.by_rank
        return [self.by_rank[rank]["result"] for rank in range(self.group.world_size)]

    @property
    def errors(self) -> list[tuple[str, str]]:
        assert all("kind" in outcome for outcome in self.by_rank.values()), self.by_rank
        return [(outcome["kind"], outcome["message"]) for _, outcome in sorted(self.by_rank.items())]

    def noted(self, prefix: str) -> list[int]:
        return sorted(int(path.name.split("-")[1]) for path in self.shared.glob(f"{prefix}-?"))


class Fleet:
    """Processes that run case after case; others take their place if one is lost or hangs."""

    def __init__(self, context: Any, size: int) -> None:
        self._context, self._size = context, size
        self.num_starts = 0
        self._connections: list[Any] = []
        self._processes: list[Any] = []
        self.start_if_lost()

    def start_if_lost(self) -> None:
        """Starts the processes, unless they have come well out of all cases so far."""
        if self._connections:
            return
        self.num_starts += 1
        for rank in range(self._size):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=main, args=(theirs, rank), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def run(self, group: Group, module: str, case: str, *, frozen: tuple[int, ...] = (), **options: Any) -> Outcomes:
        """Runs a case on every rank of a group; the frozen are woken when others have ended."""
        self.start_if_lost()
        members = dict(enumerate(self._connections))
        assert len(members) == group.world_size
        for connection in members.values():
            connection.send((group, module, case, options))
        by_rank: dict[int, dict[str, Any]] = {}
        last = {rank: members.pop(rank) for rank in frozen}
        try:
            self._hear(members, by_rank, f"{case} {options}")
            for rank in frozen:
                os.kill(self._processes[rank].pid, signal.SIGCONT)
            self._hear(last, by_rank, f"{case} {options}")
        finally:
            if len(by_rank) < self._size:
                self.close()
        return Outcomes(by_rank, group)

    @staticmethod
    def _hear(waiting: dict[int, Any], by_rank: dict[int, dict[str, Any]], what: str) -> None:
        """Waits for what came of some ranks."""
        stop = time.monotonic() + PATIENCE_SECONDS
        while waiting:
            ready = multiprocessing.connection.wait(waiting.values(), timeout=max(0.0, stop - time.monotonic()))
            assert ready, f"{what} hangs on ranks {list(waiting)}; so far: {by_rank}"
            for rank in [rank for rank, connection in waiting.items() if connection in ready]:
                try:
                    by_rank[rank] = waiting.pop(rank).recv()
                except (EOFError, ConnectionResetError):  # killed
                    continue

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []


@contextmanager
def fleet_of(context: Any, size: int) -> Iterator[Fleet]:
    """Yields processes of one's own, which may be killed."""
    fleet = Fleet(context, size)
    try:
        yield fleet
    finally:
        fleet.close()


class Member:
    """What a case sees: its rank, and a folder that all share."""

    def __init__(self, rank: int, world_size: int, shared: Path) -> None:
        self.rank = rank
        self.world_size = world_size
        self.shared = shared
        self.sockets = 0
        self.note(f"pid-{rank}", str(os.getpid()))
        self.wait_for(*(f"pid-{other}" for other in range(world_size)))

    def note(self, what: str, text: str = "") -> None:
        """Leaves a file that others can wait for."""
        (self.shared / f"{what}.new-{self.rank}").write_text(text)
        (self.shared / f"{what}.new-{self.rank}").rename(self.shared / what)

    def noted(self, what: str) -> bool:
        return (self.shared / what).exists()

    def wait_for(self, *what: str) -> None:
        wait_until(lambda: all(map(self.noted, what)))

    def signal(self, rank: int, number: int) -> None:
        os.kill(int((self.shared / f"pid-{rank}").read_text()), number)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def freeze(self) -> None:
        """Stops as a machine that swaps does, until the test says that it may go on."""
        time.sleep(0.2)  # its thread says in what step it is
        self.note(f"frozen-{self.rank}")
        os.kill(os.getpid(), signal.SIGSTOP)


def main(connection: Any, rank: int) -> None:
    """Runs the cases that come, sends what came of each."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    joined, members = None, {}
    while True:
        try:
            group, module, case, options = connection.recv()
        except EOFError:
            os._exit(0)  # not through torch's goodbyes, which wait for the dead
        worker = importlib.import_module(module)
        if group != joined:
            if dist.is_initialized():
                dist.destroy_process_group()
            join(group, rank)
            joined, members = group, {}
        if module not in members:
            members[module] = worker.Rank(rank, group.world_size, group.shared)
        connection.send(_outcome(worker, members[module], case, options))


def _outcome(worker: Any, me: Any, case: str, options: dict[str, Any]) -> dict[str, Any]:
    from tokenloom.distributed.ranks import set_rank_silence_seconds
    from tokenloom.errors import TokenloomError

    outcome: dict[str, Any] = {}
    me.sockets = count_sockets()
    has_limit = "silence" in options
    set_rank_silence_seconds(options.pop("silence", None))
    try:
        outcome["result"] = getattr(worker, case)(me, **options)
    except TokenloomError as error:
        outcome |= {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
        outcome["causes"] = list(_causes(error))
    except Exception:  # noqa: BLE001  shown by the test that fails
        outcome |= {"kind": "unexpected", "message": traceback.format_exc()}
    set_rank_silence_seconds(None)
    if "kind" in outcome and has_limit:  # what is left matters where somebody was silent
        with suppress(TimeoutError):
            wait_until(lambda: not ranks_threads() and count_sockets() <= me.sockets)
        outcome["left"] = (ranks_threads(), max(0, count_sockets() - me.sockets))
    return outcome


def join(group: Group, rank: int, name: str = "store") -> None:
    """Forms the default group, beside a file, or beside a server that lives and dies with rank 0."""
    import torch.distributed as dist

    store: Any
    if group.backend.endswith(" by TCP"):
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            (group.shared / "port.new").write_text(str(store.port))
            (group.shared / "port.new").rename(group.shared / "port")
        else:
            wait_until(lambda: (group.shared / "port").exists())
            store = dist.TCPStore("127.0.0.1", int((group.shared / "port").read_text()), wait_for_workers=False)
    else:
        store = dist.FileStore(str(group.shared / name), group.world_size)
    dist.init_process_group(group.backend.split()[0], store=store, rank=rank, world_size=group.world_size)


def _causes(error: BaseException) -> Iterator[str]:
    while (cause := error.__cause__) is not None:
        yield f"{type(cause).__name__}: {cause.args[0] if cause.args else ''}"
        error = cause


def count_sockets() -> int:
    """Returns how many sockets this process has."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


def ranks_threads() -> list[str]:
    """Returns the names of the threads that ranks talk through."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name == "tokenloom-ranks")


Runner = Callable[..., Outcomes]
