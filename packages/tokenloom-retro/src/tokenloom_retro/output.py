"""What a task makes: files of one folder that appear together, with a manifest that says what they were made of."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tokenloom.errors import OutputBusyError, OutputExistsError, StorageError
from tokenloom.progress import waiting_for
from tokenloom.storage.atomic import PendingFile, PendingLink, pending_link, storage_errors
from tokenloom.storage.json_files import UnusableJsonError, read_json
from tokenloom.storage.publishing import FileGroup, OutputLock, make_folder_of, publish_together, recover
from tokenloom.storage.typed_json import MAY_BE_MISSING, Crc32, from_versioned, members_of, versioned_members_of

MANIFEST = "manifest.json"
"""The name of the manifest in the folder of an output."""

_VERSION = 1
_READ_BYTES = 1 << 20
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A file of an output.

    Attributes:
        name: its path in the folder.
        num_bytes: its size.
        crc32: its checksum.
    """

    name: str
    num_bytes: int
    crc32: Crc32


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputManifest:
    """What an output was made of, and which files it has.

    Attributes:
        task: what was made.
        identity: all that decides what comes out.
        counts: numbers of it, by name.
        files: the files, in order.
        blocks: checksum of the arrays of each block that it was made of, to be compared with those of a later time.
    """

    task: str
    identity: Mapping[str, Any]
    counts: Mapping[str, int]
    files: tuple[FileRecord, ...]
    blocks: tuple[Crc32, ...] = field(default=(), metadata=MAY_BE_MISSING)

    def to_json(self) -> bytes:
        """Returns the manifest as a file holds it."""
        return json.dumps(versioned_members_of(self, _VERSION), indent=1).encode() + b"\n"

    @property
    def digest(self) -> str:
        """A hash of what it was made of and of the bytes of its files: part of the identity of what is made of it."""
        return hashlib.sha256(json.dumps(members_of(self), sort_keys=True).encode()).hexdigest()[:24]

    @classmethod
    def read(cls, folder: str, name: str = MANIFEST) -> Self | None:
        """Returns the manifest of this name in a folder; None if there is none.

        Raises:
            StorageError: it cannot be read, or is none.
        """
        path = os.path.join(folder, name)
        if not os.path.lexists(path):
            return None
        try:
            with storage_errors("read", path):
                return from_versioned(cls, read_json(path), _VERSION)
        except UnusableJsonError as error:
            message = f"`{path}` is no manifest{error}"
            raise StorageError(message, hint="remove it, and make the output again with `overwrite=True`") from error


def same_output(
    folder: str, task: str, identity: Mapping[str, Any], *, manifest: str = MANIFEST
) -> OutputManifest | None:
    """Returns the manifest of what lies in a folder, if it was made of the same, and its files are there.

    Args:
        folder: folder of the output.
        task: what is to be made.
        identity: all that decides what comes out.
        manifest: name of the manifest.

    Raises:
        StorageError: the manifest cannot be read.
    """
    if not os.path.isdir(folder):
        return None
    recover(os.path.join(folder, manifest))
    found = _manifest_of_same(folder, task, identity, manifest)
    return found if found is not None and _broken_file(folder, found) is None else None


def finished_output(
    folder: str,
    task: str,
    identity: Mapping[str, Any],
    *,
    manifest: str = MANIFEST,
    names: Sequence[str] = (),
    ending: str | None = None,
    overwrite: bool,
) -> OutputManifest | None:
    """Returns what `same_output` does; None where the output may be made, which is asked before that costs anything.

    Args:
        folder, task, identity, manifest: see `same_output`.
        names: names of the files that it will have, as far as they are known.
        ending: see `NewOutput`.
        overwrite: whether what is there may be replaced.

    Raises:
        OutputExistsError: something is there that was made of something else, and no `overwrite`.
        StorageError: the manifest cannot be read.
    """
    found = same_output(folder, task, identity, manifest=manifest)
    if found is not None or overwrite or not os.path.isdir(folder):
        return found
    expected = [os.path.join(folder, name) for name in (*names, manifest)]
    there = sorted(path for path in (*_names_before(folder, manifest, ending), *expected) if os.path.lexists(path))
    if not there:
        return None
    found = same_output(folder, task, identity, manifest=manifest)  # another process may just have made it
    if found is None:
        raise _exists_error(folder, task, identity, manifest, there[0])
    return found


