"""A filesystem in memory that models a loss of power.

It guarantees what POSIX guarantees: bytes survive once the file is synced, names once the folder is synced. Of unsynced
names, each folder keeps the changes before some moment: changes are not reordered within a folder, but between folders,
and a rename is atomic. Unsynced bytes may be complete, old, truncated, zeros, or partly zeros. Inode numbers are reused
as soon as possible.
"""

import errno
import heapq
import os
import random
from dataclasses import dataclass, field

PAGE = 64
"""Bytes that are lost or kept together; small, because the files of a simulation are small."""


class Inode:
    """A file or a folder."""

    def __init__(self, number: int, *, is_folder: bool) -> None:
        self.number = number
        self.is_folder = is_folder
        self.data = bytearray()
        self.synced = b""
        self.entries: dict[str, Inode] = {}
        self.synced_entries: dict[str, Inode] = {}
        self.num_links = 0
        self.num_synced_links = 0
        self.num_open = 0
        self.num_logged = 0  # changes in the log that give it a name
        self.is_free = False
        self.modified = self.changed = 0.0


@dataclass(eq=False)
class OpenFile:
    """An open file description, to which descriptors refer and which `flock` locks."""

    inode: Inode
    path: str
    flags: int
    position: int = 0
    lock: str | None = None
    owner: object = None


@dataclass
class Edit:
    changes: list[tuple[Inode, str, Inode | None]] = field(default_factory=list)


