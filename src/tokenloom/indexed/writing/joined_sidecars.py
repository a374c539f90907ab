"""The files beside many datasets as those of one: roles, origins, hashes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.indexed.checksums import start_crc32_of
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.document_hashes import hashes_path, read_document_hashes, write_document_hashes
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.manifest.contents import SIDECARS, FileChecksum, PairFacts
from tokenloom.indexed.origins import JoinedOrigins, origins_path, read_origins, write_origins
from tokenloom.indexed.origins_file import OriginsFileWriter
from tokenloom.indexed.writing.concatenated_roles import ConcatenatedRoles
from tokenloom.indexed.writing.kept_documents import ConcatenatedPart
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.local import ByteSource
from tokenloom.storage.resolve import exists

_LOGGER = logging.getLogger(__name__)

_ROWS = 1 << 20


@dataclass(slots=True)
class WrittenSidecars:
    """Files that go beside a pair, written and without names, and their checksums, by the names of `SIDECARS`."""

    files: dict[str, PendingFile | PendingObject] = field(default_factory=dict)
    checksums: dict[str, FileChecksum] = field(default_factory=dict)

    def add(self, name: str, written: tuple[PendingFile | PendingObject, FileChecksum] | None) -> None:
        """Adds a file, if there is one."""
        if written is not None:
            self.files[name], self.checksums[name] = written

    def facts(self, pair: PairFacts) -> PairFacts:
        """Returns what a manifest says of the pair with these files."""
        found: dict[str, Any] = {name: self.checksums.get(name) for name in SIDECARS}
        return replace(pair, **found)

    def discard(self) -> None:
        """Gives them up; harmless when repeated."""
        for file in self.files.values():
            file.discard()


class SidecarSource(Protocol):
    """What makes the origins and the hashes of a pair that is being built."""

    def write(self, prefix: str, num_documents: int, index: ByteSource, *, durable: bool) -> WrittenSidecars:
        """Returns the files of the pair; see `AppendedSidecars.write`."""


class AppendedSidecars:
    """The origins and the hashes of pairs that are appended to one that is being built.

    Documents that are added otherwise come from nowhere that is known, and with one of them there are no hashes.
    """

    def __init__(self) -> None:
        self._origins = JoinedOrigins()
        self._hashes: list[NDArray[np.uint64]] = []
        self._num_hashed = 0

    def append(self, pair: IndexedDataset, *, first_document: int) -> None:
        """Takes what lies beside a pair.

        Args:
            pair: the pair.
            first_document: documents that are there before its own.

        Raises:
            DatasetFormatError: a file is damaged, or belongs to other data.
        """
        origins, hashes = read_origins(pair.path_prefix), read_document_hashes(pair.path_prefix, is_checked=True)
        self._origins.append(None, range(self._origins.num_documents, first_document))
        self._origins.append(origins, range(pair.num_documents))
        if hashes is not None and self._num_hashed == first_document:
            self._hashes.append(hashes)
            self._num_hashed += len(hashes)

    def write(self, prefix: str, num_documents: int, index: ByteSource, *, durable: bool) -> WrittenSidecars:
        """Returns the files of the pair.

        Args:
            prefix: prefix of the pair.
            num_documents: number of its documents.
            index: the bytes of its index, complete.
            durable: whether the files survive a loss of power once they are published.

        Raises:
            StorageError: writing failed.
        """
        written = WrittenSidecars()
        self._origins.append(None, range(self._origins.num_documents, num_documents))
        origins, has_hashes = self._origins.origins(), bool(self._hashes) and self._num_hashed == num_documents
        if origins is None and not has_hashes:
            return written
        start = start_crc32_of(index)
        try:
            if origins is not None:
                written.add("origins", write_origins(origins, prefix, index_start_crc32=start, durable=durable))
            if has_hashes:
                hashes = write_document_hashes(prefix, self._hashes, index_start_crc32=start, durable=durable)
                written.add("hashes", hashes)
        except BaseException:
            written.discard()
            raise
        return written


class JoinedSidecars:
    """What becomes of the files beside the inputs. Memory: what `ConcatenatedRoles` says, and the table of origins.

    Roles are joined if all inputs have them, and some is an error. Origins are joined if any has them; documents of the
    others then come from nowhere that is known. Hashes are joined if all inputs have them.

    Args:
        parts: what the output is made of.
        output_prefix: prefix of the output.
        multimodal: whether the inputs hold modes.
        durable: whether the files survive a loss of power once they are published.

    Raises:
        ConfigError, DatasetFormatError: as `ConcatenatedRoles`.
    """

    def __init__(
        self, parts: Sequence[ConcatenatedPart], output_prefix: str, *, multimodal: bool, durable: bool = True
    ) -> None:
        self._parts = parts
        self._prefix = output_prefix
        self._multimodal = multimodal
        self._durable = durable
        self._roles = ConcatenatedRoles(parts, output_prefix, multimodal=multimodal)
        prefixes = list(dict.fromkeys(prefix_of(part.prefix) for part in parts))
        without = [prefix for prefix in prefixes if not exists(origins_path(prefix))]
        self._has_origins = len(without) < len(prefixes)
        if without and self._has_origins:
            _LOGGER.warning("`%s` has no origins: those of its documents are not known in the result", without[0])
        without = [prefix for prefix in prefixes if not exists(hashes_path(prefix))]
        self._has_hashes = not without
        if without and len(without) < len(prefixes):
            _LOGGER.warning("the result has no hashes of documents, because `%s` has none", without[0])

    def write(self, num_sequences: int, tokens: ByteSource, index: ByteSource) -> WrittenSidecars:
        """Returns the files of the output.

        Args:
            num_sequences: number of its sequences.
            tokens, index: the bytes of its tokens and of its index, complete.

        Raises:
            DatasetFormatError: what an input has is damaged, or belongs to other data.
            StorageError: reading or writing failed.
        """
        written = WrittenSidecars()
        try:
            written.add("roles", self._roles.write(num_sequences, tokens, index))
            start = start_crc32_of(index)
            written.add("origins", self._write_origins(start) if self._has_origins else None)
            if self._has_hashes:
                hashes = self._hashes()
                written.add(
                    "hashes",
                    write_document_hashes(self._prefix, hashes, index_start_crc32=start, durable=self._durable),
                )
        except BaseException:
            written.discard()
            raise
        return written

    def _write_origins(self, index_start_crc32: int) -> tuple[PendingFile | PendingObject, FileChecksum]:
        writer = OriginsFileWriter(origins_path(self._prefix), durable=self._durable)
        try:
            joining = JoinedOrigins(writer.append)
            for part in self._parts:
                joining.append(read_origins(part.prefix), self._documents(part), part.kept_documents)
            return writer.finish(joining.files, index_start_crc32=index_start_crc32)
        except BaseException:
            writer.discard()
            raise

    def _hashes(self) -> Iterator[NDArray[np.uint64]]:
        for part in self._parts:
            documents = self._documents(part)
            is_first = not documents.start  # of the parts of a pair: one look at all of its hashes is enough
            hashes = read_document_hashes(part.prefix, is_checked=is_first)
            assert hashes is not None
            for first in range(documents.start, documents.stop, _ROWS):
                rows = slice(first, min(first + _ROWS, documents.stop))
                yield hashes[rows] if part.kept_documents is None else hashes[rows][part.kept_documents[rows]]

    def _documents(self, part: ConcatenatedPart) -> range:
        if part.documents is not None:
            return part.documents
        return range(IndexedDataset(part.prefix, multimodal=self._multimodal).num_documents)
