"""Whatever a profile of NVIDIA's multi-storage-client names: `msc://profile/key`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from tokenloom.errors import MissingObjectError, StorageError
from tokenloom.optional import require
from tokenloom.storage.addresses import (
    ObjectAddress,
    ObjectVersion,
    as_folder,
    denied,
    missing,
    reason_of,
    replaced,
    unreachable,
)
from tokenloom.storage.secrets import clean_cause
from tokenloom.storage.settings import ObjectStorageSettings


class MultiStorageClient:
    """Whatever a profile of NVIDIA's multi-storage-client names.

    It has no conditional reads, so the version is asked for after each read, which tells as surely which bytes these
    were; that costs a second request.
    """

    def __init__(self, _: ObjectAddress, __: ObjectStorageSettings) -> None:
        self._library = require("multistorageclient", extra="msc")
        self._types = require("multistorageclient.types", extra="msc")

    def version(self, address: ObjectAddress) -> ObjectVersion:
        with self._resolved(address) as (client, path):
            found = client.info(path)
        return ObjectVersion(num_bytes=found.content_length, etag=found.etag)

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> Any:
        with self._resolved(address) as (client, path):
            data = client.read(path, self._types.Range(offset=start, size=stop - start))
        if (found := self.version(address)) != version:
            raise replaced(address, version, found)
        return data

    def upload(self, address: ObjectAddress, path: str) -> None:
        with self._resolved(address) as (client, remote):
            client.upload_file(remote, path)

    def delete(self, address: ObjectAddress) -> None:
        with suppress(MissingObjectError), self._resolved(address) as (client, path):
            client.delete(path)

    def keys(self, address: ObjectAddress) -> list[str]:
        folder = as_folder(address)
        return [key for key in self._below(address) if "/" not in key[len(folder) :]]

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        # The entries of a listing do not have the etags of all stores.
        return {key: self.version(replace(address, key=key)) for key in self._below(address)}

    def _below(self, address: ObjectAddress) -> list[str]:
        """Returns all keys below a folder."""
        folder = as_folder(address)
        with self._resolved(replace(address, key=folder)) as (client, path):
            names = [each.key[len(path) :] for each in client.list(path=path) if each.key.startswith(path)]
        return [folder + name for name in names if name]

    @contextmanager
    def _resolved(self, address: ObjectAddress) -> Iterator[tuple[Any, str]]:
        """Yields the library's client of a profile and the path in it, and words its errors."""
        try:
            yield self._library.resolve_storage_client(str(address))
        except FileNotFoundError as error:
            raise missing(address) from clean_cause(error)
        except PermissionError as error:
            raise denied(address, error, hint="check the credentials of the profile") from clean_cause(error)
        except ValueError as error:
            message = f"`{address}` cannot be opened: {reason_of(error)}"
            hint = "check the profiles in the file that MSC_CONFIG names"
            raise StorageError(message, hint=hint) from clean_cause(error)
        except (OSError, RuntimeError, self._types.RetryableError) as error:
            raise unreachable(address, error) from clean_cause(error)
