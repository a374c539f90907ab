"""Replacements of `os`, `fcntl`, `open`, `time` and `secrets` in the modules under test, while a world runs.

Descriptors start at a million, so that they are invalid in the real system.
"""

from __future__ import annotations

import errno
import gc
import os
import stat
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from tests.simulation.disk import Inode, OpenFile, failure
from tests.simulation.scheduler import CrashError, World
from tokenloom.order import cache
from tokenloom.preprocess import folder
from tokenloom.storage import atomic, json_files, local, publishing, versions

_IO = (errno.EIO,)
_FULL = (errno.EIO, errno.ENOSPC)


Status = types.SimpleNamespace


def _status_of(inode: Inode) -> Status:
    mode = 0o666 | (stat.S_IFDIR if inode.is_folder else stat.S_IFREG)
    times = {"st_mtime_ns": round(inode.modified * 1e9), "st_ctime_ns": round(inode.changed * 1e9)}
    size, links = len(inode.data), inode.num_links
    return Status(st_dev=7, st_ino=inode.number, st_size=size, st_mode=mode, st_nlink=links, **times)


class Paths:
    def __init__(self, system: SimulatedOs) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Any:
        if name in ("join", "split", "dirname", "basename", "relpath", "normpath", "samestat", "splitext"):
            return getattr(os.path, name)
        raise AttributeError(f"the simulated os.path has no {name}")

    def lexists(self, path: str) -> bool:
        return self._look(path) is not None

    exists = lexists

    def realpath(self, path: str) -> str:  # there are no links on this disk
        return os.path.normpath(path)

    def isdir(self, path: str) -> bool:
        return (inode := self._look(path)) is not None and inode.is_folder

    def isfile(self, path: str) -> bool:
        return (inode := self._look(path)) is not None and not inode.is_folder

    def _look(self, path: str) -> Inode | None:
        self._system.world.call(f"stat {path}")
        return self._system.world.disk.look(path)


