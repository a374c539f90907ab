"""What is kept of a complete check: which files were read, to the inode and the nanosecond, and what was wrong."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import DatasetFormatError, StorageError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import idx_path
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.manifest.file import manifest_path
from tokenloom.indexed.roles import roles_path
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import publish_bytes, storage_errors
from tokenloom.storage.json_files import UnusableJsonError, read_json
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import is_missing

_LOGGER = logging.getLogger(__name__)
_FORMAT = "tokenloom verification"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a check; no message if nothing was wrong."""

    message: str | None
    hint: str | None = None


def identity_of_files(dataset: IndexedDataset) -> dict[str, Any]:
    """Returns what changes when any file of a dataset does: values of JSON.

    Of local files, device, inode, size, and the times of the last change of contents and of anything; of objects, size
    and etag; and the checksums of the manifest.
    """
    paths = [section.path for section in dataset.sections]
    paths += [make(dataset.path_prefix) for make in (idx_path, manifest_path, roles_path)]
    names = [path if is_remote(path) else os.path.abspath(path) for path in paths]
    identity: dict[str, Any] = {name: _state(path, dataset) for name, path in zip(names, paths, strict=True)}
    try:
        manifest = manifest_of(dataset)
    except DatasetFormatError:  # which the check will name
        manifest = None
    facts = None if manifest is None else manifest.pair
    checksums = None if facts is None else (facts.tokens, facts.index, facts.roles)
    identity["checksums"] = checksums and [each and [each.num_bytes, each.crc32] for each in checksums]
    return identity


def _state(path: str, dataset: IndexedDataset) -> list[Any] | None:
    try:
        if is_remote(path):
            version = RemoteFile(path, dataset.object_storage).version
            return [version.num_bytes, version.etag]
        with storage_errors("open", path):
            status = os.stat(path)
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def record_path(folder: str, identity: dict[str, Any]) -> str:
    """Returns where the result for such files is kept."""
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    return os.path.join(folder, f"{name}.json")


def known_result(path: str, identity: dict[str, Any]) -> Found | None:
    """Returns the result that is kept, None if there is none that can be read."""
    try:
        record = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, UnusableJsonError) as error:
        _LOGGER.warning("data are verified again, because `%s` cannot be read: %s", path, error)
        return None
    expected = {"format": _FORMAT, "version": _VERSION, "identity": identity}
    if not isinstance(record, dict) or any(record.get(name) != value for name, value in expected.items()):
        return None
    if (message := record.get("problem")) is None:
        return Found(None)
    return Found(str(message), f"found before, see `{path}`; write the pair again, or remove that file to look again")


def record_result(path: str, identity: dict[str, Any], found: Found) -> None:
    """Keeps a result; a folder that cannot be written is logged."""
    record = {"format": _FORMAT, "version": _VERSION, "identity": identity}
    try:
        publish_bytes(path, json.dumps({**record, "problem": found.message}).encode())
    except StorageError as error:
        _LOGGER.warning("what was verified is not remembered: %s", error.message)
