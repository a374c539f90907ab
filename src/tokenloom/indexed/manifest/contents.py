"""What a pair was made of: tokenizer, options, ledger of documents, checksums and input files.

`PREFIX.manifest.json` holds it, see `indexed/manifest/file.py` and FORMAT.md. Later stages compare their tokenizer with
it, `tokenloom verify` the bytes of both files.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.layout import SIDECARS, DType, Header
from tokenloom.indexed.manifest.tokenizer_identity import TokenizerIdentity
from tokenloom.numbers import check_count
from tokenloom.storage.json_files import MAY_BE_MISSING, Crc32

START_LENGTHS = 1000
"""How many lengths the checksum of an index's start covers: with the header, its first page."""

CopiedTokens = Literal["compared", "inherited", "unverified"]
"""What is known of tokens that were copied from other pairs, or are still there. "compared": all were read and found to
be those of the manifests beside them. "inherited": their checksum follows from those manifests, and they were not read
for it, so that reading them tells. "unverified": some came from pairs that were not compared, and the checksum is of
what came.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChecksum:
    """How many bytes a file has, and their CRC-32 as zlib computes it."""

    num_bytes: int
    crc32: Crc32

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_count("num_bytes of the file", self.num_bytes)
        if not 0 <= self.crc32 < 2**32:
            message = f"expected crc32 in [0, 2**32), found {self.crc32!r}"
            raise ConfigError(message)


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
        roles: facts about the `.roles` file; None if there is none, or it was written before manifests told of it.
        origins, hashes: facts about the `.origins` and the `.hashes` file; None where there are none.
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
    roles: FileChecksum | None = field(default=None, metadata=MAY_BE_MISSING)
    origins: FileChecksum | None = field(default=None, metadata=MAY_BE_MISSING)
    hashes: FileChecksum | None = field(default=None, metadata=MAY_BE_MISSING)
    copied_tokens: CopiedTokens | None = field(default=None, metadata=MAY_BE_MISSING)

    @property
    def beside(self) -> dict[str, FileChecksum | None]:
        """Facts about the files beside the pair, by their names in `SIDECARS`."""
        return {name: getattr(self, name) for name in SIDECARS}

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


def index_start_crc32(header: Header, lengths: NDArray[np.int32]) -> int:
    """Returns the checksum that tells an index from another without reading a byte that is not in memory anyway.

    Args:
        header: header of the index.
        lengths: int32[num_sequences], tokens per sequence; the first 1,000 count.
    """
    return zlib.crc32(np.ascontiguousarray(lengths[:START_LENGTHS], dtype=np.int32).data, zlib.crc32(header.pack()))


def check_one_tokenizer(manifests: Mapping[str, Manifest]) -> None:
    """Checks that pairs may become one.

    Args:
        manifests: manifests of the pairs, by prefix.

    Raises:
        ConfigError: they were made by different tokenizers, or with other tokens at the ends of documents.
    """
    owner, first = next(iter(manifests.items()), ("", None))
    for prefix, other in manifests.items():
        if first is not None and other.tokenizer.fingerprint != first.tokenizer.fingerprint:
            found = f"{first.tokenizer.describe()} for `{owner}` and {other.tokenizer.describe()} for `{prefix}`"
            message = f"expected one tokenizer, found {found}"
            raise ConfigError(message, hint="tokenize one of them again; without manifests, nothing is compared")


def combine_manifests(manifests: Sequence[Manifest], *, pair: PairFacts) -> Manifest:
    """Returns the manifest of pairs that became one, or of some of their documents: ledgers added, inputs in order.

    An option that was not the same for all is recorded as `{"several": [...]}`, with its values.

    Args:
        manifests: manifests of the pairs, in their order; at least one; `check_one_tokenizer` has passed them.
        pair: the facts of the result. Documents that are not in it went elsewhere.
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
