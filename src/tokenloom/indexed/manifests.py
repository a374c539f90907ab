"""Manifests of pairs: tokenizer, options, ledger of documents, checksums and input files.

`PREFIX.manifest.json`, see FORMAT.md. Later stages compare their tokenizer with it, `tokenloom verify` the bytes of
both files. Members that a start needs come first, so that the first bytes suffice however many input files are listed.
A file in another layout is read as a whole.

CRC-32 (that of zlib) finds accidents, not forgeries. One core computes 1.7 GB/s of it, and the checksum of two parts in
a row follows from theirs, so that pairs need not be read again when they are joined.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import operator
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import AccessDeniedError, ConfigError, DatasetFormatError, MissingObjectError
from tokenloom.indexed import layout
from tokenloom.indexed.layout import HEADER_BYTES, DType, Header, parse_header
from tokenloom.kernels.arrays import crc32
from tokenloom.numbers import check_count
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import publish_bytes, storage_errors
from tokenloom.storage.json_files import MAY_BE_MISSING, Crc32, UnusableJsonError, from_members, members_of, parse_json
from tokenloom.storage.local import ByteSource
from tokenloom.storage.resolve import read_start
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import open_regular, read_at_most

if TYPE_CHECKING:
    from tokenloom.indexed.dataset import IndexedDataset

_LOGGER = logging.getLogger(__name__)

FORMAT = "tokenloom manifest"
HEAD_BYTES = 4096
"""Read at the start of a run; holds the head unless a path in it is very long."""

_HEAD = re.compile(
    rb'\{\n  "format": "tokenloom manifest",\n  "version": 1,\n  "pair": \{\n    "dtype": "[a-z0-9]+",\n'
    rb'    "num_documents": [0-9]+,\n    "num_sequences": [0-9]+,\n    "num_tokens": [0-9]+,\n'
    rb'    "largest_token": (null|-?[0-9]{1,19}),\n    "tokens": \{[^}]*\},\n    "index": \{[^}]*\},\n'
    rb'    "index_start_crc32": "([0-9a-f]{8})"(?:,\n    "copied_tokens": "[a-z]+")?\n'
    rb'  \},(?=\n  "tokenizer": )'
)
_AFTER_HEAD = b',\n  "ledger": '
"""The head of a file that we wrote, matched in half the time of `json`, which counts at the start of a run over
thousands. No text in JSON has a line break, so the beginning of a line is structure. Other files are parsed."""

START_LENGTHS = 1000
"""Lengths in the checksum of an index's start: with the header, its first page."""

