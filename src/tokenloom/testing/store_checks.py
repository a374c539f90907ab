"""Checks that an object store client reads and writes objects correctly."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

from tokenloom.errors import MissingObjectError, ReplacedObjectError, StorageError
from tokenloom.storage.addresses import ObjectAddress, ObjectClient, ObjectVersion, parse_address
from tokenloom.testing.checks import CheckReport, deviation, require, run_checks, skip

_SMALL = bytes(range(256)) * 4
_TREE = ("a", "b", "deep/er/c", "deep/d")
_NUM_READERS = 8


def check_store(client: ObjectClient, folder: str, *, large_bytes: int = 9 << 20) -> CheckReport:
    """Checks that an object store client meets the requirements of reading and writing datasets.

    Writes objects with unique names below the folder, and deletes them at the end.

    Args:
        client: client of the folder's bucket.
        folder: address of a folder that the client may write to, such as `s3://bucket/checks`.
        large_bytes: size in bytes of the largest object; the default of 9 MiB needs a multipart upload.

    Raises:
        ConformanceError: the client returns wrong bytes, or raises the wrong error.
    """
    parsed = parse_address(folder.removesuffix("/"), is_folder=True)
    key = "/".join([*filter(None, [parsed.key]), f"check-{secrets.token_hex(8)}"])
    checks = _StoreChecks(client, ObjectAddress(parsed.scheme, parsed.bucket, key), large_bytes)
    try:
        return run_checks(type(client).__name__, checks)
    finally:
        for address in checks._written:
            with suppress(StorageError):
                client.delete(address)


class _StoreChecks:
    """The checks of one client; each check writes to a folder of its own."""

    def __init__(self, client: ObjectClient, place: ObjectAddress, large_bytes: int) -> None:
        self._client, self._place, self._large_bytes = client, place, large_bytes
        self._written: list[ObjectAddress] = []

    def uploads(self) -> None:
        """an uploaded object exists and has the size of the file"""
        address, version = self._put("upload", _SMALL)
        again = self._client.version(address)
        require(again == version, f"{version} as version of an unchanged object", again)

    def reads_ranges(self) -> None:
        """a range of bytes is read exactly"""
        address, version = self._put("ranges", _SMALL)
        for start, stop in ((0, 1024), (0, 1), (1023, 1024), (1, 3), (255, 257), (100, 924)):
            self._require_read(address, version, _SMALL, start, stop)

    def takes_large_objects(self) -> None:
        """a large object contains the uploaded bytes"""
        data = os.urandom(self._large_bytes)
        address, version = self._put("large", data)
        for start, stop in pairwise([*range(0, len(data), 4 << 20), len(data)]):
            self._require_read(address, version, data, start, stop)

    def takes_empty_objects(self) -> None:
        """an empty object has no bytes"""
        self._put("empty", b"")

    def reads_from_threads(self) -> None:
        """several threads can read at once"""
        address, version = self._put("threads", _SMALL)
        read = partial(self._require_read, address, version, _SMALL)
        starts = range(0, len(_SMALL) - 64, 40)
        with ThreadPoolExecutor(_NUM_READERS) as executor:
            list(executor.map(read, starts, (start + 64 for start in starts)))

    def takes_all_keys(self) -> None:
        """keys that differ only in case or special characters refer to different objects"""
        names = ["a b", "a+b", "a%20b", "a=b&c", "ä", "a.b", "A b"]
        put = {name: self._put(f"keys/{name}", name.encode()) for name in names}
        for name, (address, version) in put.items():
            self._require_read(address, version, name.encode(), 0, version.num_bytes)

    def names_missing_objects(self) -> None:
        """reading a missing object raises `MissingObjectError`"""
        address, version = self._put("missing/there", _SMALL)
        absent = self._address("missing/absent")
        self._require_error(MissingObjectError, partial(self._client.version, absent), "`version` of a missing object")
        self._client.delete(address)
        read = partial(self._client.read, address, 0, 4, version)
        self._require_error(MissingObjectError, read, "`read` of a deleted object")

    def replaces(self) -> None:
        """a second upload replaces the object and changes its version"""
        address, before = self._put("replaced", _SMALL)
        _, after = self._put("replaced", _SMALL[:-1])
        require(after != before, "another version after an upload", after)
        self._require_read(address, after, _SMALL[:-1], 0, 64)

    def keeps_versions_apart(self) -> None:
        """reading an old version raises `ReplacedObjectError`"""
        address, before = self._put("versions", _SMALL)
        _, after = self._put("versions", _SMALL[::-1])
        if before.etag is None:
            skip("the store has no etags, so versions of equal size cannot be distinguished")
        require(after.etag != before.etag, "another etag for other bytes", after.etag)
        read = partial(self._client.read, address, 0, 4, before)
        self._require_error(ReplacedObjectError, read, "`read` of a replaced version")

    def deletes(self) -> None:
        """a deleted object is missing and can be deleted again"""
        address, _ = self._put("deleted", _SMALL)
        self._client.delete(address)
        self._client.delete(address)
        self._require_error(MissingObjectError, partial(self._client.version, address), "`version` of a deleted object")

    def lists_keys(self) -> None:
        """`keys` lists the objects directly in a folder"""
        folder = self._tree("listed")
        expected = [f"{folder.key}/{name}" for name in ("a", "b")]
        for address in (folder, self._address("listed/")):
            found = self._client.keys(address)
            require(sorted(found) == expected, f"{expected} from `keys` of `{address}`", found)
        require(self._client.keys(self._address("nothing")) == [], "[] from `keys` of an empty folder", "keys")

    def lists_objects(self) -> None:
        """`objects` lists all objects below a folder"""
        folder = self._tree("walked")
        addresses = [self._address(f"walked/{name}") for name in _TREE]
        expected = {address.key: self._client.version(address) for address in addresses}
        found = self._client.objects(folder)
        require(dict(found) == expected, f"{expected} from `objects`", found)

    def _tree(self, name: str) -> ObjectAddress:
        """Writes objects into folder `name`, its subfolders and folder `name`-not; returns the address of `name`."""
        for key in _TREE:
            self._put(f"{name}/{key}", key.encode())
        self._put(f"{name}-not/a", b"beside")
        return self._address(name)

    def _address(self, name: str) -> ObjectAddress:
        return ObjectAddress(self._place.scheme, self._place.bucket, f"{self._place.key}/{name}")

    def _put(self, name: str, data: bytes) -> tuple[ObjectAddress, ObjectVersion]:
        """Uploads an object and checks its size; returns its address and version."""
        address = self._address(name)
        self._written.append(address)
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            self._client.upload(address, file.name)
        version = self._client.version(address)
        require(version.num_bytes == len(data), f"{len(data)} as `num_bytes` of the version", version.num_bytes)
        return address, version

    def _require_read(self, address: ObjectAddress, version: ObjectVersion, data: bytes, start: int, stop: int) -> None:
        found = bytes(memoryview(self._client.read(address, start, stop, version)))
        where = f"bytes [{start}, {stop}) of an object of {len(data)} bytes"
        require(len(found) == stop - start, f"{stop - start} bytes for {where}", f"{len(found)} bytes")
        require(found == data[start:stop], where, "other bytes")

    def _require_error(self, kind: type[StorageError], call: Callable[[], Any], what: str) -> None:
        expected = f"`{kind.__name__}` from {what}"
        try:
            call()
        except kind:
            return
        except Exception as error:
            raise deviation(expected, f"{type(error).__name__}: {error}") from error
        raise deviation(expected, "no error")
