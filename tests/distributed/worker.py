"""One rank of a case in `tests/distributed`: runs in a process of its own, started from a server that has torch."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.loading.reading import Lying
from tests.support import StandInTokenizer, make_config, wait_until
from torch.distributed.distributed_c10d import _set_pg_timeout

import tokenloom
from tokenloom.distributed.agreement import agree
from tokenloom.distributed.building import build_together
from tokenloom.distributed.meeting import Meeting
from tokenloom.distributed.ranks import HOST_VARIABLE, current_ranks
from tokenloom.distributed.silence import set_rank_silence_seconds
from tokenloom.distributed.steps import do_together
from tokenloom.errors import IndexCacheError, TokenloomError
from tokenloom.loading.digest import check_same_batches
from tokenloom.order.array_order import SpanArrays


class Stub(dist.ProcessGroup):
    """A default group that moves nothing, as NCCL's cannot move CPU tensors."""

    def getBackendName(self) -> str:
        return "stub"


dist.Backend.register_backend("stub", lambda store, rank, size, timeout: Stub(rank, size), devices=["cpu"])


class Rank:
    """What a case sees: its rank, a folder that all share, and work that leaves a trace of every call."""

    def __init__(self, rank: int, world_size: int, shared: Path) -> None:
        self.rank = rank
        self.world_size = world_size
        self.shared = shared
        self.folder = shared / "cache"
        self.sockets = 0

    def note(self, what: str) -> None:
        """Leaves a file that others can wait for, with the time of the system-wide clock in it."""
        (self.shared / f"{what}.new-{self.rank}").write_text(str(time.monotonic()))
        (self.shared / f"{what}.new-{self.rank}").rename(self.shared / what)

    def noted(self, what: str) -> bool:
        return (self.shared / what).exists()

    def wait_for(self, *what: str) -> None:
        wait_until(lambda: all(map(self.noted, what)))

    def wait_for_any(self, pattern: str) -> None:
        wait_until(lambda: any(path.suffix == "" for path in self.shared.glob(pattern)))

    def work(self) -> str:
        """Builds if nothing is there; returns which rank built."""
        result = self.folder / "result"
        if result.exists():
            self.note(f"loaded-{self.rank}")
            return result.read_text()
        self.note(f"built-{self.rank}")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"pending-{self.rank}").write_text(f"built by {self.rank}")
        (self.folder / f"pending-{self.rank}").rename(result)
        return result.read_text()

    def die(self) -> None:
        self.note("killed")
        os.kill(os.getpid(), signal.SIGKILL)

    def freeze(self) -> None:
        """Stops as a machine that swaps does, until the test says that it may go on."""
        self.note(f"frozen-{self.rank}")
        os.kill(os.getpid(), signal.SIGSTOP)

    def build(self, work: Callable[[], Any] | None = None, **options: Any) -> Any:
        return build_together(work or self.work, folder=os.fspath(self.folder), **options)


# --- cases: each runs on every rank, and returns or raises what its test looks at ------------------------------------


def build(me: Rank, wanted: tuple[int, ...] = (0, 1, 2, 3), builders: Any = "auto") -> Any:
    return me.build(is_built_on_rank=lambda: me.rank in wanted, builders=builders)


def build_in_memory(me: Rank) -> Any:
    def work() -> int:
        me.note(f"working-{me.rank}")
        me.wait_for(*(f"working-{rank}" for rank in range(me.world_size)))  # all at the same time
        return me.rank

    return build_together(work, folder=None)


def build_on_hosts(me: Rank, hosts: str, folders: str, builders: Any = "auto", wanted: Any = (0, 1, 2, 3)) -> Any:
    """`hosts` and `folders` have a letter per rank; a capital folder cannot be written."""
    os.environ[HOST_VARIABLE] = f"host-{hosts[me.rank]}"
    me.folder = me.shared / f"cache-{folders[me.rank].lower()}"
    if folders[me.rank].isupper():
        me.folder = Path("/proc/nowhere/cache")
        return me.build(lambda: me.note(f"built-{me.rank}"), is_built_on_rank=lambda: me.rank in wanted)
    return me.build(is_built_on_rank=lambda: me.rank in wanted, builders=builders)


def fail(me: Rank, who: tuple[int, ...], text: str = "broken data") -> Any:
    def work() -> Any:
        if me.rank in who:
            raise IndexCacheError(text, hint="mend the data")
        return me.work()

    return me.build(work)


