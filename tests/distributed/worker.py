"""What each rank does in a case of `tests/distributed`."""

import atexit
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from tests.distributed.fleet import Group, Member, count_sockets, join, ranks_threads
from tests.loading.reading import OnceLying
from tests.support import make_config, wait_until
from torch.distributed.distributed_c10d import _set_pg_timeout

import tokenloom
from tokenloom.distributed.building import Build, do_together
from tokenloom.distributed.meeting import Meeting, Round
from tokenloom.distributed.ranks import HOST_VARIABLE
from tokenloom.errors import IndexCacheError, TokenloomError
from tokenloom.loading.sample_digests import check_same_batches
from tokenloom.order.policies import ArrayOrder
from tokenloom.packing.groups import Channel


class Stub(dist.ProcessGroup):
    """A default group that moves nothing, as NCCL's cannot move CPU tensors."""

    def getBackendName(self) -> str:
        return "stub"


dist.Backend.register_backend("stub", lambda store, rank, size, timeout: Stub(rank, size), devices=["cpu"])


class Rank(Member):
    """What a case sees: its rank, a folder that all share, and work that leaves a trace of every call."""

    def __init__(self, rank: int, world_size: int, shared: Path) -> None:
        super().__init__(rank, world_size, shared)
        self.folder = shared / "cache"

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

    def build(self, work: Callable[[], Any] | None = None, **options: Any) -> Any:
        return Build(work=work or self.work, folder=os.fspath(self.folder), **options).together()


def agree(name: str, value: Any) -> None:
    do_together(
        f"comparing {name}", value if callable(value) else lambda: value, compare=lambda found: found, name=name
    )


def build(me: Rank, wanted: tuple[int, ...] = (0, 1, 2, 3), builders: Any = "auto") -> Any:
    return me.build(is_built_on_rank=lambda: me.rank in wanted, builders=builders)


def build_in_memory(me: Rank) -> Any:
    def work() -> int:
        me.note(f"working-{me.rank}")
        me.wait_for(*(f"working-{rank}" for rank in range(me.world_size)))  # all at the same time
        return me.rank

    return Build(work=work, folder=None).together()


def build_on_hosts(me: Rank, hosts: str, folders: str, builders: Any = "auto", wanted: Any = (0, 1, 2, 3)) -> Any:
    """`hosts` and `folders` have a letter per rank; a capital folder cannot be written."""
    me.folder = me.shared / f"cache-{folders[me.rank].lower()}"
    with patch.dict(os.environ, {HOST_VARIABLE: f"host-{hosts[me.rank]}"}):
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


def fail_then_succeed(me: Rank) -> Any:
    try:
        fail(me, (0,))
    except TokenloomError:
        return me.build()
    raise AssertionError


def die(me: Rank, victim: int, when: str) -> Any:
    """The victim dies while rank 0 builds, or while it loads itself."""

    def work() -> Any:
        if me.rank == victim:
            me.die()
        if me.rank == 0 and when == "building":
            me.signal(victim, signal.SIGKILL)
        return me.work()

    return me.build(work)


def die_during_a_long_build(me: Rank, victim: int) -> Any:
    def work() -> Any:
        if me.rank == 0:
            me.signal(victim, signal.SIGKILL)
            me.wait_for(*(f"raised-{rank}" for rank in range(1, me.world_size) if rank != victim))
        return me.work()

    try:
        return me.build(work)
    finally:
        me.note(f"raised-{me.rank}")


def die_long_before(me: Rank) -> Any:
    if me.rank == 1:
        me.note("dying")
        me.die()
    me.wait_for("dying")
    return me.build()


def die_at_any_moment(me: Rank, victim: int, delay_seconds: float) -> Any:
    """The victim dies while all build and compare for ever."""
    agree("the colour", "blue")  # one that dies before it came would be one that never comes
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
                me.signal(rank, signal.SIGSTOP)
        return me.work()

    if when == "before":
        if me.rank in who:
            me.freeze()
        me.wait_for(*(f"frozen-{rank}" for rank in who))
    return me.build(work)


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

    return do_together("reducing", work, break_off=Channel(group).break_off)


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


def succeed_and_look(me: Rank) -> Any:
    """What there is in this process, and in a forked child."""
    sockets = count_sockets()
    me.build()
    me.build()
    has_sockets, threads = count_sockets() > sockets, ranks_threads()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, f"{ranks_threads()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    in_child = os.read(reading, 1000).decode()
    agree("the colour", "blue")  # the child did no harm
    dist.destroy_process_group()
    wait_until(lambda: not ranks_threads() and count_sockets() <= sockets)
    return has_sockets, threads, in_child


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

    def __init__(self, error: int = 0) -> None:
        self._error = error

    def __len__(self) -> int:
        return 100

    def batch(self, positions: Any) -> dict[str, np.ndarray]:
        return {"tokens": np.asarray(positions)[:, None] + np.arange(4) + self._error}


def check_batches(me: Rank, datasets: str) -> None:
    kinds = {"a": Dataset(), "b": Dataset(error=1), "-": None}
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


def default_device_is_elsewhere(me: Rank) -> Any:
    with torch.device("meta"):
        return me.build()