def failure(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class Disk:
    def __init__(self) -> None:
        self._free: list[int] = []
        self._highest = 10
        self.root = self._new(is_folder=True)
        self.root.num_links = self.root.num_synced_links = 1
        self.log: list[Edit] = []

    def find(self, path: str) -> Inode:
        inode = self.root
        for name in (os.path.normpath(path) if ".." in path else path).split("/"):  # there are no links to folders
            if name:
                if not inode.is_folder:
                    raise failure(errno.ENOTDIR, path)
                try:
                    inode = inode.entries[name]
                except KeyError:
                    raise failure(errno.ENOENT, path) from None
        return inode

    def look(self, path: str) -> Inode | None:
        try:
            return self.find(path)
        except OSError:
            return None

    def place_of(self, path: str) -> tuple[Inode, str]:
        folder, name = os.path.split(os.path.normpath(path))
        inode = self.find(folder)
        if not inode.is_folder:
            raise failure(errno.ENOTDIR, path)
        return inode, name

    def create(self, path: str) -> Inode:
        folder, name = self.place_of(path)
        self._require_linked(folder, path)
        inode = self._new(is_folder=False)
        self._apply(Edit([(folder, name, inode)]))
        return inode

    def mkdir(self, path: str) -> None:
        folder, name = self.place_of(path)
        if name in folder.entries:
            raise failure(errno.EEXIST, path)
        self._require_linked(folder, path)
        self._apply(Edit([(folder, name, self._new(is_folder=True))]))

    def rmdir(self, path: str) -> None:
        folder, name = self.place_of(path)
        inode = self.find(path)
        if not inode.is_folder:
            raise failure(errno.ENOTDIR, path)
        if inode.entries:
            raise failure(errno.ENOTEMPTY, path)
        self._apply(Edit([(folder, name, None)]))

    def link(self, inode: Inode, path: str) -> None:
        folder, name = self.place_of(path)
        if name in folder.entries:
            raise failure(errno.EEXIST, path)
        self._apply(Edit([(folder, name, inode)]))

    def unlink(self, path: str) -> None:
        folder, name = self.place_of(path)
        if self.find(path).is_folder:
            raise failure(errno.EISDIR, path)
        self._apply(Edit([(folder, name, None)]))

    def rename(self, source: str, target: str) -> None:
        inode = self.find(source)
        from_folder, from_name = self.place_of(source)
        to_folder, to_name = self.place_of(target)
        there = to_folder.entries.get(to_name)
        if there is inode:
            return
        if there is not None and there.is_folder != inode.is_folder:
            raise failure(errno.EISDIR if there.is_folder else errno.ENOTDIR, target)
        if there is not None and there.entries:
            raise failure(errno.ENOTEMPTY, target)
        self._apply(Edit([(to_folder, to_name, inode), (from_folder, from_name, None)]))

    def _require_linked(self, folder: Inode, path: str) -> None:
        if not folder.num_links:
            raise failure(errno.ENOENT, path)

    def _apply(self, edit: Edit) -> None:
        for folder, name, inode in edit.changes:
            old = folder.entries.pop(name, None)
            if inode is not None:
                folder.entries[name] = inode
                inode.num_links += 1
                inode.num_logged += 1
            if old is not None:
                old.num_links -= 1
                self._release(old)
        self.log.append(edit)

    def sync(self, inode: Inode) -> None:
        """Makes the bytes of a file durable, or the names in a folder."""
        if not inode.is_folder:
            inode.synced = bytes(inode.data)
            return
        touched, chosen = {inode.number}, set()
        for place in range(len(self.log) - 1, -1, -1):
            folders = {folder.number for folder, _, _ in self.log[place].changes}
            if folders & touched:
                touched |= folders
                chosen.add(place)
        for place in sorted(chosen):
            self._commit(self.log[place])
        self.log = [edit for place, edit in enumerate(self.log) if place not in chosen]

    def _commit(self, edit: Edit) -> None:
        for folder, name, inode in edit.changes:
            old = folder.synced_entries.pop(name, None)
            if inode is not None:
                folder.synced_entries[name] = inode
                inode.num_synced_links += 1
                inode.num_logged -= 1
            if old is not None:
                old.num_synced_links -= 1
                self._release(old)

    def lose_power(self, rng: random.Random) -> None:
        """Replaces the disk by one of its possible states after a loss of power; closes all files."""
        chance = rng.choice((0.0, 0.05, 0.2, 0.5, 1.0))
        cut: set[int] = set()
        lost: list[Inode] = []
        for edit in self.log:
            folders = {folder.number for folder, _, _ in edit.changes}
            if folders & cut or rng.random() < chance:
                cut |= folders
                lost += [inode for _, _, inode in edit.changes if inode is not None]
            else:
                self._commit(edit)
        self.log = []
        self._restore(self.root, rng, wear=rng.choice((0.05, 0.3, 1.0)))
        for inode in lost:
            inode.num_logged = inode.num_open = 0
            inode.num_links = inode.num_synced_links
            self._release(inode)

    def _restore(self, folder: Inode, rng: random.Random, *, wear: float) -> None:
        folder.entries = dict(folder.synced_entries)
        for inode in folder.entries.values():
            if inode.is_folder:
                self._restore(inode, rng, wear=wear)
            elif inode.data != inode.synced:
                if rng.random() < wear:
                    inode.data = bytearray(_torn(bytes(inode.data), inode.synced, rng))
                inode.synced = bytes(inode.data)
            inode.num_links, inode.num_open = inode.num_synced_links, 0

    def _new(self, *, is_folder: bool) -> Inode:
        if self._free:
            return Inode(heapq.heappop(self._free), is_folder=is_folder)
        self._highest += 1
        return Inode(self._highest, is_folder=is_folder)

    def opened(self, inode: Inode) -> None:
        inode.num_open += 1

    def closed(self, inode: Inode) -> None:
        inode.num_open -= 1
        self._release(inode)

    def _release(self, inode: Inode) -> None:
        is_used = inode.num_links or inode.num_synced_links or inode.num_open or inode.num_logged
        if not (is_used or inode.is_free):
            inode.is_free = True
            heapq.heappush(self._free, inode.number)

    def put(self, path: str, data: bytes) -> None:
        folder, name = os.path.split(path)
        self.put_folder(folder)
        inode = self.create(os.path.join(folder, name))
        inode.data = bytearray(data)
        self.sync(inode)
        self.sync(self.find(folder))

    def put_folder(self, path: str) -> None:
        if self.look(path) is None:
            self.put_folder(os.path.dirname(path))
            self.mkdir(path)
            self.sync(self.find(os.path.dirname(path)))

    def bytes_at(self, path: str) -> bytes | None:
        inode = self.look(path)
        return None if inode is None or inode.is_folder else bytes(inode.data)

    def names(self, path: str) -> list[str]:
        inode = self.look(path)
        return [] if inode is None else sorted(inode.entries)


def _torn(new: bytes, synced: bytes, rng: random.Random) -> bytes:
    kind = rng.randrange(8)  # 4 to 7: single pages, which are the hardest to detect
    if kind == 0:
        return new
    if kind == 1:
        return synced
    if kind == 2:
        return bytes(len(new))
    if kind == 3:
        return new[: rng.randrange(len(new) + 1)]
    torn = bytearray(new)
    for _ in range(rng.randrange(1, 4)):
        start = rng.randrange(max(1, len(new))) // PAGE * PAGE
        torn[start : start + PAGE] = bytes(len(torn[start : start + PAGE]))
    return bytes(torn)