def fail_to_choose(me: Rank) -> Any:
    def wanted() -> bool:
        if me.rank == 1:
            raise ZeroDivisionError("no idea")
        return True

    return me.build(is_built_on_rank=wanted)


def fail_then_succeed(me: Rank) -> Any:
    try:
        fail(me, (0,))
    except TokenloomError:
        return me.build()
    raise AssertionError


def die_while_building(me: Rank, victim: int) -> Any:
    def work() -> Any:
        if me.rank == 0 and victim == 0:
            me.die()
        if me.rank == 0:
            os.kill(int((me.shared / f"pid-{victim}").read_text()), signal.SIGKILL)
            me.note("killed")
        return me.work()

    return me.build(work)


def die_while_loading(me: Rank, victim: int) -> Any:
    def work() -> Any:
        if me.rank == victim:
            me.die()
        return me.work()

    return me.build(work)


def die_during_a_long_build(me: Rank, victim: int) -> Any:
    """All others notice while rank 0 still builds; rank 0 notices afterwards."""

    def work() -> Any:
        if me.rank == 0:
            os.kill(int((me.shared / f"pid-{victim}").read_text()), signal.SIGKILL)
            me.note("killed")
            me.wait_for(*(f"raised-{rank}" for rank in range(1, me.world_size) if rank != victim))
        return me.work()

    try:
        return me.build(work)
    finally:
        me.note(f"raised-{me.rank}")


def end_during_a_long_build(me: Rank) -> Any:
    """Rank 2 dies; the others not only notice but leave the group while rank 0 still builds."""

    def work() -> Any:
        if me.rank == 0:
            os.kill(int((me.shared / "pid-2").read_text()), signal.SIGKILL)
            me.note("killed")
            me.wait_for("ended-1", "ended-3")
        return me.work()

    try:
        return me.build(work)
    finally:
        dist.destroy_process_group()  # waits for what is under way
        me.note(f"ended-{me.rank}")


def die_long_before(me: Rank) -> Any:
    if me.rank == 1:
        me.die()
    me.wait_for("killed")
    return me.build()


def die_at_any_moment(me: Rank, victim: int, delay_seconds: float) -> Any:
    """The victim dies while all build and compare for ever."""
    if me.rank == victim:
        threading.Timer(delay_seconds, me.die).start()
    while True:
        me.build()
        agree("the colour", "blue")


def freeze(me: Rank, who: tuple[int, ...], when: str) -> Any:
    """Some ranks stop before they come, in the build, while they load, or while they wait for the builder."""

    def work() -> Any:
        if me.rank in who and when == "working":
            me.freeze()
        elif me.rank == 0 and when == "waiting":
            for rank in who:
                me.note(f"frozen-{rank}")
                os.kill(int((me.shared / f"pid-{rank}").read_text()), signal.SIGSTOP)
        return me.work()

    if when == "before":
        if me.rank in who:
            me.freeze()
        me.wait_for(*(f"frozen-{rank}" for rank in who))
    return me.build(work)


def freeze_and_hurry(me: Rank, victim: int) -> Any:
    """The rank that wakes reports before its other threads run, although all others have given it up."""

    def work() -> Any:
        if me.rank != victim:
            return me.work()
        me.wait_for(*(f"loaded-{rank}" for rank in range(1, me.world_size) if rank != victim))
        time.sleep(0.3)  # until their reports are here
        sys.setswitchinterval(60)
        me.freeze()
        return "loaded"

    try:
        return me.build(work)
    finally:
        sys.setswitchinterval(0.005)


def freeze_while_comparing(me: Rank, victim: int) -> None:
    agree("the colour", "blue")

    class Slow(Dataset):
        def batch(self, positions: Any) -> dict[str, np.ndarray]:
            if me.rank == victim and positions == (5,):
                me.freeze()
            return super().batch(positions)

    check_same_batches(Slow())


def freeze_in_a_collective(me: Rank, victim: int) -> Any:
    """One rank stops while the others wait for it in a collective of a group of their own, without a timeout."""
    group = dist.new_group(timeout=timedelta(days=1))
    me.sockets = count_sockets()
    agree("the colour", "blue")

    def work() -> str:
        if me.rank == victim:
            me.freeze()
        dist.all_reduce(torch.zeros(1), group=group)
        return "reduced"

    return do_together("reducing", work, groups=(group,))


