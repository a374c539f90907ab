"""What a pair was made of: tokenizer, options, ledger of documents, checksums and input files.

`PREFIX.manifest.json` holds it, see FORMAT.md. Later stages compare their tokenizer with it, `tokenloom verify` the
bytes of both files. It is ordinary JSON, which we write with what a start needs first, so that its first bytes suffice
however many input files it lists; whoever has formatted it otherwise is read all the same, as a whole.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import AccessDeniedError, ConfigError, DatasetFormatError, MissingObjectError
from tokenloom.indexed.layout import DType, Header
from tokenloom.numbers import check_count
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import publish_bytes, storage_errors
from tokenloom.storage.json_files import MAY_BE_MISSING, Crc32, UnusableJsonError, from_members, members_of, parse_json
from tokenloom.storage.resolve import read_start
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import open_regular, read_at_most

if TYPE_CHECKING:
    from tokenloom.indexed.dataset import IndexedDataset

_LOGGER = logging.getLogger(__name__)

FORMAT = "tokenloom manifest"
VERSION = 1

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
"""The head of a file that we wrote: 8.5 µs with opening and reading, 13.8 µs when `json` parses it, which counts at the
start of a run over thousands. JSON has no line break inside a text, so what begins a line is what it seems to be. Any
other file is parsed."""

_MOST_BYTES = 1 << 29
"""More is refused: room for some millions of input files."""

START_LENGTHS = 1000
"""How many lengths the checksum of an index's start covers: with the header, its first page."""

