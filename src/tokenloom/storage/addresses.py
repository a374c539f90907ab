"""Object addresses (`s3://bucket/key`, `msc://profile/key`, …) and `ObjectClient`, the interface of store clients."""

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
"""The client class of each scheme, `MODULE:CLASS`; its arguments are an `ObjectAddress` and `ObjectStorageSettings`."""


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """The address of an object or folder: scheme, bucket (`az`: container, `http(s)`: host, `msc`: profile), key."""

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
    """The version of an object: its size, and its etag if the store has etags."""

    num_bytes: int
    etag: str | None

    def __str__(self) -> str:
        return f"{self.num_bytes} bytes" + (f" with etag {self.etag}" if self.etag else "")


def can_be_path(text: str) -> bool:
    """Returns whether a text is a possible path: encodable and without NUL characters."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def is_remote(path: str) -> bool:
    """Returns whether a path is the address of an object, not a local path."""
    return "://" in path


def parse_address(path: str, *, is_folder: bool = False) -> ObjectAddress:
    """Parses an address; `ConfigError` if invalid. With `is_folder`, an empty key means the whole bucket."""
    path = admit(path)
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in STORES:
        schemes = ", ".join(f"{each}://" for each in STORES)
        raise ConfigError(f"`{path}`: unknown scheme, must be one of {schemes}")
    if not bucket or not (key or is_folder):
        raise ConfigError(f"`{path}`: the address is incomplete", hint=f"write `{scheme}://BUCKET/KEY`")
    if key and any(segment in ("", ".", "..") for segment in key.removesuffix("/").split("/")):
        raise ConfigError(f"`{path}`: the key must not have empty, `.` or `..` segments")
    return ObjectAddress(scheme, bucket, key)


def canonical_path(path: str) -> str:
    """Returns a path in the form for comparisons: an address without its query string, or an absolute local path."""
    return admit(path) if is_remote(path) else os.path.abspath(path)


def short_hash(*parts: object) -> str:
    """Hashes values to 32 hexadecimal digits, which are a safe file name."""
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogateescape")).hexdigest()[:32]


def relative_name(path: str, *, owner: str) -> str:
    """Returns the name of `path` to write into the file `owner`: relative below `owner`'s folder, else absolute."""
    if is_remote(owner):
        folder = owner.rpartition("/")[0] + "/"
        if not is_remote(path):
            message = f"`{owner}` is in object storage and cannot refer to the local pair `{path}`"
            raise ConfigError(message, hint="upload the pairs first, or write the output to a local folder")
        return path.removeprefix(folder)
    if is_remote(path):
        return path
    relative = os.path.relpath(path, os.path.dirname(owner) or ".")
    return os.path.abspath(path) if relative.split(os.sep, 1)[0] == os.pardir else relative


def path_of_name(name: str, *, owner: str) -> str:
    """Converts a name in the file `owner` to a path; `ValueError` if a remote `owner` refers to a local file."""
    if is_remote(name):
        return admit(name)
    if is_remote(owner):
        if name.startswith("/") or os.pardir in name.split("/"):
            raise ValueError(f"`{owner}` in object storage refers to the local path {name!r}")
        return f"{owner.rpartition('/')[0]}/{name}"
    return os.path.join(os.path.dirname(owner), name)


_process: int | None = None  # the process that made the first client; its forks cannot use clients


class ObjectClient(Protocol):
    """A client for one bucket. Thread-safe; not usable in a fork. Methods raise `StorageError`s, and do not retry."""

    def version(self, address: ObjectAddress) -> ObjectVersion:
        """Returns the current version of an object."""

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> Any:
        """Returns bytes [start, stop) as a buffer; `ReplacedObjectError` if the object now has another version."""

    def upload(self, address: ObjectAddress, path: str) -> None:
        """Uploads the local file `path` atomically as the object `address`."""

    def delete(self, address: ObjectAddress) -> None:
        """Removes an object if it exists."""

    def keys(self, address: ObjectAddress) -> list[str]:
        """Returns the keys of the objects directly in the folder `address`."""

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        """Returns {key: version} of all objects below the folder `address`, at any depth."""


def make_client(address: ObjectAddress, settings: ObjectStorageSettings) -> ObjectClient:
    """Makes a client for the bucket of an address; `StorageError` in a fork of a process that had made a client."""
    global _process
    if _process is not None and _process != os.getpid():
        # The libraries run threads, which do not exist in a fork: calls in a fork would never return.
        where = f"cannot use `{address.root}` in process {os.getpid()}, a fork of process {_process}"
        hint = 'start workers with `multiprocessing_context="forkserver"` or `"spawn"`'
        raise StorageError(f"{where}: the threads of the client do not survive a fork", hint=hint)
    _process = os.getpid()
    client: ObjectClient = pkgutil.resolve_name(STORES[address.scheme])(address, settings)
    return client


def missing(address: ObjectAddress) -> MissingObjectError:
    return MissingObjectError(f"no object `{address}`", hint="check the names of bucket and object, and the endpoint")
