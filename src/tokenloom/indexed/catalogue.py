"""Many pairs as one dataset without copying a token: `PREFIX.catalogue`, which takes the place of `PREFIX.bin`.

`PREFIX.idx` is the index of all pairs together. Its pointers lead into one range of bytes in which the tokens of each
pair begin at a multiple of `ALIGNMENT`, so that all `.bin` files can be mapped side by side and every kernel works on
them as on one file. FORMAT.md describes the file; this module is its owner.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tokenloom.errors import DatasetFormatError, StorageError
from tokenloom.forks import cached_property
from tokenloom.indexed.layout import Header, bin_path, idx_path
from tokenloom.storage.addresses import can_be_path, is_remote, path_of_name, relative_name
from tokenloom.storage.extents import Extents, ExtentSource, RecordedFile
from tokenloom.storage.json_files import parse_json
from tokenloom.storage.resolve import is_missing, map_whole
from tokenloom.storage.secrets import redacted
from tokenloom.storage.settings import ObjectStorageSettings

MAGIC = "tokenloom catalogue"
VERSION = 1
ALIGNMENT = 65536
"""Bytes: no machine that Linux runs on has larger pages."""

_MOST_BYTES = 1 << 29
"""More is refused: room for some millions of pairs."""
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
        start: where its bytes begin among those that pointers lead into.
        num_bytes: how many they are.
        rows: its sequences.
        documents: its documents.
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
        file: its tokens.
        num_sequences: rows of its index.
        num_documents: its documents.
    """

    file: RecordedFile
    num_sequences: int
    num_documents: int

    @property
    def prefix(self) -> str:
        """The prefix of the pair."""
        return self.file.path.removesuffix(".bin")


@dataclass(frozen=True)
class Catalogue:
    """The pairs that a dataset consists of, in order."""

    parts: Sequence[CataloguePart]

    @cached_property
    def extents(self) -> Extents:
        """Where the tokens of each lie."""
        return Extents.aligned([part.file.num_bytes for part in self.parts], alignment=ALIGNMENT)

    @cached_property
    def sections(self) -> list[Section]:
        """What each pair contributes."""
        row = document = 0
        sections = []
        for part, start in zip(self.parts, self.extents.starts.tolist(), strict=True):
            rows = range(row, row + part.num_sequences)
            documents = range(document, document + part.num_documents)
            sections.append(
                Section(prefix=part.prefix, start=start, num_bytes=part.file.num_bytes, rows=rows, documents=documents)
            )
            row, document = rows.stop, documents.stop
        return sections

    def identity(self) -> str:
        """Returns a hash of what tells the tokens of all pairs from others; the same for a copy elsewhere."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(f"{part.file.num_bytes} {part.file.sample} {part.file.etag}\n".encode())
        return digest.hexdigest()

    def check_header(self, header: Header, *, prefix: str) -> None:
        """Checks that an index is that of the catalogue beside it."""
        expected = header.num_sequences, header.num_boundaries - 1
        found = sum(part.num_sequences for part in self.parts), sum(part.num_documents for part in self.parts)
        if found != expected:
            message = (
                f"`{catalogue_path(prefix)}`: expected pairs of {expected[0]} sequences and {expected[1]} documents in "
                f"all, as `{idx_path(prefix)}` has, found {found[0]} and {found[1]}"
            )
            raise DatasetFormatError(message, hint="the two files do not belong together; write the catalogue again")

    def source(self, prefix: str, *, mmap: bool, settings: ObjectStorageSettings | None = None) -> ExtentSource:
        """Returns the tokens of all pairs; opens none of them."""
        files, name = [part.file for part in self.parts], catalogue_path(prefix)
        return ExtentSource(files, self.extents, recorded_in=name, mmap=mmap, settings=settings)

    def pack(self, prefix: str) -> bytes:
        """Returns the bytes of the file, a line per pair."""
        lines = []
        for part in self.parts:
            facts = {name: value for name, value in asdict(part.file).items() if name != "path" and value is not None}
            counts = {"num_sequences": part.num_sequences, "num_documents": part.num_documents}
            lines.append(
                json.dumps({"prefix": relative_name(part.prefix, owner=catalogue_path(prefix)), **counts, **facts})
            )
        start = json.dumps({"format": MAGIC, "version": VERSION, "alignment": ALIGNMENT})[:-1]
        return f'{start}, "parts": [\n{f",{chr(10)}".join(lines)}\n]}}\n'.encode()


def read_catalogue(prefix: str, *, settings: ObjectStorageSettings | None = None) -> Catalogue | None:
    """Returns the catalogue of a prefix, None if there is none; opens no pair."""
    try:
        data = map_whole(catalogue_path(prefix), settings=settings)
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    return parse_catalogue(data.tobytes(), prefix=prefix)


def parse_catalogue(data: bytes, *, prefix: str) -> Catalogue:
    """Returns the catalogue that a file holds."""
    path = catalogue_path(prefix)
    hint = "the file is truncated, damaged, or no catalogue; write it again"
    try:
        content = parse_json(data, most_bytes=_MOST_BYTES)
        found = content["format"], content["version"], content["alignment"]
    except (ValueError, TypeError, KeyError) as error:
        message = f"`{path}`: expected the JSON of a catalogue, found {redacted(repr(data[:40]))} ({error})"
        raise DatasetFormatError(message, hint=hint) from error
    if found != (MAGIC, VERSION, ALIGNMENT):
        expected = (MAGIC, VERSION, ALIGNMENT)
        message = f"`{path}`: expected format, version and alignment {expected}, found {found}"
        raise DatasetFormatError(message, hint="the file was written by something newer, or is damaged")
    try:
        parts = [_parse_part(part, prefix) for part in content["parts"]]
        if (total := sum(part.file.num_bytes + ALIGNMENT for part in parts)) >= _MOST_TOKEN_BYTES:
            message = f"found {total} bytes of tokens"
            raise ValueError(message)  # noqa: TRY301 - worded below
        return Catalogue(parts)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"`{path}`: expected pairs with prefix, sizes and counts ({redacted(str(error))})"
        raise DatasetFormatError(message, hint=hint) from error


def _parse_part(part: dict[str, Any], prefix: str) -> CataloguePart:
    counts = part["num_bytes"], part["num_sequences"], part["num_documents"]
    if not all(type(count) is int and 0 <= count < _MOST_TOKEN_BYTES for count in counts):
        message = f"found counts {str(counts)[:100]} for {str(part['prefix'])[:100]!r}"
        raise ValueError(message)
    for name, kind in (("prefix", str), ("modified_ns", int), ("sample", str), ("etag", str)):
        if type(found := part.get(name)) is not kind and (found is not None or name == "prefix"):
            message = f"expected {name} to be {kind.__name__}, found {str(found)[:100]}"
            raise ValueError(message)
    if not can_be_path(part["prefix"]) or not -(2**63) <= (part.get("modified_ns") or 0) < 2**63:
        message = f"found the prefix {part['prefix'][:100]!r}, modified at {str(part.get('modified_ns'))[:100]}"
        raise ValueError(message)
    path, modified_ns = bin_path(path_of_name(part["prefix"], owner=catalogue_path(prefix))), part.get("modified_ns")
    if modified_ns is None and not is_remote(path):
        modified_ns = -1  # which no file has: what is not known cannot be the same
    file = RecordedFile(
        path=path,
        num_bytes=counts[0],
        modified_ns=modified_ns,
        sample=part.get("sample"),
        etag=part.get("etag"),
    )
    return CataloguePart(file=file, num_sequences=counts[1], num_documents=counts[2])
