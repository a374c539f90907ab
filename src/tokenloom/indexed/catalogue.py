"""Many pairs as one dataset without copying a token: `PREFIX.catalogue`, which takes the place of `PREFIX.bin`.

`PREFIX.idx` is the index of all pairs together. Its pointers lead into one range of bytes in which the tokens of each
pair begin at a multiple of `ALIGNMENT`, so that all `.bin` files can be mapped side by side and every kernel works on
them as on one file. FORMAT.md describes the file; this module is its owner.
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
"""Bytes: no machine that Linux runs on has larger pages."""

_MOST_TOKEN_BYTES = 1 << 62
"""Most bytes of all pairs: offsets have 64 bits."""


def catalogue_path(prefix: str) -> str:
    """Returns the path of the catalogue of a prefix."""
    return prefix + ".catalogue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A run of whole documents of a dataset whose tokens lie in one file: all of a pair, one of many of a catalogue.

    Attributes:
        prefix: prefix of the pair that holds the tokens.
        start, num_bytes: where its bytes begin among those that pointers lead into, and how many they are.
        rows, documents: its sequences and documents.
    """

    prefix: str
    start: int
    num_bytes: int
    rows: range
    documents: range

    @property
    def path(self) -> str:
        """The path of the tokens."""
        return bin_path(self.prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class CataloguePart:
    """A pair that a catalogue names.

    Attributes:
        prefix: prefix of the pair; in the file, from the folder of the catalogue if it lies below that.
        num_sequences, num_documents: counts of its index.
        num_bytes, modified_ns, sample, etag: what its tokens were, see `RecordedFile`.
    """

    prefix: str
    num_sequences: int
    num_documents: int
    num_bytes: int
    modified_ns: int | None = field(default=None, metadata=MAY_BE_MISSING)
    sample: str | None = field(default=None, metadata=MAY_BE_MISSING)
    etag: str | None = field(default=None, metadata=MAY_BE_MISSING)

    def __post_init__(self) -> None:
        counts = self.num_bytes, self.num_sequences, self.num_documents
        if not all(0 <= count < _MOST_TOKEN_BYTES for count in counts):
            message = f"found counts {str(counts)[:100]} for {self.prefix[:100]!r}"
            raise ConfigError(message)
        if not can_be_path(self.prefix) or not -(2**63) <= (self.modified_ns or 0) < 2**63:
            message = f"found the prefix {self.prefix[:100]!r}, modified at {str(self.modified_ns)[:100]}"
            raise ConfigError(message)

    @property
    def file(self) -> RecordedFile:
        """Its tokens."""
        path, modified_ns = bin_path(self.prefix), self.modified_ns
        if modified_ns is None and not is_remote(path):
            modified_ns = -1  # which no file has: what is not known cannot be the same
        return RecordedFile(
            path=path, num_bytes=self.num_bytes, modified_ns=modified_ns, sample=self.sample, etag=self.etag
        )


@dataclass(frozen=True)
class Catalogue:
    """The pairs that a dataset consists of, in order."""

    parts: tuple[CataloguePart, ...]
    alignment: int = ALIGNMENT

    def __post_init__(self) -> None:
        total = sum(part.num_bytes + ALIGNMENT for part in self.parts)
        if self.alignment != ALIGNMENT or total >= _MOST_TOKEN_BYTES:
            message = (
                f"expected alignment {ALIGNMENT} and less than 2^62 bytes of tokens, found {self.alignment}, {total}"
            )
            raise ConfigError(message)

    @cached_property
    def extents(self) -> Extents:
        """Where the tokens of each lie."""
        return Extents.aligned([part.num_bytes for part in self.parts], alignment=ALIGNMENT)

    @cached_property
    def sections(self) -> list[Section]:
        """What each pair contributes."""
        row = document = 0
        sections = []
        for part, start in zip(self.parts, self.extents.starts.tolist(), strict=True):
            rows = range(row, row + part.num_sequences)
            documents = range(document, document + part.num_documents)
            sections.append(
                Section(prefix=part.prefix, start=start, num_bytes=part.num_bytes, rows=rows, documents=documents)
            )
            row, document = rows.stop, documents.stop
        return sections

    def identity(self) -> str:
        """Returns a hash of what tells the tokens of all pairs from others; the same for a copy elsewhere."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(f"{part.num_bytes} {part.sample} {part.etag}\n".encode())
        return digest.hexdigest()

    def check_header(self, header: Header, *, prefix: str) -> None:
        """Checks that an index is that of the catalogue beside it."""
        expected = header.num_sequences, header.num_boundaries - 1
        found = sum(part.num_sequences for part in self.parts), sum(part.num_documents for part in self.parts)
        if found != expected:
            wanted = f"pairs of {expected[0]} sequences and {expected[1]} documents in all, as `{idx_path(prefix)}` has"
            hint = "the two files do not belong together; write the catalogue again"
            raise damaged(catalogue_path(prefix), wanted, f"{found[0]} and {found[1]}", hint=hint)

    def source(self, prefix: str, *, mmap: bool, settings: ObjectStorageSettings | None = None) -> ExtentSource:
        """Returns the tokens of all pairs; opens none of them."""
        files, name = [part.file for part in self.parts], catalogue_path(prefix)
        return ExtentSource(files, self.extents, recorded_in=name, mmap=mmap, settings=settings)

    def pack(self, prefix: str) -> bytes:
        """Returns the bytes of the file, a line per pair."""
        owner = catalogue_path(prefix)
        named = (replace(part, prefix=relative_name(part.prefix, owner=owner)) for part in self.parts)
        lines = [json.dumps(members_of(part)) for part in named]
        start = json.dumps({"format": MAGIC, "version": RECORD_VERSION, "alignment": ALIGNMENT})[:-1]
        return f'{start}, "parts": [\n{f",{chr(10)}".join(lines)}\n]}}\n'.encode()


def read_catalogue(prefix: str, *, read: Callable[[str], Bytes] = map_whole) -> Catalogue | None:
    """Returns the catalogue of a prefix, whose bytes a function returns; None if there is none. Opens no pair."""
    try:
        data = read(catalogue_path(prefix))
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    return parse_catalogue(data.tobytes(), prefix=prefix)


def parse_catalogue(data: bytes, *, prefix: str) -> Catalogue:
    """Returns the catalogue that a file holds."""
    path, hint = catalogue_path(prefix), "the file is truncated, damaged, or no catalogue; write it again"
    named = parse_record(Catalogue, data, path=path, what=MAGIC, hint=hint).parts
    return Catalogue(tuple(replace(part, prefix=path_of_name(part.prefix, owner=path)) for part in named))