class SimulatedOs:
    def __init__(self, world: World) -> None:
        self.world = world
        self.path = Paths(self)
        self.fspath, self.strerror, self.sep, self.devnull = os.fspath, os.strerror, os.sep, os.devnull
        self.PathLike = os.PathLike

    def __getattr__(self, name: str) -> Any:
        if name.isupper():
            return getattr(os, name)
        raise AttributeError(f"the simulated os has no {name}")

    def getpid(self) -> int:
        current = self.world.current
        return -1 if current is None else current.pid

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        world, disk = self.world, self.world.disk
        creates = bool(flags & os.O_CREAT)
        world.call(f"open {path}{' (create)' if creates else ''}", *(_FULL if creates else _IO))
        if creates and disk.look(path) is None:
            inode = disk.create(path)
            self._modified(inode)
            world.changed()
        else:
            inode = disk.find(path)
            if creates and flags & os.O_EXCL:
                raise failure(errno.EEXIST, path)
            if inode.is_folder and flags & (os.O_WRONLY | os.O_RDWR):
                raise failure(errno.EISDIR, path)
        descriptor = world.next_descriptor
        world.next_descriptor += 1
        disk.opened(inode)
        assert world.current is not None
        world.current.files[descriptor] = OpenFile(inode, path, flags, owner=world.current)
        return descriptor

    def opened(self, descriptor: int) -> OpenFile:
        current = self.world.current
        if current is None or current.is_dead or current.thread != threading.get_ident():
            raise CrashError
        try:
            return current.files[descriptor]
        except KeyError:
            raise failure(errno.EBADF, str(descriptor)) from None

    def close(self, descriptor: int) -> None:
        opened = self.opened(descriptor)
        self.world.call(f"close {opened.path}")
        del opened.owner.files[descriptor]
        if opened not in opened.owner.files.values():
            opened.lock = None
            self.world.disk.closed(opened.inode)

    def read(self, descriptor: int, length: int) -> bytes:
        opened = self.opened(descriptor)
        self.world.call(f"read {opened.path}", *_IO)
        data = bytes(opened.inode.data[opened.position : opened.position + length])
        opened.position += len(data)
        return data

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        opened = self.opened(descriptor)
        self.world.call(f"pread {opened.path}", *_IO)
        return bytes(opened.inode.data[offset : offset + length])

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        opened = self.opened(descriptor)
        count = self.pwrite(descriptor, data, opened.position)
        opened.position += count
        return count

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        opened = self.opened(descriptor)
        data = bytes(data)
        self.world.call(f"write {len(data)} bytes to {opened.path}", *_FULL)
        if len(data) > 1 and self.world.rng.random() < 0.05:  # POSIX allows partial writes
            data = data[: self.world.rng.randrange(1, len(data))]
        opened.inode.data[offset : offset + len(data)] = data
        self._modified(opened.inode)
        return len(data)

    def ftruncate(self, descriptor: int, length: int) -> None:
        opened = self.opened(descriptor)
        self.world.call(f"truncate {opened.path} to {length}", *_IO)
        del opened.inode.data[length:]
        self._modified(opened.inode)

    def _modified(self, inode: Inode) -> None:
        inode.modified = inode.changed = self.world.now

    def fsync(self, descriptor: int) -> None:
        opened = self.opened(descriptor)
        self.world.call(f"fsync {opened.path}", *_FULL)
        self.world.disk.sync(opened.inode)

    def fstat(self, descriptor: int) -> Status:
        opened = self.opened(descriptor)
        self.world.call(f"fstat {opened.path}")
        return self.status(opened.inode)

    def status(self, inode: Inode) -> Status:
        """Returns the status of a file after living processes have updated the files that they touch regularly."""
        for actor in self.world.actors:
            if not (actor.is_dead or actor.is_done) and actor.thaws <= self.world.now:
                for touched, seconds in actor.touched:
                    if touched is inode and self.world.now - inode.modified >= seconds:
                        self._modified(inode)
        return _status_of(inode)

    def stat(self, path: str, *, follow_symlinks: bool = True) -> Status:
        self.world.call(f"stat {path}", *_IO)
        return self.status(self.world.disk.find(path))

    lstat = stat

    def access(self, path: str, mode: int) -> bool:
        self.world.call(f"access {path}")
        return self.world.disk.look(path) is not None

    def link(self, source: str, target: str, *, src_dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        self.world.call(f"link {source} to {target}", *_FULL)
        inode = self.world.disk.find(source)
        self.world.disk.link(inode, target)
        inode.changed = self.world.now
        self.world.changed()

    def unlink(self, path: str) -> None:
        self.world.call(f"unlink {path}", *_IO)
        self.world.disk.unlink(path)
        self.world.changed()

    def rename(self, source: str, target: str) -> None:
        self.world.call(f"rename {source} to {target}", *_FULL)
        self.world.disk.rename(source, target)
        self.world.changed()

    replace = rename

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self.world.call(f"mkdir {path}", *_FULL)
        self.world.disk.mkdir(path)
        self.world.changed()

    def makedirs(self, path: str, *, exist_ok: bool = False) -> None:
        if self.path.isdir(path):
            if not exist_ok:
                raise failure(errno.EEXIST, path)
            return
        if not self.path.isdir(os.path.dirname(path)):
            self.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok:
                raise

    def rmdir(self, path: str) -> None:
        self.world.call(f"rmdir {path}", *_IO)
        self.world.disk.rmdir(path)
        self.world.changed()

    def listdir(self, path: str) -> list[str]:
        self.world.call(f"list {path}", *_IO)
        folder = self.world.disk.find(path)
        if not folder.is_folder:
            raise failure(errno.ENOTDIR, path)
        return sorted(folder.entries)

    def scandir(self, path: str) -> nullcontext[list[Any]]:
        entries = self.world.disk.find(path).entries

        def entry(name: str) -> Any:
            return types.SimpleNamespace(name=name, is_dir=lambda **_: entries[name].is_folder)

        return nullcontext([entry(name) for name in self.listdir(path)])

    def dup2(self, source: int, target: int, *, inheritable: bool = True) -> None:
        raise failure(errno.EBADF, "nothing forks here")


class SimulatedFcntl:
    """`fcntl`: locks of open file descriptions, released with the last descriptor."""

    LOCK_SH, LOCK_EX, LOCK_NB, LOCK_UN = 1, 2, 4, 8

    def __init__(self, system: SimulatedOs) -> None:
        self._system = system

    def flock(self, descriptor: int, operation: int) -> None:
        world, opened = self._system.world, self._system.opened(descriptor)
        wanted = {1: "shared", 2: "exclusive", 8: None}[operation & ~self.LOCK_NB]
        world.call(f"flock {opened.path}: {wanted or 'unlock'}{'' if operation & 4 else ', waiting'}")
        opened.lock = None  # a change of the lock's kind is not atomic
        if wanted is None:
            return
        if not self._is_free(opened, wanted):
            if operation & self.LOCK_NB:
                raise BlockingIOError(errno.EAGAIN, "locked", opened.path)
            world.wait(lambda: self._is_free(opened, wanted))
        opened.lock = wanted

    def _is_free(self, opened: OpenFile, wanted: str) -> bool:
        others = (
            each.lock
            for actor in self._system.world.actors
            for each in actor.files.values()
            if each.inode is opened.inode and each is not opened and each.lock is not None
        )
        return all(lock == wanted == "shared" for lock in others)


class Stream:
    """The result of `open`, which buffers writes until it is flushed or closed."""

    def __init__(self, system: SimulatedOs, descriptor: int) -> None:
        self._system, self._descriptor, self._buffer = system, descriptor, bytearray()
        self.closed = False

    @property
    def raw(self) -> Stream:
        self._buffer.clear()
        return self

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: bytes | memoryview) -> int:
        self._buffer += bytes(data)
        return len(self._buffer)

    def read(self, length: int = 1 << 30) -> bytes:
        return self._system.read(self._descriptor, length)

    def flush(self) -> None:
        while self._buffer:
            del self._buffer[: self._system.write(self._descriptor, bytes(self._buffer))]

    def close(self) -> None:
        if not self.closed and self._system.world.current is not None:  # otherwise the world has ended
            self.closed = True
            try:
                self.flush()
            finally:
                self._system.close(self._descriptor)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AtOnce(Executor):
    """A `ThreadPoolExecutor` without threads."""

    def __init__(self, **_: object) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  the future holds it
            done.set_exception(error)
        return done


