"""Objects of a store: their names (`s3://bucket/key`, `msc://profile/key`, …), and what every client offers."""

from __future__ import annotations

import hashlib
import os
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tokenloom.errors import ConfigError, MissingObjectError, StorageError
from tokenloom.storage.secrets import admit

if TYPE_CHECKING:
    from tokenloom.storage.settings import ObjectStorageSettings

STORES: dict[str, str] = {
    **dict.fromkeys(("s3", "gs", "az", "http", "https"), "tokenloom.storage.stores:ObstoreClient"),
    "msc": "tokenloom.storage.stores:MultiStorageClient",
    "hf": "tokenloom.storage.stores:HubClient",
}
"""Kinds of object storage: by the scheme of addresses, `MODULE:CLASS` of an `ObjectClient`.

The class takes an address and the settings, and imports the library that it needs when a client is made.
"""


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """Where an object is: the scheme, one of `STORES`, the bucket, and the name of the object in it.

    The bucket is the container of `az`, the host of `http(s)`, the profile of `msc`, and `datasets` of `hf`.
    """

    scheme: str
    bucket: str
    key: str

    @property
    def root(self) -> str:
        """The address of the bucket."""
        return f"{self.scheme}://{self.bucket}"

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """Which bytes an object held when it was opened; where a store has no etags, its size alone tells."""

    num_bytes: int
    etag: str | None

    def __str__(self) -> str:
        return f"{self.num_bytes} bytes" + (f" with etag {self.etag}" if self.etag else "")


def can_be_path(text: str) -> bool:
    """Whether a file can have such a name: it has no zero byte, and all of it can be encoded."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def is_remote(path: str) -> bool:
    """Whether a path names an object in a store, not a local file."""
    return "://" in path


def parse_address(path: str, *, is_folder: bool = False) -> ObjectAddress:
    """Returns the parts of an address, which must be whole; that of a folder may name a bucket alone."""
    path = admit(path)
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in STORES:
        schemes = ", ".join(f"{each}://" for each in STORES)
        message = f"expected a path or an address with one of {schemes}, found `{path}`"
        raise ConfigError(message)
    if not bucket or not (key or is_folder):
        message = f"expected `{scheme}://BUCKET/KEY`, found `{path}`"
        raise ConfigError(message)
    if key and any(segment in ("", ".", "..") for segment in key.removesuffix("/").split("/")):
        message = f"expected a key without empty, `.` and `..` segments, found {key!r} in `{path}`"
        raise ConfigError(message)
    return ObjectAddress(scheme, bucket, key)


def canonical_path(path: str) -> str:
    """Returns an address as it is, and a local path without `.` and `..`, for telling whether two are the same."""
    return admit(path) if is_remote(path) else os.path.abspath(path)


def short_hash(*parts: object) -> str:
    """Returns a file name for some values: 32 hex digits, whatever the values hold."""
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogateescape")).hexdigest()[:32]


def relative_name(path: str, *, owner: str) -> str:
    """Returns how a file, the owner, names a path: from its own folder on if it lies below it, else as a whole."""
    if is_remote(owner):
        folder = owner.rpartition("/")[0] + "/"
        if not is_remote(path):
            message = f"`{owner}` in object storage would name the local pair `{path}`, which others cannot read"
            raise ConfigError(message, hint="write it beside the pairs, or store the pairs first")
        return path.removeprefix(folder)
    if is_remote(path):
        return path
    relative = os.path.relpath(path, os.path.dirname(owner) or ".")
    return os.path.abspath(path) if relative.split(os.sep, 1)[0] == os.pardir else relative


def path_of_name(name: str, *, owner: str) -> str:
    """Returns the path that a file, the owner, names.

    Raises:
        ValueError: a file in object storage names a local one.
    """
    if is_remote(name):
        return admit(name)
    if is_remote(owner):
        if name.startswith("/") or os.pardir in name.split("/"):
            message = f"the local pair {name!r} in object storage"
            raise ValueError(message)
        return f"{owner.rpartition('/')[0]}/{name}"
    return os.path.join(os.path.dirname(owner), name)


_process: int | None = None
"""The first process that made a client; a fork of it cannot use any."""


class ObjectClient(Protocol):
    """Access to the objects of one bucket. Safe from several threads; belongs to the process that made it.

    Every method raises one of the `StorageError`s of a store and tries once: who calls knows the deadline.
    """

    def version(self, address: ObjectAddress) -> ObjectVersion:
        """Returns what is there now."""

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> Any:
        """Returns bytes [start, stop) of that version as a buffer; another version is a `ReplacedObjectError`."""

    def upload(self, address: ObjectAddress, path: str) -> None:
        """Makes a local file appear as an object, in one step."""

    def delete(self, address: ObjectAddress) -> None:
        """Removes an object; it is no error if there is none."""

    def keys(self, address: ObjectAddress) -> list[str]:
        """Returns the keys that lie right below a key taken as a folder."""

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        """Returns the objects that lie anywhere below a key taken as a folder, by their keys."""


def make_client(address: ObjectAddress, settings: ObjectStorageSettings) -> ObjectClient:
    """Returns a client for the bucket of an address; refuses in a fork of a process that had made one."""
    global _process
    if _process is not None and _process != os.getpid():
        # The libraries run threads, which a fork does not take along: in the child their calls would never return.
        message = f"cannot use `{address.root}` in process {os.getpid()}, a fork of process {_process}, which had used "
        message += "an object store: the threads of its client do not survive a fork"
        hint = 'start workers with `multiprocessing_context="forkserver"` or `"spawn"`, '
        raise StorageError(message, hint=hint + "or open remote data only in them")
    _process = os.getpid()
    client: ObjectClient = pkgutil.resolve_name(STORES[address.scheme])(address, settings)
    return client


def missing(address: ObjectAddress) -> MissingObjectError:
    """Returns the error for an object that does not exist."""
    hint = "check the names of bucket and object, and the endpoint"
    return MissingObjectError(f"no object `{address}`", hint=hint)
