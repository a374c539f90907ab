"""Addresses of objects (`s3://bucket/key`, `msc://profile/key`, …), and the protocol of clients."""

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
"""`MODULE:CLASS` of an `ObjectClient`, made from an address and the settings, by scheme."""


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """Scheme (one of `STORES`), bucket (a container of `az`, a host of `http(s)`, a profile of `msc`), and key."""

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
    """Identity of an object's bytes: the size, and the etag where the store has one."""

    num_bytes: int
    etag: str | None

    def __str__(self) -> str:
        return f"{self.num_bytes} bytes" + (f" with etag {self.etag}" if self.etag else "")


def can_be_path(text: str) -> bool:
    """Whether a file can have this name: no zero byte, and encodable."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def is_remote(path: str) -> bool:
    """Whether a path is the address of an object."""
    return "://" in path


def parse_address(path: str, *, is_folder: bool = False) -> ObjectAddress:
    """Returns the parts of an address; a folder may be a whole bucket."""
    path = admit(path)
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in STORES:
        schemes = ", ".join(f"{each}://" for each in STORES)
        raise ConfigError(f"`{path}`: unknown scheme; known are {schemes}")
    if not bucket or not (key or is_folder):
        raise ConfigError(f"`{path}`: incomplete address", hint=f"write `{scheme}://BUCKET/KEY`")
    if key and any(segment in ("", ".", "..") for segment in key.removesuffix("/").split("/")):
        raise ConfigError(f"`{path}`: its key has an empty, `.` or `..` segment")
    return ObjectAddress(scheme, bucket, key)


def canonical_path(path: str) -> str:
    """Returns a path for comparison: an address without its query, or an absolute local path."""
    return admit(path) if is_remote(path) else os.path.abspath(path)


def short_hash(*parts: object) -> str:
    """Returns 32 hex digits for some values, a safe file name."""
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogateescape")).hexdigest()[:32]


def relative_name(path: str, *, owner: str) -> str:
    """Returns the name of a path in the file `owner`: relative if it lies below the owner's folder."""
    if is_remote(owner):
        folder = owner.rpartition("/")[0] + "/"
        if not is_remote(path):
            message = f"`{owner}` is in object storage and cannot refer to the local pair `{path}`"
            raise ConfigError(message, hint="write it beside the pairs, or upload the pairs first")
        return path.removeprefix(folder)
    if is_remote(path):
        return path
    relative = os.path.relpath(path, os.path.dirname(owner) or ".")
    return os.path.abspath(path) if relative.split(os.sep, 1)[0] == os.pardir else relative


def path_of_name(name: str, *, owner: str) -> str:
    """Returns the path of a name in the file `owner`; a `ValueError` if an object names a local file."""
    if is_remote(name):
        return admit(name)
    if is_remote(owner):
        if name.startswith("/") or os.pardir in name.split("/"):
            raise ValueError(f"the local pair {name!r} in object storage")
        return f"{owner.rpartition('/')[0]}/{name}"
    return os.path.join(os.path.dirname(owner), name)


_process: int | None = None
"""The process that made the first client; its forks cannot use any."""


class ObjectClient(Protocol):
    """Access to the objects of one bucket. Thread-safe; belongs to the process that made it.

    Methods try once, without retries, and raise `StorageError`s.
    """

    def version(self, address: ObjectAddress) -> ObjectVersion:
        """Returns the current version."""

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> Any:
        """Returns bytes [start, stop) of that version as a buffer; another version is a `ReplacedObjectError`."""

    def upload(self, address: ObjectAddress, path: str) -> None:
        """Uploads a local file, atomically."""

    def delete(self, address: ObjectAddress) -> None:
        """Removes an object if it exists."""

    def keys(self, address: ObjectAddress) -> list[str]:
        """Returns the keys directly below a folder."""

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        """Returns the objects anywhere below a folder, by key."""


def make_client(address: ObjectAddress, settings: ObjectStorageSettings) -> ObjectClient:
    """Returns a client for the bucket of an address; refuses in a fork of a process that had made one."""
    global _process
    if _process is not None and _process != os.getpid():
        # The libraries run threads, which a fork does not take along: in the child their calls would never return.
        message = f"cannot use `{address.root}` in process {os.getpid()}, a fork of process {_process}: the threads of "
        hint = 'start workers with `multiprocessing_context="forkserver"` or `"spawn"`'
        raise StorageError(f"{message}its client do not survive a fork", hint=hint)
    _process = os.getpid()
    client: ObjectClient = pkgutil.resolve_name(STORES[address.scheme])(address, settings)
    return client


def missing(address: ObjectAddress) -> MissingObjectError:
    """Returns the error for an object that does not exist."""
    return MissingObjectError(f"no object `{address}`", hint="check the names of bucket and object, and the endpoint")
