"""`PREFIX.manifest.json`: a manifest as a file, and its head alone, which is all that the start of a run reads.

The file is ordinary JSON. We write it with what a start-up check needs first, so that its first bytes suffice however
many input files it lists; whoever has formatted it otherwise is read all the same, as a whole. FORMAT.md describes it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenloom.errors import AccessDeniedError, ConfigError, DatasetFormatError, MissingObjectError
from tokenloom.indexed.manifest.contents import (
    DocumentLedger,
    FileChecksum,
    InputRecord,
    Manifest,
    PairFacts,
)
from tokenloom.indexed.manifest.json_records import JsonRecord, damage_hint, parse_manifest_json
from tokenloom.indexed.manifest.tokenizer_identity import SpecialToken, TokenizerIdentity
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import publish_bytes, storage_errors
from tokenloom.storage.resolve import open_pending, read_start
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import open_regular, read_at_most

logger = logging.getLogger(__name__)

FORMAT = "tokenloom manifest"
VERSION = 1

HEAD_BYTES = 4096
"""Read at the start of a run; holds the head unless a path in it is very long."""

_HEAD = re.compile(
    rb'\{\n  "format": "tokenloom manifest",\n  "version": 1,\n  "pair": \{\n    "dtype": "[a-z0-9]+",\n'
    rb'    "num_documents": [0-9]+,\n    "num_sequences": [0-9]+,\n    "num_tokens": [0-9]+,\n'
    rb'    "largest_token": (null|-?[0-9]{1,19}),\n    "tokens": \{[^}]*\},\n    "index": \{[^}]*\},\n'
    rb'    "index_start_crc32": "([0-9a-f]{8})"(?:,\n    "roles": \{[^}]*\})?(?:,\n    "copied_tokens": "[a-z]+")?\n'
    rb'  \},\n  "tokenizer": '
)
_AFTER_HEAD = b',\n  "options": '
_AFTER_OPTIONS = b',\n  "ledger": '
"""The head of a file that we wrote, several times faster than parsing it, which counts at the start of a run. JSON has
no line break inside a text, so what begins a line is what it seems to be. Any other file is parsed."""

_OPTIONAL = ("roles", "copied_tokens")
"""Members of `pair` that are left out where they say nothing."""

_MOST_BYTES = 1 << 29
"""More is refused: room for some millions of input files."""

_KNOWN: dict[tuple[bytes, bytes], tuple[TokenizerIdentity, Mapping[str, Any]]] = {}
"""The tokenizer and the options that were read last, by their JSON."""


@dataclass(frozen=True, slots=True)
class ManifestHead:
    """What of a manifest tells whether it belongs to a pair, and which tokenizer made that.

    Attributes:
        tokenizer: that made the tokens.
        largest_token: see `PairFacts`.
        index_start_crc32: see `PairFacts`.
        options: see `Manifest`.
    """

    tokenizer: TokenizerIdentity
    largest_token: int | None
    index_start_crc32: int
    options: Mapping[str, Any] = field(default_factory=dict)


def manifest_path(prefix: str) -> str:
    """Returns the path of the manifest of a prefix."""
    return prefix + ".manifest.json"


def write_manifest(prefix: str, manifest: Manifest) -> None:
    """Writes the manifest of a prefix; it appears whole.

    Whoever writes the pair too lets both appear together, see `PendingDataset`.

    Raises:
        ConfigError: it lists so many inputs that no reader would take it.
        StorageError: writing failed.
    """
    data = manifest_bytes(manifest)
    with open_pending(manifest_path(prefix)) as file:
        file.write(data)


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
        prefix: of the pair.
        copy: the path of the local copy of its index.
        settings: of object storage.
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
        start_of_options = end + len(_AFTER_HEAD)
        if (end_of_options := data.find(_AFTER_OPTIONS, start_of_options)) > 0:
            (largest, start), text = found.groups(), data[found.end() : end]
            tokenizer, options = _known(text, data[start_of_options:end_of_options], path)
            return ManifestHead(tokenizer, None if largest == b"null" else int(largest), int(start, 16), options)
    whole = _read_whole(path, settings)  # not as we write it, or the tokenizer's path is very long
    if whole is None:
        return None
    top = _top(whole, path)
    return _head(top, _tokenizer(top.record("tokenizer")))


def _known(tokenizer: bytes, options: bytes, path: str) -> tuple[TokenizerIdentity, Mapping[str, Any]]:
    """Returns what the JSON of a tokenizer and of options says; that of the manifest before is remembered."""
    if (known := _KNOWN.get((tokenizer, options))) is None:
        members = {"tokenizer": _parsed(tokenizer, path), "options": _parsed(options, path)}
        record = JsonRecord(members, path)
        known = _tokenizer(record.record("tokenizer")), record.record("options").members
        _KNOWN.clear()  # the manifests of a blend have both in common, as a rule
        _KNOWN[tokenizer, options] = known
    return known


def manifest_document(manifest: Manifest) -> dict[str, Any]:
    """Returns what the file of a manifest holds, in its order."""
    pair: dict[str, Any] = dataclasses.asdict(manifest.pair)
    for name in [name for name in _OPTIONAL if pair[name] is None]:
        del pair[name]
    for record in (pair[name] for name in ("tokens", "index", "roles") if name in pair):
        record["crc32"] = f"{record['crc32']:08x}"
    pair["index_start_crc32"] = f"{manifest.pair.index_start_crc32:08x}"
    return {
        "format": FORMAT,
        "version": VERSION,
        "pair": pair,
        "tokenizer": dataclasses.asdict(manifest.tokenizer),
        "options": manifest.options,
        "ledger": dataclasses.asdict(manifest.ledger),
        "engine": manifest.engine,
        "tokenloom_version": manifest.tokenloom_version,
        "num_input_files": len(manifest.inputs),
        "num_input_bytes": sum(record.num_bytes for record in manifest.inputs),
        "inputs": [dataclasses.asdict(record) for record in manifest.inputs],
    }


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
    top = _top(data, path)
    ledger = top.record("ledger")
    names = [field.name for field in dataclasses.fields(DocumentLedger)]
    manifest = top.make(
        Manifest,
        pair=_pair(top.record("pair")),
        tokenizer=_tokenizer(top.record("tokenizer")),
        options=top.record("options").members,
        ledger=ledger.make(DocumentLedger, **{name: ledger.integer(name) for name in names}),
        inputs=tuple(
            each.make(
                InputRecord,
                path=each.text("path"),
                num_bytes=each.integer("num_bytes"),
                version=each.optional(each.text, "version"),
            )
            for each in top.records("inputs")
        ),
        engine=top.optional(top.text, "engine"),
        tokenloom_version=top.text("tokenloom_version"),
    )
    found = (len(manifest.inputs), sum(record.num_bytes for record in manifest.inputs))
    expected = (top.integer("num_input_files"), top.integer("num_input_bytes"))
    if found != expected:
        message = f"`{path}`: expected {expected[0]} inputs of {expected[1]} bytes, found {found[0]} of {found[1]}"
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


def _parsed(data: bytes, path: str) -> Any:
    return parse_manifest_json(data, path, most_bytes=_MOST_BYTES)


def _top(data: bytes, path: str) -> JsonRecord:
    """Returns the members of the outermost object, of our format and version."""
    members = _parsed(data, path)
    if type(members) is not dict or members.get("format") != FORMAT:
        message = f"`{path}`: expected an object whose `format` is {FORMAT!r}, found something else"
        raise DatasetFormatError(message, hint=damage_hint(path))
    top = JsonRecord(members, path)
    if (found := top.integer("version")) != VERSION:
        message = f"`{path}`: expected version {VERSION}, found {found}"
        raise DatasetFormatError(message, hint="it was written by something newer; use that, or remove the file")
    return top


def _head(top: JsonRecord, tokenizer: TokenizerIdentity) -> ManifestHead:
    pair = top.record("pair")
    return ManifestHead(
        tokenizer,
        pair.optional(pair.integer, "largest_token"),
        pair.crc32("index_start_crc32"),
        top.record("options").members,
    )


def _pair(record: JsonRecord) -> PairFacts:
    return record.make(
        PairFacts,
        dtype=record.text("dtype"),
        num_documents=record.integer("num_documents"),
        num_sequences=record.integer("num_sequences"),
        num_tokens=record.integer("num_tokens"),
        largest_token=record.optional(record.integer, "largest_token"),
        tokens=_checksum(record.record("tokens")),
        index=_checksum(record.record("index")),
        index_start_crc32=record.crc32("index_start_crc32"),
        roles=_checksum(record.record("roles")) if _has(record, "roles") else None,
        copied_tokens=record.text("copied_tokens") if _has(record, "copied_tokens") else None,
    )


def _has(record: JsonRecord, name: str) -> bool:
    """Whether a member that may be left out is there; null is as good as none."""
    return record.members.get(name) is not None


def _tokenizer(record: JsonRecord) -> TokenizerIdentity:
    return record.make(
        TokenizerIdentity,
        kind=record.text("kind"),
        sha256=record.optional(record.text, "sha256"),
        path=record.optional(record.text, "path"),
        vocab_size=record.optional(record.integer, "vocab_size"),
        bos=_special_token(record, "bos"),
        eod=_special_token(record, "eod"),
    )


def _checksum(record: JsonRecord) -> FileChecksum:
    return record.make(FileChecksum, num_bytes=record.integer("num_bytes"), crc32=record.crc32("crc32"))


def _special_token(tokenizer: JsonRecord, name: str) -> SpecialToken | None:
    record = tokenizer.optional(tokenizer.record, name)
    if record is None:
        return None
    return record.make(SpecialToken, id=record.integer("id"), text=record.optional(record.text, "text"))
