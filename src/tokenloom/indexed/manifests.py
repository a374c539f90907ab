"""Manifests: JSON files that record how a pair was made, and the checksums of the files of the pair.

`PREFIX.manifest.json` contains tokenizer, options, counts of documents, checksums and input files; see FORMAT.md.
Readers compare their tokenizer with the manifest; `tokenloom verify` compares the pair with the manifest. Members that
a run needs at its start come first, so one read of 4 KiB suffices. Files of another layout are read completely.

CRC-32 (as in zlib) detects accidents, not forgeries. One core checks 1.7 GB/s. The checksum of concatenated parts
follows from the checksums of the parts, so pairs that are joined need not be read again.
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
from tokenloom.kernels.storage import crc32
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
"""Number of bytes of a manifest that a run reads first; these contain the head unless a path is very long."""

_HEAD = re.compile(
    rb'\{\n  "format": "tokenloom manifest",\n  "version": 1,\n  "pair": \{\n    "dtype": "[a-z0-9]+",\n'
    rb'    "num_documents": [0-9]+,\n    "num_sequences": [0-9]+,\n    "num_tokens": [0-9]+,\n'
    rb'    "largest_token": (null|-?[0-9]{1,19}),\n    "tokens": \{[^}]*\},\n    "index": \{[^}]*\},\n'
    rb'    "index_start_crc32": "([0-9a-f]{8})"(?:,\n    "copied_tokens": "[a-z]+")?\n'
    rb'  \},(?=\n  "tokenizer": )'
)
_AFTER_HEAD = b',\n  "ledger": '
"""`_HEAD` and `_AFTER_HEAD` find the head in the layout that we write, in half the time of `json`, which matters at a
start with thousands of pairs. JSON strings have no line breaks, so no match begins in a string."""

START_LENGTHS = 1000
"""Number of sequence lengths that `index_start_crc32` covers; with the header, these fill about one page of memory."""

CopiedTokens = Literal["compared", "inherited", "unverified"]
"""How tokens copied from other pairs were verified. "compared": all tokens were compared with the manifests of these
pairs. "inherited": the checksum was computed from the manifests without reading a token. "unverified": some tokens were
not compared, and the checksum is that of the copied bytes."""

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialToken:
    """A token that was added to each document; `text` is None if the text of the token is unknown."""

    id: int
    text: str | None = None

    def __post_init__(self) -> None:
        check_count("the id of a special token", self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerIdentity:
    """Identifies the tokenizer of a pair.

    `kind` is a name such as "huggingface", or a class name. `sha256`, `path` (as the user wrote it) and `vocab_size`
    are None if unknown. `bos` was added before each document, `eod` after each document; None: no token was added.
    """

    kind: str
    sha256: str | None
    path: str | None
    vocab_size: int | None
    bos: SpecialToken | None = None
    eod: SpecialToken | None = None

    def __post_init__(self) -> None:
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise ConfigError(f"`sha256` of the tokenizer: must be 64 hexadecimal digits, got {self.sha256!r}")
        if self.vocab_size is not None:
            check_count("the vocab_size of a tokenizer", self.vocab_size)

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """The values that must be equal in all pairs that are joined; paths may differ."""
        return (self.sha256 or self.kind, self.vocab_size, self.bos, self.eod)

    def describe(self) -> str:
        """Returns kind, path, hash, vocabulary size and special tokens in one phrase, for messages."""
        parts = [f"sha256 {self.sha256[:12]}…"] if self.sha256 is not None else []
        parts += [f"{self.vocab_size} ids"] if self.vocab_size is not None else []
        parts += [f"{name} {token.id}" for name, token in (("bos", self.bos), ("eod", self.eod)) if token is not None]
        name = self.kind if self.path is None else f"{self.kind} `{self.path}`"
        return f"{name} ({', '.join(parts)})" if parts else name


_POLYNOMIAL = 0xEDB88320  # polynomial of CRC-32 in the bit order of zlib: the highest bit is the coefficient of x⁰

_ONE, _X_TO_8 = 1 << 31, 1 << 23


def joined_crc32(first: int, second: int, num_second_bytes: int) -> int:
    """Returns the CRC-32 of two joined parts from the CRC-32 of each part and the size of the second; O(log size)."""
    power, square, left = _ONE, _X_TO_8, num_second_bytes
    while left:
        if left & 1:
            power = _product(power, square)
        square = _product(square, square)
        left >>= 1
    return _product(power, first) ^ second


def _product(first: int, second: int) -> int:
    """Returns the product of two polynomials modulo the CRC-32 polynomial."""
    product = 0
    while first:
        if first & _ONE:
            product ^= second
        first = (first << 1) & 0xFFFFFFFF
        second = (second >> 1) ^ (_POLYNOMIAL if second & 1 else 0)
    return product


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChecksum:
    """The size and CRC-32 (as in zlib) of a file; by default of an empty file."""

    num_bytes: int = 0
    crc32: Crc32 = 0

    def __post_init__(self) -> None:
        check_count("num_bytes of the file", self.num_bytes)

    def with_bytes(self, data: bytes | memoryview) -> FileChecksum:
        """Returns the checksum of the file after appending `data`."""
        return FileChecksum(num_bytes=self.num_bytes + memoryview(data).nbytes, crc32=crc32(data, self.crc32))

    def with_part(self, part: FileChecksum) -> FileChecksum:
        """Returns the checksum of the file after appending a part whose checksum is `part`."""
        crc32 = joined_crc32(self.crc32, part.crc32, part.num_bytes)
        return FileChecksum(num_bytes=self.num_bytes + part.num_bytes, crc32=crc32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFacts:
    """The counts of a pair, and the checksums of its files.

    `largest_token` (in multimodal data, only of texts) is None if there are no tokens, or if the dtype is float.
    `index_start_crc32` covers the header of the index and the first 1,000 sequence lengths. `copied_tokens` says how
    tokens from other pairs were verified (see `CopiedTokens`); None if no tokens were copied.
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
            raise ConfigError(f"`tokens`: must have {wanted}, got {self.tokens.num_bytes} bytes")
        largest = -1 if dtype.kind not in "iu" or self.num_tokens == 0 else np.iinfo(dtype).max
        if self.largest_token is not None and self.largest_token > largest:
            tokens = f"{self.num_tokens} tokens of {dtype}"
            raise ConfigError(f"`largest_token`: must be at most {largest} for {tokens}, got {self.largest_token}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLedger:
    """Counts of documents, by what became of them; `num_read` is the sum of all other counts.

    Attributes:
        num_read: documents in the input, including blank lines.
        num_kept: documents in the pair, including documents without tokens.
        num_rejected: documents dropped because their record was invalid.
        num_blank: lines with only white space.
        num_duplicates: documents dropped because an equal document was kept.
        num_empty: documents dropped because they had no tokens.
        num_elsewhere: documents written to another pair, such as the other side of a split.
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
            raise ConfigError(f"ledger: `num_read` is {self.num_read}, but the other counts are {parts}")

    def __add__(self, other: DocumentLedger) -> DocumentLedger:
        counts = dataclasses.asdict(other)
        return DocumentLedger(**{name: count + counts[name] for name, count in dataclasses.asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord:
    """An input file: its path as the user wrote it, its size, and its version (etag or modification time) if known."""

    path: str
    num_bytes: int
    version: str | None = None

    def __post_init__(self) -> None:
        check_count("num_bytes of the input", self.num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The record of how a pair was made; `engine` and `tokenloom_version` are only informative.

    `options` are JSON values by name: all settings that decide the bytes of the pair, except tokenizer and inputs.
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
            wanted = f"{self.pair.num_documents} kept documents, as many as the pair has"
            raise ConfigError(f"ledger: expected {wanted}, found {self.ledger.num_kept}")
        try:
            again = json.loads(json.dumps(dict(self.options), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"`options`: must be JSON values, got {dict(self.options)!r}: {error}") from error
        object.__setattr__(self, "options", again)  # with lists instead of tuples, as after reading the file


@dataclass(frozen=True, kw_only=True)
class ManifestHead:
    """The members of a manifest that a run needs at its start."""

    tokenizer: TokenizerIdentity
    options: Mapping[str, Any]
    largest_token: int | None = field(default=None, metadata=MAY_BE_MISSING)
    index_start_crc32: Crc32 = field(default=0, metadata=MAY_BE_MISSING)


def manifest_path(prefix: str) -> str:
    return prefix + ".manifest.json"


def read_manifest(prefix: str, *, settings: ObjectStorageSettings | None = None) -> Manifest | None:
    """Reads the manifest of a prefix; None if the file does not exist."""
    path = manifest_path(prefix)
    data = read_if_exists(path, None, settings)
    return None if data is None else parse_manifest(data, path=path)


def read_manifest_head(
    prefix: str, *, copy: str | None = None, settings: ObjectStorageSettings | None = None
) -> ManifestHead | None:
    """Reads the head of the manifest of a prefix, usually by one read of 4 KiB; None if the manifest does not exist.

    `copy` is the path of the local copy of a remote index; if given, the first call stores the head in `COPY.manifest`.
    """
    path = manifest_path(prefix)
    data = None if copy is None else read_if_exists(f"{copy}.manifest", HEAD_BYTES, None)
    if data is None:
        try:
            data = read_if_exists(path, HEAD_BYTES, settings)
        except AccessDeniedError:  # the answer for a missing object if listing is not allowed
            _LOGGER.info("cannot read the manifest of `%s`: access is denied", prefix)
        if copy is not None:
            publish_bytes(f"{copy}.manifest", data or b"")
    if data is None or (copy is not None and not data):
        return None
    if (found := _HEAD.match(data)) is not None and (end := data.find(_AFTER_HEAD, found.end())) > 0:
        with suppress(UnusableJsonError):  # reading the whole file reports the problem
            largest = None if found[1] == b"null" else int(found[1])
            head = _head_of(data[found.end() : end])
            return dataclasses.replace(head, largest_token=largest, index_start_crc32=int(found[2], 16))
    manifest = read_manifest(prefix, settings=settings)  # another layout, or a very long path of the tokenizer
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
    """Parses tokenizer and options from members of a JSON object; cached: pairs of a blend often have equal members."""
    return from_members(ManifestHead, parse_json(b"{%b}" % members))


def manifest_document(manifest: Manifest) -> dict[str, Any]:
    """Returns the JSON object of a manifest, members in file order."""
    members = members_of(manifest)
    inputs = members.pop("inputs")
    num_bytes = sum(record.num_bytes for record in manifest.inputs)
    totals = {"num_input_files": len(inputs), "num_input_bytes": num_bytes}
    return {"format": FORMAT, "version": layout.RECORD_VERSION, **members, **totals, "inputs": inputs}


def manifest_bytes(manifest: Manifest) -> bytes:
    return layout.record_bytes(manifest_document(manifest), path="PREFIX.manifest.json", indent=2)


def parse_manifest(data: bytes, *, path: str) -> Manifest:
    hint = f"write the pair again, or remove `{os.path.basename(path)}`: this file is damaged or of another kind"
    return layout.parse_record(Manifest, data, path=path, what=FORMAT, hint=hint)


def read_if_exists(path: str, num_bytes: int | None, settings: ObjectStorageSettings | None) -> bytes | None:
    """Returns the first `num_bytes` (None: all) of a file or object; None if the file or object does not exist."""
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
    """Returns the head of a pair's manifest (cached), and checks that both belong together; None without a manifest."""
    if (head := pair.manifest_head) is not None:
        check_start(pair, head.index_start_crc32, path=manifest_path(pair.path_prefix))
    return head


def manifest_of(pair: IndexedDataset) -> Manifest | None:
    """Reads the manifest of a pair, and checks that both belong together; None without a manifest."""
    if (manifest := read_manifest(pair.path_prefix, settings=pair.object_storage)) is not None:
        check_start(pair, manifest.pair.index_start_crc32, path=manifest_path(pair.path_prefix))
    return manifest


def check_start(pair: IndexedDataset, expected: int, *, path: str) -> None:
    """Raises a `DatasetFormatError` if the start of the index does not have the CRC-32 that the file `path` records."""
    if index_start_crc32(pair.index.header, pair.index.sequence_lengths) != expected:
        raise foreign(path)


def foreign(path: str) -> DatasetFormatError:
    """Returns the error for a file that is beside a pair, but was written for another pair."""
    message = f"`{path}`: belongs to another pair than the files beside it"
    return DatasetFormatError(message, hint="remove the file if you replaced the pair, or write pair and file again")


def index_start_crc32(header: Header, lengths: NDArray[np.int32]) -> int:
    """Returns the CRC-32 of the header and the first 1,000 lengths of an index."""
    return zlib.crc32(np.ascontiguousarray(lengths[:START_LENGTHS], dtype=np.int32).data, zlib.crc32(header.pack()))


def combined_manifest(
    pairs: Iterable[IndexedDataset], *, copied_tokens: CopiedTokens = "inherited"
) -> Callable[[PairFacts], Manifest] | None:
    """Returns a function that makes the manifest of a pair joined from `pairs`, or from some of their documents.

    The function takes the `PairFacts` of the joined pair, and sets `copied_tokens` in them: to "unverified" if a pair
    has this value, else to the argument. Returns None if a pair has no manifest; warns if another pair has one.
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
            hint = "tokenize one of the pairs again with the tokenizer of the other"
            raise ConfigError(f"expected one tokenizer, found {tokenizers}", hint=hint)
    if lacking := [prefix for prefix in found if prefix not in makers]:
        if makers:
            _LOGGER.warning("the output gets no manifest, because `%s` has none", lacking[0])
        return None
    chosen = [manifest for prefix in order if (manifest := found[prefix]) is not None]
    if any(each.pair.copied_tokens == "unverified" for each in chosen):
        copied_tokens = "unverified"
    return lambda pair: combine_manifests(chosen, pair=dataclasses.replace(pair, copied_tokens=copied_tokens))


def combine_manifests(manifests: Sequence[Manifest], *, pair: PairFacts) -> Manifest:
    """Returns the manifest of joined pairs; an option with different values becomes `{"several": [values]}`."""
    from importlib.metadata import version  # slow (10 ms), and readers do not need it

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
    """Returns the SHA-256 of a tokenizer from its `sha256` or `unique_identifiers`; None if both are missing."""
    found = _attribute_or_identifier(tokenizer, "sha256", "sha256")
    return found if isinstance(found, str) and _SHA256.fullmatch(found) else None


def optional_number(tokenizer: Any, name: str) -> int | None:
    """Returns the value of an attribute of a tokenizer if the value is an integer of at least 0; else None."""
    try:
        number = operator.index(optional_attribute(tokenizer, name))
    except TypeError:
        return None
    return number if number >= 0 else None


def optional_attribute(tokenizer: Any, name: str) -> Any:
    """Returns the value of an attribute of a tokenizer; None if the attribute is missing or raises."""
    try:
        return getattr(tokenizer, name)
    except Exception:  # noqa: BLE001 - tokenizers raise any error for a missing token
        return None


def _attribute_or_identifier(tokenizer: Any, attribute: str, identifier: str) -> Any:
    if (found := optional_attribute(tokenizer, attribute)) is None:
        identifiers = optional_attribute(tokenizer, "unique_identifiers")
        found = identifiers.get(identifier) if hasattr(identifiers, "get") else None
    return found


# --- counting a pair --------------------------------------------------------------------------------------------------

_BYTES = 16 << 20  # bytes per read; a multiple of the width of any token


class PairTally:
    """Computes the `PairFacts` of a pair: add all tokens in order, then call `facts`."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._tokens = FileChecksum()
        self._largest: int | None = None

    def add_tokens(self, data: bytes | memoryview) -> None:
        self._tokens = self._tokens.with_bytes(data)
        if self._dtype.kind in "iu" and memoryview(data).nbytes:
            self._add_largest(int(np.frombuffer(data, dtype=self._dtype).max()))

    def add_pair(self, pair: IndexedDataset) -> None:
        """Adds all tokens of a pair; reads the tokens only if the pair has no manifest."""
        if (manifest := manifest_of(pair)) is not None:
            self._tokens = self._tokens.with_part(manifest.pair.tokens)
            self._add_largest(manifest.pair.largest_token)
            return
        for tokens in token_blocks(pair):
            self.add_tokens(tokens.data)

    def facts(self, index: ByteSource) -> PairFacts:
        """Returns the `PairFacts` of all added tokens and of `index`; reads the whole index."""
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
    """Computes the `PairFacts` of a pair from its `.bin` and `.idx`, not from its manifest."""
    tally = PairTally(pair.dtype)
    for tokens in token_blocks(pair):
        tally.add_tokens(tokens.data)
    return tally.facts(pair.index_source())


def token_blocks(pair: IndexedDataset) -> Iterator[NDArray[Any]]:
    """Yields all tokens of a pair, in order, in arrays dtype[count] of at most 16 MiB."""
    for section in pair.sections:
        stop = section.start + section.num_bytes - section.num_bytes % pair.dtype.itemsize
        for begin in range(section.start, stop, _BYTES):
            num_bytes = min(_BYTES, stop - begin)
            yield pair.byte_source.read(begin, num_bytes).view(pair.dtype)
            pair.check_tokens(begin, num_bytes)


def source_checksum(source: ByteSource) -> FileChecksum:
    """Reads a whole byte source, and returns the size and CRC-32 of its bytes."""
    found = FileChecksum()
    for begin in range(0, source.num_bytes, _BYTES):
        found = found.with_bytes(source.read(begin, min(_BYTES, source.num_bytes - begin)).data)
    return found


def start_of(index: ByteSource) -> tuple[Header, NDArray[np.int32]]:
    """Returns the header of an index and, as int32[count], its first 1,000 sequence lengths."""
    header = parse_header(index.read(0, min(HEADER_BYTES, index.num_bytes)), path="index")
    num_bytes = 4 * min(header.num_sequences, START_LENGTHS)
    return header, index.read(HEADER_BYTES, num_bytes).view(np.int32)