CopiedTokens = Literal["compared", "inherited", "unverified"]
"""What is known of tokens that were copied from other pairs, or are still there. "compared": all were read and found to
be those of the manifests beside them. "inherited": their checksum follows from those manifests, and they were not read
for it, so that reading them tells. "unverified": some came from pairs that were not compared, and the checksum is of
what came.
"""

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialToken:
    """A token that was added to documents; `text` is how it is spelled, if that is known."""

    id: int
    text: str | None = None

    def __post_init__(self) -> None:
        """Checks the id."""
        check_count("the id of a special token", self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerIdentity:
    """Which tokenizer made the tokens.

    Attributes:
        kind: what it is, such as "huggingface", or the name of its class.
        sha256: its fingerprint, in hex; None for one that offers none.
        path: path as it was named; None for one without.
        vocab_size: one more than its largest id; None if it does not say.
        bos: what was put before each document; None for nothing.
        eod: what was put after each document; None for nothing.
    """

    kind: str
    sha256: str | None
    path: str | None
    vocab_size: int | None
    bos: SpecialToken | None = None
    eod: SpecialToken | None = None

    def __post_init__(self) -> None:
        """Checks fingerprint and vocabulary."""
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            message = f"expected 64 hexadecimal digits as the sha256 of a tokenizer, found {self.sha256!r}"
            raise ConfigError(message)
        if self.vocab_size is not None:
            check_count("the vocab_size of a tokenizer", self.vocab_size)

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """What must be equal for two pairs to become one; not the path."""
        return (self.sha256 or self.kind, self.vocab_size, self.bos, self.eod)

    def describe(self) -> str:
        """Returns a phrase that tells it from others in a message."""
        parts = [f"sha256 {self.sha256[:12]}…"] if self.sha256 is not None else []
        parts += [f"{self.vocab_size} ids"] if self.vocab_size is not None else []
        parts += [f"{name} {token.id}" for name, token in (("bos", self.bos), ("eod", self.eod)) if token is not None]
        name = self.kind if self.path is None else f"{self.kind} `{self.path}`"
        return f"{name} ({', '.join(parts)})" if parts else name


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChecksum:
    """How many bytes a file has, and their CRC-32 as zlib computes it."""

    num_bytes: int
    crc32: Crc32

    def __post_init__(self) -> None:
        """Checks the size."""
        check_count("num_bytes of the file", self.num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFacts:
    """What both files of a pair hold, to tell whether they are the ones that a manifest is about.

    Attributes:
        dtype: name of the token dtype.
        num_documents, num_sequences, num_tokens: counts of the pair.
        largest_token: id; of the texts alone in multimodal data; None without integer tokens.
        tokens, index: facts about the `.bin` and the `.idx` file.
        index_start_crc32: checksum of the `.idx` file's header and first 1,000 lengths, which readers have at hand
            anyway; see `index_start_crc32`.
        copied_tokens: what is known of tokens that come from other pairs, see `CopiedTokens`; None if they do not.
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
        """Checks that the numbers fit together."""
        if self.copied_tokens not in (None, *get_args(CopiedTokens)):
            message = f"expected copied_tokens out of {', '.join(get_args(CopiedTokens))}, found {self.copied_tokens!r}"
            raise ConfigError(message)
        for name in ("num_documents", "num_sequences", "num_tokens"):
            check_count(f"{name} of the pair", getattr(self, name))
        if self.dtype not in DType.__members__:
            message = f"expected a dtype out of {', '.join(DType.__members__)}, found {self.dtype!r}"
            raise ConfigError(message)
        dtype = np.dtype(self.dtype)
        if self.tokens.num_bytes != self.num_tokens * dtype.itemsize:
            message = f"expected {self.num_tokens * dtype.itemsize} bytes for {self.num_tokens} tokens of {dtype}"
            message += f", found {self.tokens.num_bytes}"
            raise ConfigError(message)
        if self.largest_token is not None and (
            dtype.kind not in "iu" or self.num_tokens == 0 or self.largest_token > np.iinfo(dtype).max
        ):
            message = f"expected a largest token of {self.num_tokens} tokens of {dtype}, found {self.largest_token}"
            raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLedger:
    """What became of every document that was read; it balances.

    Attributes:
        num_read: documents of the input, blank lines included.
        num_kept: number of documents in the pair, those without tokens included that stay as empty documents.
        num_rejected: unusable ones.
        num_blank: lines of nothing but white space.
        num_duplicates: left out because an equal one was kept.
        num_empty: left out because they have no tokens.
        num_elsewhere: number of those that went to another pair, such as the other side of a split.
    """

    num_read: int
    num_kept: int
    num_rejected: int = 0
    num_blank: int = 0
    num_duplicates: int = 0
    num_empty: int = 0
    num_elsewhere: int = 0

    def __post_init__(self) -> None:
        """Checks that nothing is missing."""
        counts = dataclasses.asdict(self)
        for name, count in counts.items():
            check_count(f"{name} of the ledger", count)
        del counts["num_read"]
        if sum(counts.values()) != self.num_read:
            parts = " + ".join(f"{count} {name.removeprefix('num_')}" for name, count in counts.items())
            message = f"expected a ledger that balances, found {self.num_read} documents read, but {parts}"
            raise ConfigError(message)

    def __add__(self, other: DocumentLedger) -> DocumentLedger:
        """Returns the ledger of both."""
        counts = dataclasses.asdict(other)
        return DocumentLedger(**{name: count + counts[name] for name, count in dataclasses.asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord:
    """A file that was read: its path as named, its size, and what changes when it does, if that is known."""

    path: str
    num_bytes: int
    version: str | None = None

    def __post_init__(self) -> None:
        """Checks the size."""
        check_count("num_bytes of the input", self.num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that is recorded about a pair.

    Attributes:
        pair: what both files hold.
        tokenizer: tokenizer that made the tokens.
        options: what decided the bytes, by name: values of JSON.
        ledger: what became of every document.
        engine: what tokenized; for information, since it does not change the bytes.
        tokenloom_version: version of tokenloom that wrote the pair; likewise.
        inputs: the files that were read.
    """

    pair: PairFacts
    tokenizer: TokenizerIdentity
    options: Mapping[str, Any]
    ledger: DocumentLedger
    engine: str | None = None
    tokenloom_version: str
    inputs: tuple[InputRecord, ...] = ()

    def __post_init__(self) -> None:
        """Checks that the parts fit together."""
        if self.ledger.num_kept != self.pair.num_documents:
            message = f"expected {self.pair.num_documents} documents kept, those of the pair, "
            message += f"found {self.ledger.num_kept}"
            raise ConfigError(message)
        try:
            again = json.loads(json.dumps(dict(self.options), allow_nan=False))
        except (TypeError, ValueError) as error:
            message = f"expected options that JSON can hold, found {dict(self.options)!r}: {error}"
            raise ConfigError(message) from error
        object.__setattr__(self, "options", again)  # as they are read back: lists, not tuples


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
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """What made a pair, see `Manifest`."""

    tokenizer: TokenizerIdentity
    options: Mapping[str, Any]


def manifest_path(prefix: str) -> str:
    """Returns the path of the manifest of a prefix."""
    return prefix + ".manifest.json"


def read_manifest(prefix: str, *, settings: ObjectStorageSettings | None = None) -> Manifest | None:
    """Returns the manifest of a prefix, None if there is none."""
    path = manifest_path(prefix)
    data = read_if_there(path, _MOST_BYTES + 1, settings)
    return None if data is None else parse_manifest(data, path=path)


def read_manifest_head(
    prefix: str, *, copy: str | None = None, settings: ObjectStorageSettings | None = None
) -> ManifestHead | None:
    """Returns the head of the manifest of a prefix, None if there is none; one open and one read, as a rule.

    A pair in object storage is asked once per node and version of its index, and the answer is kept beside the local
    copy of that. A request of every process for every pair would make starts half as long again.
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
        largest, start = found.groups()
        with suppress(UnusableJsonError):  # as the whole then is, too
            maker = _maker_of(data[found.end() : end])
            largest_token = None if largest == b"null" else int(largest)
            return ManifestHead(maker.tokenizer, largest_token, int(start, 16), maker.options)
    manifest = read_manifest(prefix, settings=settings)  # not as we write it, or the tokenizer's path is very long
    if manifest is None:
        return None
    pair = manifest.pair
    return ManifestHead(manifest.tokenizer, pair.largest_token, pair.index_start_crc32, manifest.options)


@functools.lru_cache(maxsize=1)
def _maker_of(members: bytes) -> _Maker:
    """Returns what JSON without its braces says; the manifests of a blend have it in common, as a rule."""
    return from_members(_Maker, parse_json(b"{%b}" % members))


def manifest_document(manifest: Manifest) -> dict[str, Any]:
    """Returns what the file of a manifest holds, in its order."""
    members = members_of(manifest)
    inputs = members.pop("inputs")
    num_bytes = sum(record.num_bytes for record in manifest.inputs)
    totals = {"num_input_files": len(inputs), "num_input_bytes": num_bytes}
    return {"format": FORMAT, "version": VERSION, **members, **totals, "inputs": inputs}


def manifest_bytes(manifest: Manifest) -> bytes:
    """Returns the file of a manifest."""
    data = json.dumps(manifest_document(manifest), indent=2, allow_nan=False).encode() + b"\n"
    if len(data) > _MOST_BYTES:
        message = f"expected a manifest of at most {_MOST_BYTES} bytes, found {len(data)}: "
        message += f"{len(manifest.inputs)} inputs"
        raise ConfigError(message, hint="make several pairs of so many files")
    return data


def parse_manifest(data: bytes, *, path: str) -> Manifest:
    """Returns the manifest that some JSON holds."""
    name = os.path.basename(path)
    hint = f"`{name}` is damaged or foreign; write the pair again, or remove the file to do without it"
    try:
        top = parse_json(data, most_bytes=_MOST_BYTES)
    except UnusableJsonError as error:
        message = f"`{path}`: expected JSON, found {len(data)} bytes that are none: {error}"
        raise DatasetFormatError(message, hint=hint) from error
    if type(top) is not dict or top.get("format") != FORMAT:
        message = f"`{path}`: expected an object whose `format` is {FORMAT!r}, found something else"
        raise DatasetFormatError(message, hint=hint)
    try:
        if (version := top.get("version")) != VERSION:
            message = f"`{path}`: expected version {VERSION}, found {version!r}"
            raise DatasetFormatError(message, hint="it was written by something newer; use that, or remove the file")
        return from_members(Manifest, top)
    except UnusableJsonError as error:
        message = f"`{path}`{error}"
        raise DatasetFormatError(message, hint=hint) from error


def read_if_there(path: str, num_bytes: int, settings: ObjectStorageSettings | None) -> bytes | None:
    """Returns the first bytes of a file or object, as many as there are; None if there is none."""
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
        _check_start(pair, head.index_start_crc32)
    return head


def manifest_of(pair: IndexedDataset) -> Manifest | None:
    """Returns the manifest of a pair, None if there is none."""
    if (manifest := read_manifest(pair.path_prefix, settings=pair.object_storage)) is not None:
        _check_start(pair, manifest.pair.index_start_crc32)
    return manifest


def _check_start(pair: IndexedDataset, expected: int) -> None:
    """Compares the start of the index, which is in memory: counts, and the lengths of the first documents.

    Writers that know of manifests never leave one beside other data; other writers are found out here.
    """
    if index_start_crc32(pair.index.header, pair.index.sequence_lengths) != expected:
        message = f"`{manifest_path(pair.path_prefix)}` was written for another pair than the one that is there"
        raise DatasetFormatError(message, hint="if the data were replaced on purpose, remove it; else write them again")


def index_start_crc32(header: Header, lengths: NDArray[np.int32]) -> int:
    """Returns the checksum that tells an index from another without reading a byte that is not in memory anyway.

    Args:
        header: header of the index.
        lengths: int32[num_sequences], tokens per sequence; the first 1,000 count.
    """
    return zlib.crc32(np.ascontiguousarray(lengths[:START_LENGTHS], dtype=np.int32).data, zlib.crc32(header.pack()))


def combined_manifest(
    pairs: Iterable[IndexedDataset], *, copied_tokens: CopiedTokens = "inherited"
) -> Callable[[PairFacts], Manifest] | None:
    """Returns what makes the manifest of datasets that become one, or of some of their documents.

    None if no dataset has a manifest, or only some do; the latter is logged.

    Args:
        pairs: the datasets, in order; one may be there several times.
        copied_tokens: what is known of their tokens, for the manifest; see there. What one of theirs says counts, too.
    """
    found: dict[str, Manifest | None] = {}
    order = []
    for pair in pairs:
        order.append(pair.path_prefix)
        if pair.path_prefix not in found:
            found[pair.path_prefix] = manifest_of(pair)
    manifests = {prefix: manifest for prefix, manifest in found.items() if manifest is not None}
    check_one_tokenizer(manifests)
    if len(manifests) < len(found):
        if manifests:
            lacking = next(prefix for prefix in found if prefix not in manifests)
            _LOGGER.warning("the result has no manifest, because `%s` has none", lacking)
        return None
    chosen = [manifests[prefix] for prefix in order]
    if any(each.pair.copied_tokens == "unverified" for each in chosen):
        copied_tokens = "unverified"
    return lambda pair: combine_manifests(chosen, pair=dataclasses.replace(pair, copied_tokens=copied_tokens))


def check_one_tokenizer(manifests: Mapping[str, Manifest]) -> None:
    """Checks that pairs may become one."""
    owner, first = next(iter(manifests.items()), ("", None))
    for prefix, other in manifests.items():
        if first is not None and other.tokenizer.fingerprint != first.tokenizer.fingerprint:
            found = f"{first.tokenizer.describe()} for `{owner}` and {other.tokenizer.describe()} for `{prefix}`"
            message = f"expected one tokenizer, found {found}"
            raise ConfigError(message, hint="tokenize one of them again; without manifests, nothing is compared")


def combine_manifests(manifests: Sequence[Manifest], *, pair: PairFacts) -> Manifest:
    """Returns the manifest of pairs that became one, or of some of their documents: ledgers added, inputs in order.

    An option that was not the same for all is recorded as `{"several": [...]}`, with its values.
    """
    from importlib.metadata import version  # ten milliseconds, which readers need not wait for

    first = manifests[0]
    ledger = sum((each.ledger for each in manifests[1:]), first.ledger)
    num_elsewhere = ledger.num_kept - pair.num_documents
    return Manifest(
        pair=pair,
        tokenizer=first.tokenizer,
        options=_common_options([each.options for each in manifests]),
        ledger=dataclasses.replace(
            ledger, num_kept=pair.num_documents, num_elsewhere=ledger.num_elsewhere + num_elsewhere
        ),
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
    """Returns what is known of a tokenizer."""
    kind = optional_attribute(tokenizer, "kind")
    return TokenizerIdentity(
        kind=kind if isinstance(kind, str) else type(tokenizer).__name__,
        sha256=fingerprint_of(tokenizer),
        path=_path_of(tokenizer),
        vocab_size=optional_number(tokenizer, "vocab_size"),
        bos=bos,
        eod=eod,
    )


def fingerprint_of(tokenizer: Any) -> str | None:
    """Returns the SHA-256 of a tokenizer, if it offers one: as `sha256`, or among its `unique_identifiers`."""
    found = optional_attribute(tokenizer, "sha256")
    if found is None:
        found = _identifier(tokenizer, "sha256")
    return found if isinstance(found, str) and _SHA256.fullmatch(found) else None


def optional_number(tokenizer: Any, name: str) -> int | None:
    """Returns an attribute of a tokenizer that is an integer from 0 on; None where it has none."""
    try:
        number = operator.index(optional_attribute(tokenizer, name))
    except TypeError:
        return None
    return number if number >= 0 else None


def optional_attribute(tokenizer: Any, name: str) -> Any:
    """Returns an attribute of a tokenizer, None where it has none or raises."""
    try:
        return getattr(tokenizer, name)
    except Exception:  # noqa: BLE001 - tokenizers raise what they like for a token they lack
        return None


def _path_of(tokenizer: Any) -> str | None:
    path = optional_attribute(tokenizer, "path")
    if path is None:
        path = _identifier(tokenizer, "tokenizer_path")
    if isinstance(path, list) and len(path) == 1:
        (path,) = path
    return path if isinstance(path, str) else None


def _identifier(tokenizer: Any, name: str) -> Any:
    identifiers = optional_attribute(tokenizer, "unique_identifiers")
    return identifiers.get(name) if hasattr(identifiers, "get") else None