class NewOutput:
    """The files of an output while they are made: they appear together, or not at all.

    Args:
        folder: folder of the output, which is made.
        task: what is made.
        manifest: name of the manifest; outputs of one folder have several.
        ending: what the names of its files end with, if no others with that may be in the folder, whoever made them.
    """

    def __init__(self, folder: str, task: str, *, manifest: str = MANIFEST, ending: str | None = None) -> None:
        self._folder = folder
        self._task = task
        self._manifest = manifest
        self._ending = ending
        self._files: list[PendingFile | PendingLink] = []
        self._checksums: dict[str, int] = {}

    def __enter__(self) -> Self:
        make_folder_of(os.path.join(self._folder, self._manifest))
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.discard()

    def file(self, name: str) -> PendingFile:
        """Returns a new file, to be written; its path in the folder is given."""
        path = os.path.join(self._folder, name)
        make_folder_of(path)
        file = PendingFile(path)
        self._files.append(file)
        return file

    def take(self, source: str, name: str, *, crc32: int) -> None:
        """Adds a file with the bytes of another one: a second name for it, where that can be.

        Args:
            source: path of the other one.
            name: its path in the folder.
            crc32: checksum of the bytes.

        Raises:
            StorageError: it cannot be copied.
        """
        path = os.path.join(self._folder, name)
        self._checksums[path] = crc32
        make_folder_of(path)
        if (linked := pending_link(source, path)) is not None:
            self._files.append(linked)
            return
        copied = self.file(name)
        with storage_errors("read", source), open(source, "rb") as stream:
            shutil.copyfileobj(stream, copied.stream)

    def publish(
        self,
        identity: Mapping[str, Any],
        counts: Mapping[str, int],
        *,
        blocks: Sequence[int] = (),
        overwrite: bool,
    ) -> OutputManifest:
        """Makes the files appear, with their manifest, and returns that; what was there before goes only then.

        Where another process has made the same meanwhile, its files stay.

        Args:
            identity: all that decides what came out.
            counts: numbers of it, by name.
            blocks: checksums of the blocks that it was made of.
            overwrite: whether what is there may be replaced.

        Raises:
            OutputExistsError: something is there that was made of something else, and no `overwrite`.
            StorageError: writing failed; what was there is there again.
        """
        key = os.path.join(self._folder, self._manifest)
        with _locked(key):
            if (same := same_output(self._folder, self._task, identity, manifest=self._manifest)) is not None:
                return same
            names = {
                *_names_before(self._folder, self._manifest, self._ending),
                *(file.path for file in self._files),
                key,
            }
            if not overwrite and (there := sorted(name for name in names if os.path.lexists(name))):
                raise _exists_error(self._folder, self._task, identity, self._manifest, there[0])
            records = tuple(self._record(file) for file in self._files)
            manifest = OutputManifest(
                task=self._task, identity=dict(identity), counts=dict(counts), files=records, blocks=tuple(blocks)
            )
            self.file(self._manifest).write(manifest.to_json())
            group = FileGroup(key=key, files=list(self._files), names=sorted(names))
            publish_together([group], replace=overwrite, locked=[key])
        return manifest

    def _record(self, file: PendingFile | PendingLink) -> FileRecord:
        file.sync()
        path = file.readable_path
        crc32 = self._checksums.get(file.path)
        return FileRecord(
            name=os.path.relpath(file.path, self._folder),
            num_bytes=os.path.getsize(path),
            crc32=crc32_of(path) if crc32 is None else crc32,
        )


def _names_before(folder: str, manifest: str, ending: str | None) -> Iterator[str]:
    """Yields the paths of what is replaced by an output."""
    before = OutputManifest.read(folder, manifest)
    for record in before.files if before else ():
        yield os.path.join(folder, record.name)
    if ending is not None:
        with storage_errors("list", folder):
            for name in os.listdir(folder):
                if name.endswith(ending) and not name.startswith("."):
                    yield os.path.join(folder, name)


def _manifest_of_same(folder: str, task: str, identity: Mapping[str, Any], manifest: str) -> OutputManifest | None:
    """Returns the manifest in a folder, if it says that the output was made of the same."""
    found = OutputManifest.read(folder, manifest)
    is_same = found is not None and found.task == task and found.identity == json.loads(json.dumps(identity))
    return found if is_same else None


def _broken_file(folder: str, manifest: OutputManifest) -> str | None:
    """Returns the path of the first file of an output that is missing, or has another size; None if there is none."""
    for record in manifest.files:
        path = os.path.join(folder, record.name)
        if not os.path.isfile(path) or os.path.getsize(path) != record.num_bytes:
            return path
    return None


def _exists_error(folder: str, task: str, identity: Mapping[str, Any], manifest: str, path: str) -> OutputExistsError:
    """Returns the error of an output that may not be made, since a path of it is there."""
    found = _manifest_of_same(folder, task, identity, manifest)
    if found is not None and (broken := _broken_file(folder, found)) is not None:
        message = f"`{broken}`, a file of the finished {task}, is missing or of another size"
        return OutputExistsError(message, hint="put it back, or make all of it again with `overwrite=True`")
    message = f"`{path}` exists, and was made with other settings, of other data, or by something else"
    return OutputExistsError(message, hint="choose another project folder, or replace it with `overwrite=True`")


def _locked(key: str) -> OutputLock:
    """Returns the lock of an output, once whoever writes it is done."""
    with waiting_for(f"another process, which writes `{key}`"):
        while True:
            try:
                return OutputLock(key)
            except OutputBusyError:
                time.sleep(_LOOK_SECONDS)


def crc32_of(path: str) -> int:
    """Returns the checksum of a file.

    Raises:
        StorageError: it cannot be read.
    """
    crc = 0
    with storage_errors("read", path), open(path, "rb") as file:
        while data := file.read(_READ_BYTES):
            crc = zlib.crc32(data, crc)
    return crc