def never_come(me: Rank, who: int) -> Any:
    if me.rank == who:
        me.note(f"frozen-{who}")
        me.wait_for(*(f"raised-{rank}" for rank in range(me.world_size) if rank != who))
        return me.build()
    try:
        return me.build()
    finally:
        me.note(f"raised-{me.rank}")


def be_slow(me: Rank, seconds: float, how: str) -> Any:
    """Rank 0 builds for longer than ranks may be silent, or holds the interpreter for nearly as long."""

    def work() -> Any:
        if me.rank == 0 and how == "waiting":
            time.sleep(seconds)
        elif me.rank == 0 and how == "in Python":
            stop = time.monotonic() + seconds
            while time.monotonic() < stop:
                pass
        elif me.rank == 0:
            ctypes.PyDLL(None).usleep(int(1e6 * seconds))
        return me.work()

    return me.build(work)


def come_late_to_a_second_meeting(me: Rank, seconds: float) -> Any:
    """Rank 1 does something else for longer than ranks may be silent; it gave signs of life all the time."""
    me.build()
    if me.rank == 1:
        time.sleep(seconds)
    return me.build()


def differ_in_patience(me: Rank) -> Any:
    set_rank_silence_seconds(30 + me.rank // 2)
    return me.build()


def succeed_and_look(me: Rank) -> Any:
    """What is left in this process, and what a forked child has of it."""
    sockets = count_sockets()
    me.build()
    me.build()
    in_parent = (count_sockets() - sockets > 0, ranks_threads())
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, f"{count_sockets() - sockets} {ranks_threads()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    in_child = os.read(reading, 1000).decode()
    agree("the colour", "blue")  # the child did no harm
    dist.destroy_process_group()
    wait_until(lambda: not ranks_threads() and count_sockets() <= sockets)
    return in_parent, in_child


def build_longer_than_the_timeout(me: Rank) -> Any:
    """A build of four times what the group waits for; a collective with that wait then fails, to show it is set."""
    _set_pg_timeout(timedelta(seconds=0.5))
    start = time.monotonic()

    def work() -> str:
        if me.rank == 0:
            wait_until(lambda: time.monotonic() > start + 2)
        return me.work()

    built = me.build(work)
    if me.rank == 0:
        me.wait_for("timed-out")
        return built, "timed out"
    try:
        dist.all_reduce(torch.zeros(1))
    except RuntimeError:
        me.note("timed-out")
        return built, "timed out"
    return built, "waited"


def agree_on(me: Rank, values: list[str | None]) -> None:
    agree("the colour", values[me.rank])


def fail_to_agree(me: Rank) -> None:
    def value() -> str:
        if me.rank == 2:
            raise OSError("disk on fire")
        return "same"

    agree("the colour", value)


def be_at_different_steps(me: Rank) -> Any:
    if me.rank == 1:
        agree("the colour", "blue")
    return me.build()


class Dataset:
    """Samples that are their position, or nearly."""

    def __init__(self, error: int = 0, size: int = 100) -> None:
        self._error = error
        self._size = size

    def __len__(self) -> int:
        return self._size

    def batch(self, positions: Any) -> dict[str, np.ndarray]:
        return {"tokens": np.asarray(positions)[:, None] + np.arange(4) + self._error}


def check_batches(me: Rank, datasets: str) -> None:
    kinds = {"a": Dataset(), "b": Dataset(error=1), "longer": Dataset(size=101), "-": None}
    check_same_batches(kinds[datasets[me.rank]])


def read_and_check(
    me: Rank,
    folder: str,
    size: int,
    lying: dict[int, int],
    reread: str = "now",
    readers: tuple[int, ...] = (0, 1, 2, 3),
    late: int = -1,
    resumed: bool = False,
) -> Any:
    """Reads 96 samples as some data-parallel ranks, with a check in the middle and one at the end.

    `lying` says of which position a rank flips a bit, the first time that it reads it.
    """
    dataset = tokenloom.Run.open(f"{folder}/run.toml").dataset()
    if me.rank in lying:
        dataset = OnceLying(dataset, lying[me.rank])
    reader = size if me.rank not in readers else me.rank * size // me.world_size
    loader = None if me.rank not in readers else make_loader(dataset, reader, size)
    found: list[Any] = []
    batches = iter(loader or ())
    for _ in range(2):
        if loader is not None:
            num_batches = 12 // size - (1 if me.rank == late else 0)
            assert len(list(islice(batches, num_batches))) == num_batches
        found.append(str(tokenloom.check_reading(loader, reread=reread)))
        if loader is not None:
            assert loader.state_dict()["read"] == found[-1]
            if resumed:
                state, loader = loader.state_dict(), make_loader(dataset, reader, size)
                loader.load_state_dict(state)
                batches = iter(loader)
    return found


def make_loader(dataset: Any, rank: int, size: int) -> Any:
    sampler = tokenloom.MegatronPretrainingSampler(300, 0, 4, rank, size)
    return tokenloom.ThreadLoader(dataset, sampler)


class OnceLying(Lying):
    """Flips the bit only once."""

    def batch(self, positions: Any) -> Any:
        batch = super().batch(positions)
        if self.position in list(positions):
            self.position = -1
        return batch


def default_device_is_elsewhere(me: Rank) -> Any:
    torch.set_default_device("meta")
    return me.build()


def end_and_begin_again(me: Rank) -> list[Any]:
    """A second default group in the same process, and a second group of our own beside it."""
    first = build(me)
    dist.destroy_process_group()
    initialize(me, "stub", "again")
    return [first, build(me)]


def ranks(me: Rank) -> Any:
    mine = current_ranks()
    assert mine is not None
    return mine.rank, mine.world_size


# --- the process -----------------------------------------------------------------------------------------------------


def initialize(me: Rank, backend: str, name: str = "store") -> None:
    """Forms the default group, beside a file, or beside a server that lives and dies with rank 0."""
    store: Any
    if backend.endswith(" by TCP"):
        if me.rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            me.note(f"port={store.port}")
        me.wait_for_any("port=*")
        port = int(next(me.shared.glob("port=*")).name.removeprefix("port="))
        if me.rank != 0:
            store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
    else:
        store = dist.FileStore(str(me.shared / name), me.world_size)
    dist.init_process_group(backend.split()[0], store=store, rank=me.rank, world_size=me.world_size)


def _chain(error: BaseException) -> Iterator[str]:
    while (cause := error.__cause__) is not None:
        yield f"{type(cause).__name__}: {cause.args[0] if cause.args else ''}"
        error = cause


def count_sockets() -> int:
    """Returns how many sockets this process has."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.islink(link) and os.readlink(link).startswith("socket:") for link in links)


def ranks_threads() -> list[str]:
    """Returns the names of the threads that ranks talk through."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name == "tokenloom-ranks")


class Watched(tokenloom.GPTDataset):
    """Leaves a trace when it builds an index, and fails or dies on a rank where it is told to."""

    rank, shared, breaks = 0, Path(), ""

    def __init__(self, *arguments: Any) -> None:
        self._break_if("made")
        super().__init__(*arguments)

    @classmethod
    def watch_builds(cls) -> None:
        """Has indices of all datasets leave a trace from now on."""
        build = SpanArrays.build

        def watched(arrays: SpanArrays) -> Iterator[Any]:
            cls._break_if("built")
            with open(cls.shared / f"indices-built-{cls.rank}", "a") as stream:
                stream.write(f"{arrays.name.split('`')[1]}\n")
            yield from build(arrays)

        SpanArrays.build = watched  # type: ignore[method-assign]

    @classmethod
    def _break_if(cls, when: str) -> None:
        if cls.breaks == f"raise when {when}":
            raise IndexCacheError("broken data", hint="mend the data")
        if cls.breaks == f"die when {when}":
            (cls.shared / "killed.new").write_text(str(time.monotonic()))
            (cls.shared / "killed.new").rename(cls.shared / "killed")
            os.kill(os.getpid(), signal.SIGKILL)


def build_differently(me: Rank, changes: list[dict[str, Any]], prefixes: list[str]) -> list[str]:
    """Builds with settings, or data, of each rank's own; returns what was written."""
    Watched.rank, Watched.shared = me.rank, me.shared
    Watched.watch_builds()
    mine = {"prefixes": prefixes, "sizes": [60, 9, 0], **changes[me.rank]}
    given, sizes = mine.pop("prefixes"), mine.pop("sizes")
    settings = {"random_seed": 3, "sequence_length": 8, "split": "80,20,0", "path_to_cache": os.fspath(me.folder)}
    config = make_config(
        None,
        blend=(given, mine.pop("weights", [1.0] * len(given))),
        tokenizer=StandInTokenizer(vocab_size=mine.pop("vocab_size", 100)),
        **{**settings, **mine},
    )
    tokenloom.BlendedMegatronDatasetBuilder(Watched, sizes, lambda: True, config).build()
    return sorted(path.name for path in me.folder.iterdir())


def freeze_while_writing(me: Rank, prefixes: list[str]) -> Any:
    """Rank 0 stops between two arrays of an index; all then fail, and a process on its own builds the rest."""

    build = SpanArrays.build

    def freezing(arrays: SpanArrays) -> Iterator[Any]:
        for number, item in enumerate(build(arrays)):
            if number == 1 and me.rank == 0 and not me.noted("frozen-0"):
                me.freeze()
            yield item

    SpanArrays.build = freezing  # type: ignore[method-assign]
    config = make_config(
        None,
        random_seed=3,
        sequence_length=8,
        blend=(prefixes, None),
        split="80,20,0",
        path_to_cache=os.fspath(me.folder),
    )
    return tokenloom.BlendedMegatronDatasetBuilder(tokenloom.GPTDataset, [60, 9, 0], lambda: True, config).build()


def build_a_blend(me: Rank, prefixes: list[str], victim: int = -1, breaks: str = "", wanted: Any = (0, 1, 2, 3)) -> Any:
    """Builds a blend as a training job does, twice; returns what tells whether all ranks have the same."""
    Watched.rank, Watched.shared, Watched.breaks = me.rank, me.shared, breaks if me.rank == victim else ""
    Watched.watch_builds()
    config = make_config(
        None,
        random_seed=3,
        sequence_length=8,
        blend=(prefixes, [1.0] * len(prefixes)),
        split="80,20,0",
        path_to_cache=os.fspath(me.folder),
        num_dataset_builder_threads=1 + me.rank % 2,
    )
    builder = tokenloom.BlendedMegatronDatasetBuilder(Watched, [60, 9, 0], lambda: me.rank in wanted, config)
    digests = []
    for _ in range(2):
        steps = steps_of(lambda: digests.append(digest_of(builder.build()[0])))
    if steps != ["looking for what is built"]:
        raise AssertionError(steps)
    assert digests[0] == digests[1]
    return digests[0]


def digest_of(train: Any) -> Any:
    check_same_batches(train, num_samples=20)
    return None if train is None else train.batch(range(60))["tokens"].sum().item()


def steps_of(call: Callable[[], Any]) -> list[str]:
    """Returns the steps at which all ranks met while datasets were built in a call."""
    steps: list[str] = []
    report = Meeting.report

    def noting(self: Any, step: str, *arguments: Any) -> Any:
        steps.append(step)
        return report(self, step, *arguments)

    Meeting.report = noting  # type: ignore[method-assign]
    try:
        call()
    finally:
        Meeting.report = report  # type: ignore[method-assign]
    return [step for step in steps if not step.startswith("comparing")]


def main(
    connection: Connection, rank: int, world_size: int, shared: Path, backend: str, case: str, options: Any
) -> None:
    """Runs a case, sends what came of it, and waits for the word to end."""
    me = Rank(rank, world_size, shared)
    outcome: dict[str, Any] = {"rank": rank}
    initialize(me, backend)
    (shared / f"pid-{rank}.new").write_text(str(os.getpid()))
    (shared / f"pid-{rank}.new").rename(shared / f"pid-{rank}")
    me.wait_for(*(f"pid-{other}" for other in range(world_size)))
    me.sockets = count_sockets()
    has_limit = "silence" in options
    if has_limit:
        set_rank_silence_seconds(options.pop("silence"))
    try:
        outcome["result"] = globals()[case](me, **options)
    except TokenloomError as error:
        outcome |= {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
        outcome["causes"] = list(_chain(error))
    except Exception:  # noqa: BLE001  shown by the test that fails
        outcome |= {"kind": "unexpected", "message": traceback.format_exc()}
    outcome["time"] = time.monotonic()
    if "kind" in outcome and has_limit:  # what is left matters where somebody was silent
        with suppress(TimeoutError):
            wait_until(lambda: not ranks_threads() and count_sockets() <= me.sockets, seconds=10)
        outcome["left"] = (ranks_threads(), max(0, count_sockets() - me.sockets))
    connection.send(outcome)
    connection.poll(30)  # the test has heard from all
    os._exit(0)  # not through torch's goodbyes, which wait for the dead
