"""`PREFIX.manifest.json`: a manifest as a file, and its head alone, which is all that the start of a run reads.

The file is ordinary JSON. We write it with what a start-up check needs first, so that its first bytes suffice however
many input files it lists; whoever has formatted it otherwise is read all the same, as a whole. FORMAT.md describes it.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tokenloom.errors import AccessDeniedError, ConfigError, DatasetFormatError, MissingObjectError
from tokenloom.indexed.manifest.contents import Manifest
from tokenloom.indexed.manifest.tokenizer_identity import TokenizerIdentity
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import publish_bytes, storage_errors
from tokenloom.storage.json_files import Crc32, UnusableJsonError, from_members, members_of, parse_json
from tokenloom.storage.resolve import read_start
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import open_regular, read_at_most

logger: logging.Logger = logging.getLogger(__name__)

FORMAT = "tokenloom manifest"
VERSION = 1

HEAD_BYTES = 4096
"""Read at the start of a run; holds the head unless a path in it is very long."""

_HEAD = re.compile(
    rb'\{\n  "format": "tokenloom manifest",\n  "version": 1,\n  "pair": \{\n    "dtype": "[a-z0-9]+",\n'
    rb'    "num_documents": [0-9]+,\n    "num_sequences": [0-9]+,\n    "num_tokens": [0-9]+,\n'
    rb'    "largest_token": (null|-?[0-9]{1,19}),\n    "tokens": \{[^}]*\},\n    "index": \{[^}]*\},\n'
    rb'    "index_start_crc32": "([0-9a-f]{8})"(?:,\n    "(?:roles|origins|hashes)": \{[^}]*\})*'
    rb'(?:,\n    "copied_tokens": "[a-z]+")?\n'
    rb'  \},(?=\n  "tokenizer": )'
)
_AFTER_HEAD = b',\n  "ledger": '
"""The head of a file that we wrote: 8.5 µs with opening and reading, 13.8 µs when `json` parses it, which counts at the
start of a run over thousands. JSON has no line break inside a text, so what begins a line is what it seems to be. Any
other file is parsed."""

_MOST_BYTES = 1 << 29
"""More is refused: room for some millions of input files."""


@dataclass(frozen=True, slots=True)
class ManifestHead:
    """What of a manifest tells whether it belongs to a pair, and which tokenizer made that.

    Attributes:
        tokenizer: tokenizer that made the tokens.
        largest_token: see `PairFacts`.
        index_start_crc32: see `PairFacts`.
        options: see `Manifest`.
    """

    tokenizer: TokenizerIdentity
    largest_token: int | None
    index_start_crc32: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _PairStart:
    """What a start needs to know of a pair, see `PairFacts`."""

    largest_token: int | None
    index_start_crc32: Crc32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """What made a pair, see `Manifest`."""

    tokenizer: TokenizerIdentity
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head(_Maker):
    pair: _PairStart


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """What the inputs add up to."""

    num_input_files: int
    num_input_bytes: int


def manifest_path(prefix: str) -> str:
    """Returns the path of the manifest of a prefix."""
    return prefix + ".manifest.json"


def read_manifest(prefix: str, *, settings: ObjectStorageSettings | None = None) -> Manifest | None:
    """Returns the manifest of a prefix, None if there is none.

    Raises:
        DatasetFormatError: it is truncated, foreign, or contradicts itself; the message names file and field.
        StorageError: it cannot be read.
    """
    path = manifest_path(prefix)
    data = _read_whole(path, settings)
    return None if data is None else parse_manifest(data, path=path)


def read_manifest_head(prefix: str) -> ManifestHead | None:
    """Returns the head of the manifest of a prefix, None if there is none; one open and one read, as a rule.

    Raises:
        DatasetFormatError, StorageError: as `read_manifest`.
    """
    data = _read(manifest_path(prefix), HEAD_BYTES, None)
    return None if data is None else _head_of(data, prefix, None)


def read_manifest_head_once(
    prefix: str, *, copy: str, settings: ObjectStorageSettings | None = None
) -> ManifestHead | None:
    """Returns the same for a pair in object storage, which is asked once per node and version of the index.

    The answer is kept beside the local copy of the index. A request of every process for every pair would make starts
    half as long again.

    Args:
        prefix: prefix of the pair.
        copy: the path of the local copy of its index.
        settings: settings of object storage.
    """
    kept = f"{copy}.manifest"
    data = _read(kept, HEAD_BYTES, None)
    if data is None:
        try:
            data = _read(manifest_path(prefix), HEAD_BYTES, settings) or b""
        except AccessDeniedError:  # what stores say of a missing object to those who may not list
            logger.info("no manifest of `%s` to read: access is denied", prefix)
            data = b""
        publish_bytes(kept, data)
    return _head_of(data, prefix, settings) if data else None


def _head_of(data: bytes, prefix: str, settings: ObjectStorageSettings | None) -> ManifestHead | None:
    """Returns the head that the first bytes of a manifest hold."""
    path = manifest_path(prefix)
    if (found := _HEAD.match(data)) is not None and (end := data.find(_AFTER_HEAD, found.end())) > 0:
        largest, start = found.groups()
        largest_token = None if largest == b"null" else int(largest)
        try:
            maker = _maker_of(data[found.end() : end])
        except UnusableJsonError:  # as the whole then is, too
            pass
        else:
            return ManifestHead(maker.tokenizer, largest_token, int(start, 16), maker.options)
    whole = _read_whole(path, settings)  # not as we write it, or the tokenizer's path is very long
    if whole is None:
        return None
    with _damage_named(path):
        head = from_members(_Head, _top(whole, path))
    return ManifestHead(head.tokenizer, head.pair.largest_token, head.pair.index_start_crc32, head.options)


@functools.lru_cache(maxsize=1)
def _maker_of(members: bytes) -> _Maker:
    """Returns what JSON without its braces says; the manifests of a blend have it in common, as a rule."""
    return from_members(_Maker, parse_json(b"{%b}" % members))


def manifest_document(manifest: Manifest) -> dict[str, Any]:
    """Returns what the file of a manifest holds, in its order."""
    members = members_of(manifest)
    inputs = members.pop("inputs")
    totals = members_of(_totals(manifest))
    return {"format": FORMAT, "version": VERSION, **members, **totals, "inputs": inputs}


def _totals(manifest: Manifest) -> _Totals:
    num_bytes = sum(record.num_bytes for record in manifest.inputs)
    return _Totals(num_input_files=len(manifest.inputs), num_input_bytes=num_bytes)


def manifest_bytes(manifest: Manifest) -> bytes:
    """Returns the file of a manifest.

    Raises:
        ConfigError: it lists so many inputs that no reader would take it.
    """
    data = json.dumps(manifest_document(manifest), indent=2, allow_nan=False).encode() + b"\n"
    if len(data) > _MOST_BYTES:
        message = (
            f"expected a manifest of at most {_MOST_BYTES} bytes, found {len(data)}: {len(manifest.inputs)} inputs"
        )
        raise ConfigError(message, hint="make several pairs of so many files")
    return data


def parse_manifest(data: bytes, *, path: str) -> Manifest:
    """Returns the manifest that some JSON holds.

    Raises:
        DatasetFormatError: see `read_manifest`.
    """
    with _damage_named(path):
        top = _top(data, path)
        manifest = from_members(Manifest, top)
        expected, found = from_members(_Totals, top), _totals(manifest)
    if found != expected:
        message = f"`{path}`: expected {expected.num_input_files} inputs of {expected.num_input_bytes} bytes, "
        message += f"found {found.num_input_files} of {found.num_input_bytes}"
        raise DatasetFormatError(message, hint=damage_hint(path))
    return manifest


def _read(path: str, num_bytes: int, settings: ObjectStorageSettings | None) -> bytes | None:
    """Returns the first bytes of a file or object, as many as there are; None if there is none."""
    if is_remote(path):
        try:
            return read_start(path, num_bytes, settings=settings)
        except MissingObjectError:
            return None
    try:
        handle = open_regular(path)
    except FileNotFoundError:
        return None
    except OSError:
        with storage_errors("open", path):
            raise
    try:
        data = read_at_most(handle, num_bytes)
    except OSError:
        with storage_errors("read", path):
            raise
    finally:
        os.close(handle)
    return data


def _read_whole(path: str, settings: ObjectStorageSettings | None) -> bytes | None:
    data = _read(path, _MOST_BYTES + 1, settings)
    if data is not None and len(data) > _MOST_BYTES:
        message = f"`{path}`: expected a manifest of at most {_MOST_BYTES} bytes, found more"
        raise DatasetFormatError(message, hint=damage_hint(path))
    return data


def _top(data: bytes, path: str) -> dict[str, Any]:
    """Returns the members of the outermost object, of our format and version.

    Raises:
        DatasetFormatError: it is no JSON, or of another format or version.
        UnusableJsonError: its version is no number.
    """
    try:
        members = parse_json(data, most_bytes=_MOST_BYTES)
    except UnusableJsonError as error:
        message = f"`{path}`: expected JSON, found {len(data)} bytes that are none: {error}"
        raise DatasetFormatError(message, hint=damage_hint(path)) from error
    if type(members) is not dict or members.get("format") != FORMAT:
        message = f"`{path}`: expected an object whose `format` is {FORMAT!r}, found something else"
        raise DatasetFormatError(message, hint=damage_hint(path))
    if (found := from_members(_Version, members).version) != VERSION:
        message = f"`{path}`: expected version {VERSION}, found {found}"
        raise DatasetFormatError(message, hint="it was written by something newer; use that, or remove the file")
    return members


@contextmanager
def _damage_named(path: str) -> Iterator[None]:
    """Names the file in which some JSON is not what it should be."""
    try:
        yield
    except UnusableJsonError as error:
        message = f"`{path}`{error}"
        raise DatasetFormatError(message, hint=damage_hint(path)) from error


def damage_hint(path: str) -> str:
    """Returns what to do about a manifest that is not what it should be."""
    name = os.path.basename(path)
    return f"`{name}` is damaged or foreign; write the pair again, or remove the file to do without it"
