"""Catalogues (`PREFIX.catalogue` instead of `PREFIX.bin`) join many pairs into one dataset without copying tokens.

`PREFIX.idx` indexes the sequences of all pairs. Sequence pointers are byte offsets into one common range, in which the
tokens of each pair start at a multiple of `ALIGNMENT`. So all `.bin` files can be mapped next to each other, and
kernels treat these files as one file. FORMAT.md describes the format.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tokenloom.errors import ConfigError, StorageError
from tokenloom.forks import cached_property
from tokenloom.indexed.layout import RECORD_VERSION, Header, bin_path, damaged, idx_path, parse_record
from tokenloom.storage.addresses import can_be_path, is_remote, path_of_name, relative_name
from tokenloom.storage.extents import Extents, ExtentSource, RecordedFile
from tokenloom.storage.json_files import MAY_BE_MISSING, members_of
from tokenloom.storage.local import Bytes
from tokenloom.storage.resolve import is_missing, map_whole
from tokenloom.storage.settings import ObjectStorageSettings

MAGIC = "tokenloom catalogue"
ALIGNMENT = 65536
"""The alignment in bytes; no Linux machine has larger memory pages."""

_MOST_TOKEN_BYTES = 1 << 62  # limit for the tokens of all pairs together, so that byte offsets fit 64 bits


def catalogue_path(prefix: str) -> str:
    return prefix + ".catalogue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """All sequences of a dataset that are in the same `.bin` file: a whole pair, or one pair of a catalogue.

    Byte pointers are in [start, start + num_bytes); `rows` are the sequence indices, `documents` the document indices.
    """

    prefix: str
    start: int
    num_bytes: int
    rows: range
    documents: range

    @property
    def path(self) -> str:
        return bin_path(self.prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class CataloguePart:
    """The record of a pair in a catalogue. `num_bytes` and all later fields describe the `.bin`, see `RecordedFile`.

    In the catalogue file, prefixes below the folder of this file are relative to that folder, all others absolute.
    """

    prefix: str
    num_sequences: int
    num_documents: int
    num_bytes: int
    modified_ns: int | None = field(default=None, metadata=MAY_BE_MISSING)
    sample: str | None = field(default=None, metadata=MAY_BE_MISSING)
    etag: str | None = field(default=None, metadata=MAY_BE_MISSING)

    def __post_init__(self) -> None:
        counts, name = (self.num_bytes, self.num_sequences, self.num_documents), repr(self.prefix[:100])
        if not all(0 <= count < _MOST_TOKEN_BYTES for count in counts):
            raise ConfigError(f"bytes, sequences, documents of {name}: must be in [0, 2**62), got {str(counts)[:100]}")
        if not can_be_path(self.prefix):
            raise ConfigError(f"`prefix`: must be a path, got {name}")
        if not -(2**63) <= (self.modified_ns or 0) < 2**63:
            raise ConfigError(f"`modified_ns` of {name} must be an int64, got {str(self.modified_ns)[:100]}")

    @property
    def file(self) -> RecordedFile:
        """The record of the `.bin` file of the pair."""
        path, modified_ns = bin_path(self.prefix), self.modified_ns
        if modified_ns is None and not is_remote(path):
            modified_ns = -1  # if unknown: a time that no file has
        return RecordedFile(
            path=path, num_bytes=self.num_bytes, modified_ns=modified_ns, sample=self.sample, etag=self.etag
        )


@dataclass(frozen=True)
class Catalogue:
    """An ordered list of pairs that together form one dataset."""

    parts: tuple[CataloguePart, ...]
    alignment: int = ALIGNMENT

    def __post_init__(self) -> None:
        total = sum(part.num_bytes + ALIGNMENT for part in self.parts)
        if self.alignment != ALIGNMENT or total >= _MOST_TOKEN_BYTES:
            wanted = f"expected alignment {ALIGNMENT} and less than 2**62 bytes of tokens"
            raise ConfigError(f"{wanted}, found alignment {self.alignment} and {total} bytes")

    @cached_property
    def extents(self) -> Extents:
        """For each pair, the range of byte pointers (`Index.sequence_pointers`) that its `.bin` file covers."""
        return Extents.aligned([part.num_bytes for part in self.parts], alignment=ALIGNMENT)

    @cached_property
    def sections(self) -> list[Section]:
        row = document = 0
        sections = []
        for part, start in zip(self.parts, self.extents.starts.tolist(), strict=True):
            rows, documents = range(row, row + part.num_sequences), range(document, document + part.num_documents)
            section = Section(prefix=part.prefix, start=start, num_bytes=part.num_bytes, rows=rows, documents=documents)
            sections.append(section)
            row, document = rows.stop, documents.stop
        return sections

    def identity(self) -> str:
        """Returns a hash of `num_bytes`, `sample` and `etag` of all parts; the hash does not depend on paths."""
        lines = (f"{part.num_bytes} {part.sample} {part.etag}\n" for part in self.parts)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def check_header(self, header: Header, *, prefix: str) -> None:
        """Raises a `DatasetFormatError` if the counts in an index header differ from the counts in the catalogue."""
        expected = header.num_sequences, header.num_boundaries - 1
        found = sum(part.num_sequences for part in self.parts), sum(part.num_documents for part in self.parts)
        if found != expected:
            wanted = f"{expected[0]} sequences and {expected[1]} documents, as `{idx_path(prefix)}` has"
            hint = "the index and the catalogue do not belong together; write both again"
            raise damaged(catalogue_path(prefix), wanted, f"{found[0]} sequences and {found[1]} documents", hint=hint)

    def source(self, prefix: str, *, mmap: bool, settings: ObjectStorageSettings | None = None) -> ExtentSource:
        """Returns a byte source that reads the tokens of all pairs as one range; opens no file yet."""
        files, name = [part.file for part in self.parts], catalogue_path(prefix)
        return ExtentSource(files, self.extents, recorded_in=name, mmap=mmap, settings=settings)

    def pack(self, prefix: str) -> bytes:
        """Returns the bytes of the catalogue file, one line per pair."""
        owner = catalogue_path(prefix)
        named = (replace(part, prefix=relative_name(part.prefix, owner=owner)) for part in self.parts)
        lines = [json.dumps(members_of(part)) for part in named]
        start = json.dumps({"format": MAGIC, "version": RECORD_VERSION, "alignment": ALIGNMENT})[:-1]
        return f'{start}, "parts": [\n{f",{chr(10)}".join(lines)}\n]}}\n'.encode()


def read_catalogue(prefix: str, *, read: Callable[[str], Bytes] = map_whole) -> Catalogue | None:
    """Returns the catalogue of a prefix; None without a catalogue file. `read(path)` returns the bytes of a file."""
    path, hint = catalogue_path(prefix), "write the catalogue again: the file is truncated, damaged or of another kind"
    try:
        data = read(path).tobytes()
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    named = parse_record(Catalogue, data, path=path, what=MAGIC, hint=hint).parts
    return Catalogue(tuple(replace(part, prefix=path_of_name(part.prefix, owner=path)) for part in named))