def be_in_different_numbers_of_groups(me: Rank) -> Any:
    """Ranks 0 and 1 meet in a group of their own before all four meet."""
    dist.destroy_process_group()
    if me.rank < 2:
        join(Group(world_size=2, shared=me.shared, backend="gloo"), me.rank, "pair")
        agree("the colour", "blue")
        dist.destroy_process_group()
    join(Group(world_size=me.world_size, shared=me.shared, backend="gloo"), me.rank, "all")
    return me.build()


def meet_again_beside_the_same_store(me: Rank) -> Any:
    """Two default groups in a row find the keys of each other."""
    me.build()
    dist.destroy_process_group()
    for _ in range(2):
        join(Group(world_size=me.world_size, shared=me.shared, backend="stub"), me.rank, "same")
        agree("the colour", "blue")
        dist.destroy_process_group()
    return "met"


def be_interrupted(me: Rank, victim: int) -> Any:
    """One rank hears Ctrl-C while it builds."""

    def work() -> Any:
        if me.rank == victim:
            raise KeyboardInterrupt
        return me.work()

    agree("the colour", "blue")
    try:
        return me.build(work)
    except KeyboardInterrupt:
        return "interrupted"


def end_early(me: Rank, victim: int) -> Any:
    """One rank ends as a program does, the others go on."""
    agree("the colour", "blue")
    if me.rank == victim:
        atexit._run_exitfuncs()
        os._exit(0)
    return me.build()


class Watched(tokenloom.GPTDataset):
    """Leaves a trace when it builds an index, and fails or dies on a rank where it is told to."""

    me: Rank
    breaks = ""

    def __init__(self, *arguments: Any) -> None:
        self._break_if("made")
        super().__init__(*arguments)

    @classmethod
    @contextmanager
    def builds_watched(cls, me: Rank, breaks: str = "") -> Iterator[None]:
        """Has indices of all datasets leave a trace."""
        build, cls.me, cls.breaks = ArrayOrder._built, me, breaks

        def watched(order: ArrayOrder) -> Iterator[Any]:
            cls._break_if("built")
            with open(me.shared / f"indices-built-{me.rank}", "a") as stream:
                stream.write(f"{order.store.name.split('`')[1]}\n")
            yield from build(order)

        with patch.object(ArrayOrder, "_built", watched):
            yield

    @classmethod
    def _break_if(cls, when: str) -> None:
        if cls.breaks == f"raise when {when}":
            raise IndexCacheError("broken data", hint="mend the data")
        if cls.breaks == f"die when {when}":
            cls.me.die()


def builder_of(me: Rank, prefixes: Any, weights: Any, kind: Any, *, wanted: Any = range(4), **changes: Any) -> Any:
    sizes = changes.pop("sizes", [60, 9, 0])
    settings = {"random_seed": 3, "sequence_length": 8, "split": "80,20,0", "path_to_cache": os.fspath(me.folder)}
    config = make_config(None, blend=(prefixes, weights), **settings | changes)
    return tokenloom.BlendedMegatronDatasetBuilder(kind, sizes, lambda: me.rank in wanted, config)


def build_differently(me: Rank, changes: list[dict[str, Any]], prefixes: list[str]) -> list[str]:
    """Builds with settings, or data, of each rank's own; returns what was written."""
    mine = {"prefixes": prefixes, "weights": [1.0] * len(prefixes), **changes[me.rank]}
    with Watched.builds_watched(me):
        builder_of(me, kind=Watched, **mine).build()
    return sorted(path.name for path in me.folder.iterdir())


def freeze_while_writing(me: Rank, prefixes: list[str]) -> Any:
    """Rank 0 stops between two arrays of an index; all then fail, and a process on its own builds the rest."""

    build = ArrayOrder._built

    def freezing(order: ArrayOrder) -> Iterator[Any]:
        for number, item in enumerate(build(order)):
            if number == 1 and me.rank == 0 and not me.noted("frozen-0"):
                me.freeze()
            yield item

    ArrayOrder._built = freezing  # type: ignore[method-assign]
    return builder_of(me, prefixes, None, tokenloom.GPTDataset).build()


def build_a_blend(me: Rank, prefixes: list[str], victim: int = -1, breaks: str = "", wanted: Any = (0, 1, 2, 3)) -> Any:
    """Builds a blend as a training job does, twice; returns what tells whether all ranks have the same."""
    settings = {"wanted": wanted, "num_dataset_builder_threads": 1 + me.rank % 2}
    builder = builder_of(me, prefixes, [1.0] * len(prefixes), Watched, **settings)
    digests = []
    with Watched.builds_watched(me, breaks if me.rank == victim else ""):
        for _ in range(2):
            steps = steps_of(lambda: digests.append(digest_of(builder.build()[0])))
    assert steps == ["checking what is already built"], steps
    assert digests[0] == digests[1]
    return digests[0]


def digest_of(train: Any) -> Any:
    check_same_batches(train, num_samples=20)
    return None if train is None else train.batch(range(60))["tokens"].sum().item()


def steps_of(call: Callable[[], Any]) -> list[str]:
    """Returns the steps at which all ranks met while datasets were built in a call."""
    steps: list[str] = []
    meet = Meeting.meet

    def noting(self: Any, each: Round) -> Any:
        steps.append(each.step)
        return meet(self, each)

    with patch.object(Meeting, "meet", noting):
        call()
    return [step for step in steps if not step.startswith("comparing")]
