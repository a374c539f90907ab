"""Access to the objects of a store: what every client offers, and the errors that all of them raise."""

from __future__ import annotations

import os
import pkgutil
from typing import Any, Protocol

from tokenloom.errors import (
    AccessDeniedError,
    MissingObjectError,
    ReplacedObjectError,
    StorageError,
    UnavailableError,
)
from tokenloom.storage.addresses import STORES, ObjectAddress, ObjectVersion
from tokenloom.storage.secrets import redacted
from tokenloom.storage.settings import ObjectStorageSettings

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
    """Returns a client for the bucket of an address.

    Raises:
        MissingExtraError: the library is not installed.
        StorageError: this process is a fork of one that had made a client.
    """
    global _process
    if _process is not None and _process != os.getpid():
        # The libraries run threads, which a fork does not take along: in the child their calls would never return.
        message = (
            f"cannot use `{address.root}` in process {os.getpid()}, a fork of process {_process}, which had used an "
            "object store: the threads of its client do not survive a fork"
        )
        hint = (
            'start workers with `multiprocessing_context="forkserver"` or `"spawn"`, or open remote data only in them'
        )
        raise StorageError(message, hint=hint)
    _process = os.getpid()
    client: ObjectClient = pkgutil.resolve_name(STORES[address.scheme])(address, settings)
    return client


def as_folder(address: ObjectAddress) -> str:
    """Returns what the keys in a folder begin with."""
    return address.key.removesuffix("/") + "/" if address.key else ""


def missing(address: ObjectAddress) -> MissingObjectError:
    """Returns the error for an object that does not exist."""
    message = f"no object `{address}`"
    return MissingObjectError(message, hint="check the names of bucket and object, and the endpoint")


def denied(address: ObjectAddress, reason: BaseException | str, *, hint: str) -> AccessDeniedError:
    """Returns the error for an object that may not be read or written."""
    return AccessDeniedError(f"access to `{address}` was denied: {reason_of(reason)}", hint=hint)


def unreachable(address: ObjectAddress, reason: BaseException | str, *, hint: str | None = None) -> UnavailableError:
    """Returns the error for a store that does not answer as it should, which may pass."""
    return UnavailableError(f"`{address}` cannot be reached: {reason_of(reason)}", hint=hint)


def replaced(
    address: ObjectAddress, expected: ObjectVersion | None = None, found: ObjectVersion | None = None
) -> ReplacedObjectError:
    """Returns the error for an object that is not the one that was opened."""
    message = f"`{address}` was replaced after it was opened"
    if expected is not None and found is not None:
        told = [
            f"{each.num_bytes} bytes" + (f" with etag {each.etag}" if each.etag else "") for each in (expected, found)
        ]
        message += f": expected {told[0]}, found {told[1]}"
    return ReplacedObjectError(message, hint="open the dataset again")


def reason_of(error: BaseException | str) -> str:
    """Returns the first line of a library's error, without secrets; the others are for its own developers."""
    text = redacted(str(error)).strip()
    return text.splitlines()[0] if text else type(error).__name__
