"""The output of a task: files in one folder, published together with a manifest of their settings and inputs."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tokenloom.errors import OutputBusyError, OutputExistsError, StorageError
from tokenloom.progress import waiting_for
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.json_files import (
    MAY_BE_MISSING,
    Crc32,
    UnusableJsonError,
    from_versioned,
    members_of,
    read_json,
    versioned_members_of,
)
from tokenloom.storage.publishing import FileGroup, OutputLock, make_folder_of, publish_together, recover

MANIFEST = "manifest.json"
_VERSION = 1
_READ_BYTES = 1 << 20
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A file of an output; `name` is its path in the output folder."""

    name: str
    num_bytes: int
    crc32: Crc32


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputManifest:
    """The identity and the files of an output.

    Attributes:
        task: name of the task.
        identity: settings and inputs that determine the output.
        counts: counts by name, such as "chunks".
        files: the files in order.
        blocks: checksums of the arrays of all blocks, for `differing_blocks`.
    """

    task: str
    identity: Mapping[str, Any]
    counts: Mapping[str, int]
    files: tuple[FileRecord, ...]
    blocks: tuple[Crc32, ...] = field(default=(), metadata=MAY_BE_MISSING)

    @property
    def digest(self) -> str:
        """Returns a hash of this manifest; outputs that are made from this output have the hash in their identity."""
        return hashlib.sha256(json.dumps(members_of(self), sort_keys=True).encode()).hexdigest()[:24]

    @classmethod
    def read(cls, path: str) -> Self | None:
        """Reads a manifest; returns None if the file does not exist."""
        if not os.path.lexists(path):
            return None
        try:
            with storage_errors("read", path):
                return from_versioned(cls, read_json(path), _VERSION)
        except UnusableJsonError as error:
            message = f"`{path}` is not a manifest{error}"
            raise StorageError(message, hint="remove the file, and repeat the build with `overwrite=True`") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The files that a task makes in a folder.

    Attributes:
        folder: path of the folder.
        task: name of the task, for messages.
        identity: settings and inputs that determine the output, as JSON values.
        pattern: glob pattern of file names; all matching files in the folder belong to the output.
        manifest: file name of the manifest; outputs that share a folder need different names.
    """

    folder: str
    task: str
    identity: Mapping[str, Any]
    pattern: str
    manifest: str = MANIFEST

    @property
    def manifest_path(self) -> str:
        return os.path.join(self.folder, self.manifest)

    def finished(self) -> OutputManifest | None:
        """Returns the manifest of the existing output; None if that output is incomplete or has another identity."""
        recover(self.manifest_path)
        found = self._same()
        return None if found is None or self._broken_file(found) is not None else found

    def finished_or_free(self, *, overwrite: bool) -> OutputManifest | None:
        """Returns the manifest if the output is finished; None if the output is still to be made.

        Raises:
            OutputExistsError: existing files would be replaced, and `overwrite` is False.
        """
        found = self.finished()
        if found is None and not overwrite and (existing := self.existing_paths()):
            found = self.finished()  # another process may have just made the output
            if found is None:
                raise self._exists_error(existing[0])
        return found

    def existing_paths(self) -> list[str]:
        """Returns the paths of existing files that the output would replace."""
        before = OutputManifest.read(self.manifest_path)
        paths = {os.path.join(self.folder, record.name) for record in (before.files if before else ())}
        if os.path.isdir(self.folder):
            with storage_errors("list", self.folder):
                names = fnmatch.filter(os.listdir(self.folder), self.pattern)
            paths.update(os.path.join(self.folder, name) for name in names if not name.startswith("."))
        return sorted(path for path in (*paths, self.manifest_path) if os.path.lexists(path))

    def _same(self) -> OutputManifest | None:
        """Returns the existing manifest if it has the identity of this output, else None."""
        found = OutputManifest.read(self.manifest_path)
        if found is None or found.task != self.task or found.identity != json.loads(json.dumps(self.identity)):
            return None
        return found

    def _broken_file(self, manifest: OutputManifest) -> str | None:
        """Returns the first file that is missing or has another size; None if all files are complete."""
        for record in manifest.files:
            path = os.path.join(self.folder, record.name)
            if not os.path.isfile(path) or os.path.getsize(path) != record.num_bytes:
                return path
        return None

    def _exists_error(self, path: str) -> OutputExistsError:
        found = self._same()
        if found is not None and (broken := self._broken_file(found)) is not None:
            message = f"`{broken}`, a file of the finished output ({self.task}), is missing or has another size"
            return OutputExistsError(message, hint="restore the file, or rebuild the output with `overwrite=True`")
        message = f"`{path}` exists, and was made with other settings or data, or by another program"
        return OutputExistsError(message, hint="use another project folder, or replace outputs with `overwrite=True`")


class NewOutput:
    """The files of an output in progress; they are published together or not at all."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._files: list[PendingFile] = []
        self._checksums: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.discard()

    def file(self, name: str) -> PendingFile:
        """Returns a new file to write; `name` is its path in the output folder."""
        path = os.path.join(self._output.folder, name)
        make_folder_of(path)
        file = PendingFile(path)
        self._files.append(file)
        return file

    def take(self, source: str, name: str, *, crc32: int) -> None:
        """Adds the file `source` as `name` in the output folder: a hard link, or a copy if links are not supported."""
        path = os.path.join(self._output.folder, name)
        self._checksums[path] = crc32
        make_folder_of(path)
        copied = self.file(name)
        link = f"{copied.readable_path}.link"
        try:
            os.link(source, link)
            os.replace(link, copied.readable_path)
        except OSError:  # hard links are not supported
            with storage_errors("read", source), open(source, "rb") as stream:
                shutil.copyfileobj(stream, copied.stream)

    def publish(
        self, counts: Mapping[str, int], *, blocks: Sequence[int] = (), overwrite: bool = False
    ) -> OutputManifest:
        """Moves the files into place, writes and returns the manifest, and removes replaced files.

        If another process has published the same output, discards the new files and returns the existing manifest.

        Raises:
            OutputExistsError: existing files would be replaced, and `overwrite` is False.
            StorageError: writing failed; existing files are unchanged.
        """
        output, key = self._output, self._output.manifest_path
        make_folder_of(key)
        with _locked(key):
            if (same := output.finished_or_free(overwrite=overwrite)) is not None:
                return same
            manifest = OutputManifest(
                task=output.task,
                identity=dict(output.identity),
                counts=dict(counts),
                files=tuple(self._record(file) for file in self._files),
                blocks=tuple(blocks),
            )
            data = json.dumps(versioned_members_of(manifest, _VERSION), indent=1).encode() + b"\n"
            self.file(output.manifest).write(data)
            group = FileGroup(key=key, files=list(self._files), names=output.existing_paths())
            publish_together([group], replace=overwrite, locked=[key])
        return manifest

    def _record(self, file: PendingFile) -> FileRecord:
        file.sync()
        path = file.readable_path
        crc32 = self._checksums.get(file.path)
        return FileRecord(
            name=os.path.relpath(file.path, self._output.folder),
            num_bytes=os.path.getsize(path),
            crc32=crc32_of(path) if crc32 is None else crc32,
        )


def _locked(key: str) -> OutputLock:
    """Waits for the lock of an output; returns the lock."""
    with waiting_for(f"another process that writes `{key}`"):
        while True:
            try:
                return OutputLock(key)
            except OutputBusyError:
                time.sleep(_POLL_SECONDS)


def crc32_of(path: str) -> int:
    crc = 0
    with storage_errors("read", path), open(path, "rb") as file:
        while data := file.read(_READ_BYTES):
            crc = zlib.crc32(data, crc)
    return crc
