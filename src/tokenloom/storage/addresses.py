"""The names of objects: `s3://bucket/key`, `gs://`, `az://`, `http(s)://`, `msc://profile/key`, `hf://`."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from tokenloom.errors import ConfigError
from tokenloom.storage.secrets import admit

STORES: dict[str, str] = {
    **dict.fromkeys(("s3", "gs", "az", "http", "https"), "tokenloom.storage.stores.obstore:ObstoreClient"),
    "msc": "tokenloom.storage.stores.profiles:MultiStorageClient",
    "hf": "tokenloom.storage.stores.hub:HubClient",
}
"""Kinds of object storage: by the scheme of addresses, `MODULE:CLASS` of an `ObjectClient`.

The class takes an address and the settings, and imports the library that it needs when a client is made.
"""


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """Where an object is.

    Attributes:
        scheme: one of `STORES`.
        bucket: the bucket; the container of `az`, the host of `http(s)`, the profile of `msc`; `datasets` of `hf`.
        key: the name of the object in it.
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
    """Which bytes an object held when it was opened; where a store has no etags, its size alone tells.

    Attributes:
        num_bytes: its size.
        etag: changes with the bytes.
    """

    num_bytes: int
    etag: str | None


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
    """Returns the parts of an address; that of a folder may name a bucket alone.

    Raises:
        ConfigError: the scheme is unknown, a part is missing, the key holds segments that a path could climb by, or the
            address names a user.
    """
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
    """Returns how a file names a path: from its own folder on if it lies below it, else as a whole.

    Args:
        path: the path or prefix.
        owner: path of the file that names it.

    Raises:
        ConfigError: a file in object storage would name a local one.
    """
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
    """Returns the path that a file names.

    Args:
        name: what stands in the file.
        owner: path of the file.

    Raises:
        ValueError: a file in object storage names a local one.
        ConfigError: an address names a user.
    """
    if is_remote(name):
        return admit(name)
    if is_remote(owner):
        if name.startswith("/") or os.pardir in name.split("/"):
            message = f"the local pair {name!r} in object storage"
            raise ValueError(message)
        return f"{owner.rpartition('/')[0]}/{name}"
    return os.path.join(os.path.dirname(owner), name)