class Modules:
    def __init__(self, world: World) -> None:
        self.world = world
        self.os = system = SimulatedOs(world)
        self.fcntl = SimulatedFcntl(system)
        self.time = types.SimpleNamespace(
            monotonic=lambda: world.now, sleep=lambda seconds: (world.call("sleep"), world.wait(None, seconds=seconds))
        )
        self.secrets = types.SimpleNamespace(token_hex=lambda count: world.rng.randbytes(count).hex())

    def open(self, place: str | int, mode: str = "r", buffering: int = -1) -> Stream:
        assert "b" in mode
        flags = {"r": os.O_RDONLY, "w": os.O_RDWR | os.O_CREAT | os.O_TRUNC, "x": os.O_RDWR | os.O_CREAT | os.O_EXCL}
        return Stream(self.os, self.os.open(place, flags[mode[0]]) if isinstance(place, str) else place)

    def map_file(self, path: str) -> tuple[np.ndarray, tuple[int, ...]]:
        self.world.call(f"map {path}", *_IO)
        inode = self.world.disk.find(path)
        if inode.is_folder:
            raise failure(errno.ENODEV, path)
        status = self.os.status(inode)
        facts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        data = np.frombuffer(bytes(inode.data), dtype=np.uint8)
        data.flags.writeable = False
        return data, facts

    @contextmanager
    def touched(self, descriptor: int, timeout_seconds: float) -> Iterator[None]:
        """`folder._touched` without its thread: the file looks touched unless its holder is frozen or dead."""
        opened = self.os.opened(descriptor)
        touch = opened.inode, min(folder._MOST_SECONDS_BETWEEN_TOUCHES, timeout_seconds / 8)
        opened.owner.touched.append(touch)
        try:
            yield
        finally:
            opened.owner.touched.remove(touch)


@contextmanager
def simulated(world: World, more: tuple[types.ModuleType, ...] = ()) -> Iterator[Modules]:
    stand_ins = Modules(world)
    changes: dict[tuple[types.ModuleType, str], object] = {}
    for module in (atomic, json_files, local, publishing, versions, folder, *more):
        for name in ("os", "fcntl", "time", "secrets"):
            if hasattr(module, name):
                changes[module, name] = getattr(stand_ins, name)
        changes[module, "open"] = stand_ins.open
    changes[publishing, "is_running"] = lambda pid: any(
        actor.pid == pid and not (actor.is_dead or actor.is_done) for actor in world.actors
    )
    changes[folder, "_touched"] = stand_ins.touched
    changes[local, "map_with_facts"] = stand_ins.map_file
    changes[local, "start_writing_back"] = lambda *_: None
    changes[cache, "ThreadPoolExecutor"] = AtOnce
    changes[cache, "_MOST_COMPARED_BYTES"] = world.rng.choice((0, 4 << 20))
    missing = object()
    before = {place: place[0].__dict__.get(place[1], missing) for place in changes}
    is_collecting, hook = gc.isenabled(), sys.unraisablehook
    gc.disable()  # objects of one process must not be collected while another one runs
    sys.unraisablehook = lambda given: None if isinstance(given.exc_value, CrashError) else hook(given)
    try:
        for (module, name), value in changes.items():
            setattr(module, name, value)
        yield stand_ins
    finally:
        world.current = None
        atomic._OPEN.clear()
        for (module, name), value in before.items():
            if value is missing:
                delattr(module, name)
            else:
                setattr(module, name, value)
        sys.unraisablehook = hook
        if is_collecting:
            gc.enable()
