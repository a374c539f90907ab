"""Writers that replace a group of files together, and readers that may look at any moment.

Guarantee: whenever the key file exists, all files of its group exist and are complete. A published group stays until
another one replaces it, also after a loss of power. Without `overwrite`, no file is removed. After recovery, only locks
and temporary files are left.
"""

from tests.simulation.scheduler import Actor, FailedError, Faults, World
from tests.simulation.system import Modules, simulated
from tokenloom.errors import OutputExistsError, StorageError
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.publishing import FileGroup, OutputLock, publish_together, recover

_KEY = "/data/set.idx"
_OPTIONAL = "/data/set.roles"


class _Group:
    def __init__(self, world: World) -> None:
        self.world = world
        folder = world.rng.choice(("/data", "/data", "/data", "/other"))
        self.names = [f"{folder}/set.bin", _OPTIONAL, "/data/set.json", _KEY]
        self.first = None if world.rng.random() < 0.4 else "first"
        self.published: set[str] = set()  # versions that were visible at some moment
        self.lasting = self.first  # the version that the last successful writer published
        for folder in ("/data", "/other"):
            world.disk.put_folder(folder)
        for name in self.files_of(self.first) if self.first else ():
            world.disk.put(name, self.content(self.first, name))

    def files_of(self, version: str) -> list[str]:
        return [name for name in self.names if name != _OPTIONAL or len(version) % 2]

    def content(self, version: str, name: str) -> bytes:
        return f"{version} {name} ".encode() * 20

    def seen(self) -> str | None:
        key = self.world.disk.bytes_at(_KEY)
        if key is None:
            return None
        version = key.split(b" ")[0].decode("ascii", "replace")
        expected = self.files_of(version)
        for name in self.names:
            found = self.world.disk.bytes_at(name)
            if found != (self.content(version, name) if name in expected else None):
                what = "nothing" if found is None else bytes(found[:12])
                raise FailedError(
                    f"the key is of {version!r}, but {name} contains {what!r} ({len(found or b'')} bytes)"
                )
        return version

    def watch(self) -> None:
        if (version := self.seen()) is not None:
            self.published.add(version)


def _write(group: _Group, version: str, *, overwrite: bool) -> str:
    key = group.names[-1]
    files = [PendingFile(name) for name in group.files_of(version)]
    try:
        for file in files:
            file.write(group.content(version, file.path))
        if group.world.rng.random() < 0.2:
            for file in files:
                file.seal()
        with OutputLock(key):
            publish_together([FileGroup(key=key, files=files, names=group.names)], replace=overwrite, locked=[key])
            group.lasting = version  # no other process may write while the lock is held
    finally:
        for file in files:
            file.discard()
    return version


def _read(group: _Group) -> None:
    for _ in range(3):
        recover(_KEY)
        group.world.call("look again")


def run(world: World) -> None:
    group = _Group(world)
    world.watch = group.watch
    with simulated(world) as modules:
        for boot in range(world.rng.randrange(1, 4)):
            works = {}
            overwrites = {}
            for number in range(world.rng.randrange(1, 4)):
                name = f"w{boot}{number}" + "x" * world.rng.randrange(2)
                overwrites[name] = world.rng.random() < 0.6
                works[name] = lambda name=name, over=overwrites[name]: _write(group, name, overwrite=over)
            for number in range(world.rng.randrange(3)):
                works[f"reader{boot}{number}"] = lambda: _read(group)
            before = group.lasting
            actors = world.run(works, Faults.drawn(world.rng))
            _check_ends(group, actors, before, overwrites)
        _check_recovered(world, group, modules)


def _check_ends(group: _Group, actors: list[Actor], before: str | None, overwrites: dict[str, bool]) -> None:
    for actor in actors:
        if actor.error is not None and not issubclass(actor.error_kind or object, (StorageError, OutputExistsError)):
            raise FailedError(f"{actor.name} ended with {actor.error}")
        if "exists already" in (actor.error or "") and actor.error_kind is not OutputExistsError:
            raise FailedError(f"{actor.name} ended with {actor.error}")
        if actor.succeeded and actor.name in overwrites and actor.name not in group.published:
            raise FailedError(f"{actor.name} succeeded, but its version was never visible")
    writers = [actor for actor in actors if actor.name in overwrites]
    if before is not None and not any(overwrites.values()) and any(actor.succeeded for actor in writers):
        raise FailedError(f"{before!r} was replaced without `overwrite`")


def _check_recovered(world: World, group: _Group, modules: Modules) -> None:
    def settle() -> None:
        OutputLock(_KEY).release()
        if recover(_KEY):
            raise FailedError("a journal is left after recovery")

    actor = world.run({"at last": settle})[0]
    if actor.error is not None:
        raise FailedError(f"recovery: {actor.error}")
    version = group.seen()
    if version is None and group.lasting is not None:
        raise FailedError(f"{group.lasting!r} was published, but no files exist")
    if version is None and (left := [name for name in group.names if world.disk.look(name)]):
        raise FailedError(f"the key is missing, but these files exist: {left}")
    if version not in (None, group.first) and version not in group.published:
        raise FailedError(f"{version!r} was never published")
    hidden = [name for place in ("/data", "/other") for name in world.disk.names(place) if name.startswith(".")]
    if left := [name for name in hidden if not name.endswith((".tmp", ".lock"))]:
        raise FailedError(f"left after recovery: {left}")
