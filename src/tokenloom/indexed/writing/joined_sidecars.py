"""The files beside a pair that is written: roles, origins and hashes, as those beside the pairs that it is made of."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.checksums import start_crc32_of
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.document_hashes import hashes_path, read_document_hashes, write_document_hashes
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.manifest.contents import SIDECARS, FileChecksum, PairFacts
from tokenloom.indexed.origins import (
    OriginFile,
    OriginRuns,
    OriginsPart,
    joined_origins,
    origins_path,
    read_origins,
    write_runs,
)
from tokenloom.indexed.roles import RolesWriter, SequenceRoles, read_roles, roles_path
from tokenloom.indexed.writing.kept_documents import ConcatenatedPart, Selection
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.local import ByteSource
from tokenloom.storage.resolve import exists

_LOGGER = logging.getLogger(__name__)

_ROWS = 1 << 20

Written = tuple[PendingFile | PendingObject, FileChecksum]
"""A file, written and without its name yet, and its checksum."""


@dataclass(slots=True)
class WrittenSidecars:
    """Files that go beside a pair, written and without names, and their checksums, by the names of `SIDECARS`."""

    files: dict[str, PendingFile | PendingObject] = field(default_factory=dict)
    checksums: dict[str, FileChecksum] = field(default_factory=dict)

    def add(self, name: str, written: Written | None) -> None:
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


def write_sidecars(
    prefix: str,
    index: ByteSource,
    *,
    roles: Written | None = None,
    origins: tuple[Collection[OriginFile], Iterable[OriginRuns]] | None = None,
    hashes: Iterable[NDArray[np.uint64]] | None = None,
    durable: bool = True,
) -> WrittenSidecars:
    """Writes the files beside a pair.

    Args:
        prefix: prefix of the pair.
        index: the bytes of its index, complete.
        roles: its roles, written; None for none.
        origins: files, and the runs of all documents; None for none.
        hashes: uint64[…, 2] each, those of all documents; None for none.
        durable: whether they survive a loss of power once they are published.

    Raises:
        DatasetFormatError: what they are made from is damaged, or belongs to other data.
        StorageError: writing failed; all of them are given up.
    """
    written = WrittenSidecars()
    try:
        written.add("roles", roles)
        start = start_crc32_of(index)
        if origins is not None:
            written.add("origins", write_runs(prefix, *origins, index_start_crc32=start, durable=durable))
        if hashes is not None:
            written.add("hashes", write_document_hashes(prefix, hashes, index_start_crc32=start, durable=durable))
    except BaseException:
        written.discard()
        raise
    return written


class JoinedSidecars:
    """What becomes of the files beside the inputs. Memory: the table of origins, and for roles 8 bytes per sequence.

    Roles are joined if all inputs have them, and some is an error. Origins are joined if any has them; documents of the
    others then come from nowhere that is known. Hashes are joined if all inputs have them.

    Args:
        parts: what the output is made of.
        output_prefix: prefix of the output.
        multimodal: whether the inputs hold modes.
        durable: whether the files survive a loss of power once they are published.

    Raises:
        ConfigError: only some of the inputs have roles, or they come from different tokenizers.
        DatasetFormatError: the roles of an input are damaged, or belong to other data.
    """

    def __init__(
        self, parts: Sequence[ConcatenatedPart], output_prefix: str, *, multimodal: bool, durable: bool = True
    ) -> None:
        self._parts = parts
        self._prefix = output_prefix
        self._multimodal = multimodal
        self._durable = durable
        prefixes = list(dict.fromkeys(prefix_of(part.prefix) for part in parts))
        self._roles = self._roles_writer(prefixes)
        without = [prefix for prefix in prefixes if not exists(origins_path(prefix))]
        self._has_origins = len(without) < len(prefixes)
        if without and self._has_origins:
            _LOGGER.warning("`%s` has no origins: those of its documents are not known in the result", without[0])
        without = [prefix for prefix in prefixes if not exists(hashes_path(prefix))]
        self._has_hashes = not without
        if without and len(without) < len(prefixes):
            _LOGGER.warning("the result has no hashes of documents, because `%s` has none", without[0])

    def write(self, num_sequences: int, tokens: ByteSource, index: ByteSource) -> WrittenSidecars:
        """Writes the files of the output, see `write_sidecars`.

        Args:
            num_sequences: number of its sequences.
            tokens, index: the bytes of its tokens and of its index, complete.
        """
        return write_sidecars(
            self._prefix,
            index,
            roles=None if self._roles is None else self._write_roles(self._roles, num_sequences, tokens, index),
            origins=joined_origins(self._origins()) if self._has_origins else None,
            hashes=self._hashes() if self._has_hashes else None,
            durable=self._durable,
        )

    def _roles_writer(self, prefixes: Sequence[str]) -> RolesWriter | None:
        having = [prefix for prefix in prefixes if exists(roles_path(prefix))]
        if not having:
            return None
        if len(having) < len(prefixes):
            without = next(prefix for prefix in prefixes if prefix not in having)
            message = f"there are roles beside `{having[0]}`, but none beside `{without}`"
            raise ConfigError(message, hint="join conversations with conversations, or move the `.roles` files away")
        tokenizer = self._read_roles(having[0])[1].tokenizer_sha256
        for prefix in having:
            if (found := self._read_roles(prefix)[1].tokenizer_sha256) != tokenizer:
                message = (
                    f"the roles of `{prefix}` come from the tokenizer {found}, those of `{having[0]}` from {tokenizer}"
                )
                raise ConfigError(message, hint="tokenize the conversations with one tokenizer")
        return RolesWriter(self._prefix, tokenizer_sha256=tokenizer)

    def _write_roles(self, writer: RolesWriter, num_sequences: int, tokens: ByteSource, index: ByteSource) -> Written:
        for part in self._parts:
            dataset, roles = self._read_roles(part.prefix)
            for block in Selection(dataset, part).blocks():
                offsets = roles.offsets[block.rows.start : block.rows.stop + 1]
                counts, parts = np.diff(offsets), slice(int(offsets[0]), int(offsets[-1]))
                stops, kinds = roles.stops[parts], roles.kinds[parts]
                if not block.kept_rows.all():
                    chosen = np.repeat(block.kept_rows, counts)
                    counts, stops, kinds = counts[block.kept_rows], stops[chosen], kinds[chosen]
                writer.append(counts, stops, kinds)
        return writer.write(num_sequences, tokens, index)

    def _read_roles(self, prefix: str) -> tuple[IndexedDataset, SequenceRoles]:
        dataset = IndexedDataset(prefix, multimodal=self._multimodal)
        return dataset, read_roles(dataset)

    def _origins(self) -> Iterator[OriginsPart]:
        for part in self._parts:
            yield read_origins(part.prefix), self._documents(part), part.kept_documents

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