CopiedTokens = Literal["compared", "inherited", "unverified"]
"""Verification of tokens of other pairs, copied or in a catalogue. "compared": all were compared with their manifests.
"inherited": the checksum follows from the manifests, and no token was read. "unverified": some came from pairs that
were not compared, and the checksum is that of the copies."""

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialToken:
    """A token that was added to documents; `text` is its spelling, if known."""

    id: int
    text: str | None = None

    def __post_init__(self) -> None:
        check_count("the id of a special token", self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerIdentity:
    """The tokenizer of a pair.

    Attributes:
        kind: such as "huggingface", or the name of its class.
        sha256: its fingerprint, in hex; None if it has none.
        path: path as it was named; None for one without.
        vocab_size: one more than its largest id; None if unknown.
        bos, eod: tokens put before and after each document; None for none.
    """

    kind: str
    sha256: str | None
    path: str | None
    vocab_size: int | None
    bos: SpecialToken | None = None
    eod: SpecialToken | None = None

    def __post_init__(self) -> None:
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise ConfigError(f"`sha256` of a tokenizer: must be 64 hexadecimal digits, got {self.sha256!r}")
        if self.vocab_size is not None:
            check_count("the vocab_size of a tokenizer", self.vocab_size)

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """The facts that must be equal to join two pairs; not the path."""
        return (self.sha256 or self.kind, self.vocab_size, self.bos, self.eod)

    def describe(self) -> str:
        """Returns a phrase for messages."""
        parts = [f"sha256 {self.sha256[:12]}…"] if self.sha256 is not None else []
        parts += [f"{self.vocab_size} ids"] if self.vocab_size is not None else []
        parts += [f"{name} {token.id}" for name, token in (("bos", self.bos), ("eod", self.eod)) if token is not None]
        name = self.kind if self.path is None else f"{self.kind} `{self.path}`"
        return f"{name} ({', '.join(parts)})" if parts else name


_POLYNOMIAL = 0xEDB88320
"""Polynomial of CRC-32, the coefficient of x⁰ in the highest bit, as zlib has it."""

_ONE, _X_TO_8 = 1 << 31, 1 << 23


def joined_crc32(first: int, second: int, num_second_bytes: int) -> int:
    """Returns the CRC-32 of two parts in a row, from theirs and the size of the second; O(log size).

    A CRC is a remainder of polynomials over two elements: appending n bytes multiplies what came before by x to the 8n.
    """
    power, square, left = _ONE, _X_TO_8, num_second_bytes
    while left:
        if left & 1:
            power = _product(power, square)
        square = _product(square, square)
        left >>= 1
    return _product(power, first) ^ second


def _product(first: int, second: int) -> int:
    """Returns the product of two polynomials, modulo that of CRC-32."""
    product = 0
    while first:
        if first & _ONE:
            product ^= second
        first = (first << 1) & 0xFFFFFFFF
        second = (second >> 1) ^ (_POLYNOMIAL if second & 1 else 0)
    return product


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChecksum:
    """The size of a file and its CRC-32 as zlib computes it; by default those of an empty file."""

    num_bytes: int = 0
    crc32: Crc32 = 0

    def __post_init__(self) -> None:
        check_count("num_bytes of the file", self.num_bytes)

    def with_bytes(self, data: bytes | memoryview) -> FileChecksum:
        """Returns that of the file with further bytes."""
        return FileChecksum(num_bytes=self.num_bytes + memoryview(data).nbytes, crc32=crc32(data, self.crc32))

    def with_part(self, part: FileChecksum) -> FileChecksum:
        """Returns that of the file with another part behind it, from the checksum of the part."""
        crc32 = joined_crc32(self.crc32, part.crc32, part.num_bytes)
        return FileChecksum(num_bytes=self.num_bytes + part.num_bytes, crc32=crc32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFacts:
    """Counts and checksums of both files of a pair.

    Attributes:
        largest_token: id; of the texts alone in multimodal data; None without integer tokens.
        tokens, index: checksums of the `.bin` and the `.idx` file.
        index_start_crc32: see the function.
        copied_tokens: see `CopiedTokens`; None without tokens of other pairs.
    """

    dtype: str
    num_documents: int
    num_sequences: int
    num_tokens: int
    largest_token: int | None
    tokens: FileChecksum
    index: FileChecksum
    index_start_crc32: Crc32
    copied_tokens: CopiedTokens | None = field(default=None, metadata=MAY_BE_MISSING)

    def __post_init__(self) -> None:
        if self.copied_tokens is not None:
            layout.check_choice("copied_tokens", self.copied_tokens, get_args(CopiedTokens))
        for name in ("num_documents", "num_sequences", "num_tokens"):
            check_count(f"{name} of the pair", getattr(self, name))
        layout.check_choice("dtype", self.dtype, DType.__members__)
        dtype = np.dtype(self.dtype)
        if self.tokens.num_bytes != self.num_tokens * dtype.itemsize:
            wanted = f"{self.num_tokens * dtype.itemsize} bytes for {self.num_tokens} tokens of {dtype}"
            raise ConfigError(f"expected {wanted}, found {self.tokens.num_bytes}")
        largest = -1 if dtype.kind not in "iu" or self.num_tokens == 0 else np.iinfo(dtype).max
        if self.largest_token is not None and self.largest_token > largest:
            tokens = f"{self.num_tokens} tokens of {dtype}"
            raise ConfigError(f"`largest_token`: {self.largest_token} cannot be one of {tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLedger:
    """Counts of all documents that were read; they balance.

    Attributes:
        num_read: documents of the input, blank lines included.
        num_kept: documents in the pair, empty ones included.
        num_rejected: unusable documents.
        num_blank: lines of white space.
        num_duplicates: dropped, equal to one that was kept.
        num_empty: dropped, without tokens.
        num_elsewhere: in another pair, such as the other side of a split.
    """

    num_read: int
    num_kept: int
    num_rejected: int = 0
    num_blank: int = 0
    num_duplicates: int = 0
    num_empty: int = 0
    num_elsewhere: int = 0

    def __post_init__(self) -> None:
        counts = dataclasses.asdict(self)
        for name, count in counts.items():
            check_count(f"{name} of the ledger", count)
        del counts["num_read"]
        if sum(counts.values()) != self.num_read:
            parts = " + ".join(f"{count} {name.removeprefix('num_')}" for name, count in counts.items())
            raise ConfigError(f"the ledger does not balance: {self.num_read} documents read, but {parts}")

    def __add__(self, other: DocumentLedger) -> DocumentLedger:
        """Returns the ledger of both."""
        counts = dataclasses.asdict(other)
        return DocumentLedger(**{name: count + counts[name] for name, count in dataclasses.asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord:
    """An input file: its path as named, its size, and its version (etag or modification time), if known."""

    path: str
    num_bytes: int
    version: str | None = None

    def __post_init__(self) -> None:
        check_count("num_bytes of the input", self.num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The record of how a pair was made.

    Attributes:
        options: settings that decided the bytes besides tokenizer and inputs, by name: values of JSON.
        engine, tokenloom_version: for information.
    """

    pair: PairFacts
    tokenizer: TokenizerIdentity
    options: Mapping[str, Any]
    ledger: DocumentLedger
    engine: str | None = None
    tokenloom_version: str
    inputs: tuple[InputRecord, ...] = ()

    def __post_init__(self) -> None:
        if self.ledger.num_kept != self.pair.num_documents:
            wanted = f"{self.pair.num_documents} documents kept, those of the pair"
            raise ConfigError(f"expected {wanted}, found {self.ledger.num_kept}")
        try:
            again = json.loads(json.dumps(dict(self.options), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"`options`: {dict(self.options)!r} cannot be JSON: {error}") from error
        object.__setattr__(self, "options", again)  # as they are read back: lists, not tuples


@dataclass(frozen=True, kw_only=True)
class ManifestHead:
    """The members of a manifest that a start needs."""

    tokenizer: TokenizerIdentity
    options: Mapping[str, Any]
    largest_token: int | None = field(default=None, metadata=MAY_BE_MISSING)
    index_start_crc32: Crc32 = field(default=0, metadata=MAY_BE_MISSING)


def manifest_path(prefix: str) -> str:
    """Returns the path of the manifest of a prefix."""
    return prefix + ".manifest.json"


def read_manifest(prefix: str, *, settings: ObjectStorageSettings | None = None) -> Manifest | None:
    """Returns the manifest of a prefix, None if there is none."""
    path = manifest_path(prefix)
    data = read_if_there(path, None, settings)
    return None if data is None else parse_manifest(data, path=path)


def read_manifest_head(
    prefix: str, *, copy: str | None = None, settings: ObjectStorageSettings | None = None
) -> ManifestHead | None:
    """Returns the head of the manifest of a prefix, None if there is none; one open and one read, as a rule.

    In object storage, one request per node and version of the index: the answer is kept beside its local `copy`.
    """
    path = manifest_path(prefix)
    data = None if copy is None else read_if_there(f"{copy}.manifest", HEAD_BYTES, None)
    if data is None:
        try:
            data = read_if_there(path, HEAD_BYTES, settings)
        except AccessDeniedError:  # what stores say of a missing object to those who may not list
            _LOGGER.info("no manifest of `%s` to read: access is denied", prefix)
        if copy is not None:
            publish_bytes(f"{copy}.manifest", data or b"")
    if data is None or (copy is not None and not data):
        return None
    if (found := _HEAD.match(data)) is not None and (end := data.find(_AFTER_HEAD, found.end())) > 0:
        with suppress(UnusableJsonError):  # as the whole then is, too
            largest = None if found[1] == b"null" else int(found[1])
            head = _head_of(data[found.end() : end])
            return dataclasses.replace(head, largest_token=largest, index_start_crc32=int(found[2], 16))
    manifest = read_manifest(prefix, settings=settings)  # not as we write it, or the tokenizer's path is very long
    if manifest is None:
        return None
    return ManifestHead(
        tokenizer=manifest.tokenizer,
        options=manifest.options,
        largest_token=manifest.pair.largest_token,
        index_start_crc32=manifest.pair.index_start_crc32,
    )


@functools.lru_cache(maxsize=1)
def _head_of(members: bytes) -> ManifestHead:
    """Returns tokenizer and options from JSON without its braces; the manifests of a blend mostly share them."""
    return from_members(ManifestHead, parse_json(b"{%b}" % members))


def manifest_document(manifest: Manifest) -> dict[str, Any]:
    """Returns the members of the file of a manifest, in its order."""
    members = members_of(manifest)
    inputs = members.pop("inputs")
    num_bytes = sum(record.num_bytes for record in manifest.inputs)
    totals = {"num_input_files": len(inputs), "num_input_bytes": num_bytes}
    return {"format": FORMAT, "version": layout.RECORD_VERSION, **members, **totals, "inputs": inputs}


def manifest_bytes(manifest: Manifest) -> bytes:
    """Returns the file of a manifest."""
    return layout.record_bytes(manifest_document(manifest), path="PREFIX.manifest.json", indent=2)


def parse_manifest(data: bytes, *, path: str) -> Manifest:
    """Returns the manifest in some JSON."""
    hint = f"`{os.path.basename(path)}` is damaged or foreign; write the pair again, or remove the file"
    return layout.parse_record(Manifest, data, path=path, what=FORMAT, hint=hint)


def read_if_there(path: str, num_bytes: int | None, settings: ObjectStorageSettings | None) -> bytes | None:
    """Returns the first bytes of a file or object beside a pair, or all; None if there is none."""
    num_bytes = num_bytes or layout.MOST_RECORD_BYTES + 1
    try:
        if is_remote(path):
            return read_start(path, num_bytes, settings=settings)
        handle = open_regular(path)
        try:
            return read_at_most(handle, num_bytes)
        finally:
            os.close(handle)
    except (FileNotFoundError, MissingObjectError):
        return None
    except OSError:
        with storage_errors("read", path):
            raise


def manifest_head_of(pair: IndexedDataset) -> ManifestHead | None:
    """Returns the head of the manifest of a pair, None if there is none; costs nothing when it is asked for again."""
    if (head := pair.manifest_head) is not None:
        check_start(pair, head.index_start_crc32, path=manifest_path(pair.path_prefix))
    return head


def manifest_of(pair: IndexedDataset) -> Manifest | None:
    """Returns the manifest of a pair, None if there is none."""
    if (manifest := read_manifest(pair.path_prefix, settings=pair.object_storage)) is not None:
        check_start(pair, manifest.pair.index_start_crc32, path=manifest_path(pair.path_prefix))
    return manifest


def check_start(pair: IndexedDataset, expected: int, *, path: str) -> None:
    """Compares the start of the index, which is in memory, with the checksum in a file beside the pair.

    Our writers never leave a manifest beside other data; other writers may.
    """
    if index_start_crc32(pair.index.header, pair.index.sequence_lengths) != expected:
        raise foreign(path)


def foreign(path: str) -> DatasetFormatError:
    """Returns the error for a file beside data that it was not written for."""
    message = f"`{path}` was written for another pair than the one that is there"
    return DatasetFormatError(message, hint="if the data were replaced on purpose, remove it; else write them again")


def index_start_crc32(header: Header, lengths: NDArray[np.int32]) -> int:
    """Returns the checksum of the header and the first 1,000 lengths of an index, which readers have in memory."""
    return zlib.crc32(np.ascontiguousarray(lengths[:START_LENGTHS], dtype=np.int32).data, zlib.crc32(header.pack()))


def combined_manifest(
    pairs: Iterable[IndexedDataset], *, copied_tokens: CopiedTokens = "inherited"
) -> Callable[[PairFacts], Manifest] | None:
    """Returns the maker of the manifest of joined datasets, or of some of their documents.

    None if no dataset has a manifest, or only some do; the latter is logged. An input with unverified tokens makes the
    result unverified.
    """
    order, found = list[str](), dict[str, Manifest | None]()
    for pair in pairs:
        order.append(pair.path_prefix)
        if pair.path_prefix not in found:
            found[pair.path_prefix] = manifest_of(pair)
    makers = {prefix: manifest.tokenizer for prefix, manifest in found.items() if manifest is not None}
    owner, first = next(iter(makers.items()), ("", None))
    for prefix, other in makers.items():
        if first is not None and other.fingerprint != first.fingerprint:
            tokenizers = f"{first.describe()} for `{owner}` and {other.describe()} for `{prefix}`"
            hint = "tokenize one of them again; only pairs with manifests are compared"
            raise ConfigError(f"expected one tokenizer, found {tokenizers}", hint=hint)
    if lacking := [prefix for prefix in found if prefix not in makers]:
        if makers:
            _LOGGER.warning("the result has no manifest, because `%s` has none", lacking[0])
        return None
    chosen = [manifest for prefix in order if (manifest := found[prefix]) is not None]
    if any(each.pair.copied_tokens == "unverified" for each in chosen):
        copied_tokens = "unverified"
    return lambda pair: combine_manifests(chosen, pair=dataclasses.replace(pair, copied_tokens=copied_tokens))


def combine_manifests(manifests: Sequence[Manifest], *, pair: PairFacts) -> Manifest:
    """Returns the manifest of joined pairs, or of some of their documents: ledgers added, inputs in order.

    An option with several values is recorded as `{"several": [...]}`.
    """
    from importlib.metadata import version  # 10 ms, which readers need not wait for

    first = manifests[0]
    ledger = sum((each.ledger for each in manifests[1:]), first.ledger)
    elsewhere = ledger.num_elsewhere + ledger.num_kept - pair.num_documents
    return Manifest(
        pair=pair,
        tokenizer=first.tokenizer,
        options=_common_options([each.options for each in manifests]),
        ledger=dataclasses.replace(ledger, num_kept=pair.num_documents, num_elsewhere=elsewhere),
        inputs=tuple(dict.fromkeys(record for each in manifests for record in each.inputs)),
        engine=", ".join(dict.fromkeys(each.engine for each in manifests if each.engine is not None)) or None,
        tokenloom_version=version("tokenloom"),
    )


def _common_options(options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    common: dict[str, Any] = {}
    for name in dict.fromkeys(name for each in options for name in each):
        values: list[Any] = []
        for each in options:
            value = each.get(name)
            seen = value["several"] if isinstance(value, dict) and list(value) == ["several"] else [value]
            values += [value for value in seen if value not in values]
        common[name] = values[0] if len(values) == 1 else {"several": values}
    return common


def identity_of(
    tokenizer: Any, *, bos: SpecialToken | None = None, eod: SpecialToken | None = None
) -> TokenizerIdentity:
    """Returns the identity of a tokenizer."""
    kind, path = optional_attribute(tokenizer, "kind"), _attribute_or_identifier(tokenizer, "path", "tokenizer_path")
    if isinstance(path, list) and len(path) == 1:
        (path,) = path
    return TokenizerIdentity(
        kind=kind if isinstance(kind, str) else type(tokenizer).__name__,
        sha256=fingerprint_of(tokenizer),
        path=path if isinstance(path, str) else None,
        vocab_size=optional_number(tokenizer, "vocab_size"),
        bos=bos,
        eod=eod,
    )


def fingerprint_of(tokenizer: Any) -> str | None:
    """Returns the SHA-256 of a tokenizer, from `sha256` or its `unique_identifiers`; None if it has none."""
    found = _attribute_or_identifier(tokenizer, "sha256", "sha256")
    return found if isinstance(found, str) and _SHA256.fullmatch(found) else None


def optional_number(tokenizer: Any, name: str) -> int | None:
    """Returns an attribute of a tokenizer that is an integer of at least 0; None if there is none."""
    try:
        number = operator.index(optional_attribute(tokenizer, name))
    except TypeError:
        return None
    return number if number >= 0 else None


def optional_attribute(tokenizer: Any, name: str) -> Any:
    """Returns an attribute of a tokenizer; None if it has none or raises."""
    try:
        return getattr(tokenizer, name)
    except Exception:  # noqa: BLE001 - tokenizers raise what they like for a token they lack
        return None


def _attribute_or_identifier(tokenizer: Any, attribute: str, identifier: str) -> Any:
    if (found := optional_attribute(tokenizer, attribute)) is None:
        identifiers = optional_attribute(tokenizer, "unique_identifiers")
        found = identifiers.get(identifier) if hasattr(identifiers, "get") else None
    return found


# --- counting a pair --------------------------------------------------------------------------------------------------

_BYTES = 16 << 20
"""Read at once; a multiple of every token's width."""


class PairTally:
    """Counts the facts of a pair: of all tokens, added in order, and then of its index."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._tokens = FileChecksum()
        self._largest: int | None = None

    def add_tokens(self, data: bytes | memoryview) -> None:
        """Counts the next tokens."""
        self._tokens = self._tokens.with_bytes(data)
        if self._dtype.kind in "iu" and memoryview(data).nbytes:
            self._add_largest(int(np.frombuffer(data, dtype=self._dtype).max()))

    def add_pair(self, pair: IndexedDataset) -> None:
        """Counts all tokens of a pair; reads them only if it has no manifest."""
        if (manifest := manifest_of(pair)) is not None:
            self._tokens = self._tokens.with_part(manifest.pair.tokens)
            self._add_largest(manifest.pair.largest_token)
            return
        for tokens in token_blocks(pair):
            self.add_tokens(tokens.data)

    def facts(self, index: ByteSource) -> PairFacts:
        """Returns the facts after all tokens were added; reads the index."""
        header, lengths = start_of(index)
        return PairFacts(
            dtype=self._dtype.name,
            num_documents=header.num_boundaries - 1,
            num_sequences=header.num_sequences,
            num_tokens=self._tokens.num_bytes // self._dtype.itemsize,
            largest_token=self._largest,
            tokens=self._tokens,
            index=source_checksum(index),
            index_start_crc32=index_start_crc32(header, lengths),
        )

    def _add_largest(self, token: int | None) -> None:
        if token is not None and (self._largest is None or token > self._largest):
            self._largest = token


def pair_facts(pair: IndexedDataset) -> PairFacts:
    """Returns the facts of a pair; reads both files, not its manifest."""
    tally = PairTally(pair.dtype)
    for tokens in token_blocks(pair):
        tally.add_tokens(tokens.data)
    return tally.facts(pair.index_source())


def token_blocks(pair: IndexedDataset) -> Iterator[NDArray[Any]]:
    """Yields all whole tokens of a pair, in order, some millions at once: dtype[count]."""
    for section in pair.sections:
        stop = section.start + section.num_bytes - section.num_bytes % pair.dtype.itemsize
        for begin in range(section.start, stop, _BYTES):
            num_bytes = min(_BYTES, stop - begin)
            yield pair.byte_source.read(begin, num_bytes).view(pair.dtype)
            pair.check_tokens(begin, num_bytes)


def source_checksum(source: ByteSource) -> FileChecksum:
    """Returns size and CRC-32 of a source; reads all of it."""
    found = FileChecksum()
    for begin in range(0, source.num_bytes, _BYTES):
        found = found.with_bytes(source.read(begin, min(_BYTES, source.num_bytes - begin)).data)
    return found


def start_of(index: ByteSource) -> tuple[Header, NDArray[np.int32]]:
    """Returns the header of an index, and the first lengths."""
    header = parse_header(index.read(0, min(HEADER_BYTES, index.num_bytes)), path="index")
    num_bytes = 4 * min(header.num_sequences, START_LENGTHS)
    return header, index.read(header.lengths_offset, num_bytes).view(np.int32)
