"""Whatever a profile of NVIDIA's multi-storage-client names: `msc://profile/key`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tokenloom.errors import MissingObjectError, StorageError
from tokenloom.optional import require
from tokenloom.storage.addresses import ObjectAddress, ObjectVersion
from tokenloom.storage.client import as_folder, denied, missing, reason_of, replaced, unreachable
from tokenloom.storage.secrets import clean_cause
from tokenloom.storage.settings import ObjectStorageSettings


class MultiStorageClient:
    """Whatever a profile of NVIDIA's multi-storage-client names.

    It has no conditional reads, so the version is asked for after each read, which tells as surely which bytes these
    were; that costs a second request.

    Raises:
        MissingExtraError: the library is not installed.
    """

    def __init__(self, _: ObjectAddress, __: ObjectStorageSettings) -> None:
        self._library = require("multistorageclient", extra="msc")
        self._types = require("multistorageclient.types", extra="msc")

    def version(self, address: ObjectAddress) -> ObjectVersion:
        with self._worded(address):
            client, path = self._library.resolve_storage_client(str(address))
            found = client.info(path)
        return ObjectVersion(num_bytes=found.content_length, etag=found.etag)

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> Any:
        with self._worded(address):
            client, path = self._library.resolve_storage_client(str(address))
            data = client.read(path, self._types.Range(offset=start, size=stop - start))
        if (found := self.version(address)) != version:
            raise replaced(address, version, found)
        return data

    def upload(self, address: ObjectAddress, path: str) -> None:
        with self._worded(address):
            client, remote = self._library.resolve_storage_client(str(address))
            client.upload_file(remote, path)

    def delete(self, address: ObjectAddress) -> None:
        try:
            with self._worded(address):
                client, path = self._library.resolve_storage_client(str(address))
                client.delete(path)
        except MissingObjectError:
            pass

    def keys(self, address: ObjectAddress) -> list[str]:
        folder = as_folder(address)
        with self._worded(address):
            client, path = self._library.resolve_storage_client(f"{address.root}/{folder}")
            names = [each.key[len(path) :] for each in client.list(path=path) if each.key.startswith(path)]
        return [folder + name for name in names if name and "/" not in name]

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        folder = as_folder(address)
        with self._worded(address):
            client, path = self._library.resolve_storage_client(f"{address.root}/{folder}")
            keys = [folder + each.key[len(path) :] for each in client.list(path=path) if each.key.startswith(path)]
        # The entries of a listing do not have the etags of all stores.
        return {key: self.version(ObjectAddress(address.scheme, address.bucket, key)) for key in keys if key != folder}

    @contextmanager
    def _worded(self, address: ObjectAddress) -> Iterator[None]:
        try:
            yield
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
