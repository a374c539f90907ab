"""What a user decides about a corpus, and what of it decides the bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.limits import (
    MEMORY_BYTES,
    RECORD_BYTES,
    WINDOW_BYTES,
    check_limits,
    check_shard_bytes,
    recorded_limits,
)
from tokenloom.numbers import checked_number, parse_integer, parse_percentage, quoted
from tokenloom.setting_types import check_types
from tokenloom.tokenizers.kinds import ENGINES, EngineName

RECORD_TIMEOUT_SECONDS = 600.0
CHAT_SHARD_BYTES = 64 << 20
IMAGE_RECORD_SHARD_BYTES = 1 << 20
"""Shard of records that lead to images: each image may have some 100 kB."""

IMAGE_FOLDER_SHARD_BYTES = 256 << 20

_MAX_BLOCK_BYTES = 64 << 20
_MOST_SPLITS = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecordBudget:
    """How many bad records are set aside before they are too many.

    Attributes:
        most: bad records at most; None for any number.
        most_share: largest share of all records, from 0 to 1; looked at when all were read.
    """

    most: int | None = 0
    most_share: float = 1.0

    def __post_init__(self) -> None:
        check_types(self)
        if self.most is not None and self.most < 0:
            message = f"expected a number of bad records from 0 on, got {self.most!r}"
            raise ConfigError(message)
        if not 0 <= self.most_share <= 1:
            message = f"expected a share of bad records from 0 to 1, got {self.most_share!r}"
            raise ConfigError(message)

    @classmethod
    def parse(cls, text: str) -> BadRecordBudget:
        """Returns the budget that `100` or `0.1%` says.

        Raises:
            ConfigError: it says neither.
        """
        try:
            if text.endswith("%"):
                return cls(most=None, most_share=parse_percentage(text, "it"))
            return cls(most=parse_integer(text, "it", at_least=0))
        except ConfigError as error:
            expected = "expected a number of bad records such as 100, or a share such as 0.1%"
            message = f"{expected}, got {quoted(text)}: {error.message}"
            raise ConfigError(message) from None

    @property
    def allows_none(self) -> bool:
        """Whether the first bad record is an error."""
        return self.most == 0

    def is_exceeded(self, num_bad: int, num_records: int | None = None) -> bool:
        """Whether there are too many; the share counts where the number of records is known."""
        if self.most is not None and num_bad > self.most:
            return True
        return num_records is not None and num_bad > self.most_share * num_records

    def __str__(self) -> str:
        share = f"{100 * self.most_share:.4g} %"
        limits = [*([] if self.most is None else [f"{self.most}"]), *([share] if self.most_share < 1 else [])]
        return " or ".join(limits) or "any number"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What any job asks of settings; see `CorpusSettings`."""

    bad_records: BadRecordBudget = field(default_factory=BadRecordBudget)
    shard_bytes: int = 256 << 20
    record_timeout_seconds: float = RECORD_TIMEOUT_SECONDS
    worker_timeout_seconds: float = 120.0
    origins: bool = True
    document_hashes: bool = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_types(self)
        check_shard_bytes(self.shard_bytes)
        for name in ("record_timeout_seconds", "worker_timeout_seconds"):
            checked_number(name, getattr(self, name), above=0)

    def of_hashes(self) -> dict[str, Any]:
        """Returns what is said of the hashes of documents, where they are asked for."""
        return {"document_hashes": True} if self.document_hashes else {}

    def of_job(self) -> dict[str, Any]:
        """Returns what processes that share a job must agree on, as values for JSON."""
        return {"shard_bytes": self.shard_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSettings(JobSettings):
    """How a corpus becomes datasets.

    Attributes:
        keys: keys of the texts in each record; `meta.text` is the `text` in `meta`. Plain text is under `text`.
        input_format: format of all inputs; None to tell it from each file.
        prepend_bos, append_eod: whether the tokenizer's `bos` begins, and its `eod` ends, each document with tokens.
        template_tokens: whether the special tokens that the tokenizer's own template puts around a text ("[CLS]" and
            "[SEP]", say) are put around each, an empty one too, before those.
        split_sentences: whether each sentence becomes a sequence of its document.
        keep_newlines: whether white space between sentences stays, with the sentence before it.
        drop_duplicates: whether of documents with the same texts only the first is kept.
        shares: name to share of the documents of each split, by the hash of their texts; empty for no split.
        split_seed: another one deals the documents to the splits otherwise.
        bad_records: how many are set aside in `PREFIX.rejected.jsonl`.
        engine: `auto` takes `gigatoken` where it gives the same ids, and says why in the summary.
        shard_bytes: bytes of the input files, as they are, in a shard; a shard is what is lost when a process dies.
        memory_bytes: a record batch of a table that takes more, once it is decoded, is an error.
        max_record_bytes: longer records (lines, files of text, texts of a row) are bad records.
        max_window_bytes: a compressed file that makes its reader hold more (the window of Zstandard, the dictionary of
            xz) is an error.
        block_bytes: text that a thread takes at once; None for what measured best.
        record_timeout_seconds: most time that a thread may take for the records it is given at once, or for one alone.
        worker_timeout_seconds: time after which a process that shows no sign of life loses its shard to another.
        one_pair_per_file: each input file becomes datasets of its own, named after it, in the folder of the prefix.
        exact_prefix: with one key, whether the datasets are called `PREFIX`, without the key and what a sequence is.
        origins: whether `PREFIX.origins` is written beside each pair: of which file and record each document is.
        document_hashes: whether `PREFIX.hashes` is written beside each pair: the hash of the text of each document, as
            it stands in the input, by which `hash_of_text` finds a text again.
    """

    keys: tuple[str, ...] = ("text",)
    input_format: str | None = None
    prepend_bos: bool = False
    append_eod: bool = False
    template_tokens: bool = False
    split_sentences: bool = False
    keep_newlines: bool = False
    drop_duplicates: bool = False
    shares: Mapping[str, float] = field(default_factory=dict)
    split_seed: int = 0
    engine: EngineName = "auto"
    memory_bytes: int = MEMORY_BYTES
    max_record_bytes: int = RECORD_BYTES
    max_window_bytes: int = WINDOW_BYTES
    block_bytes: int | None = None
    one_pair_per_file: bool = False
    exact_prefix: bool = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        JobSettings.__post_init__(self)
        self._require(bool(self.keys) and len(set(self.keys)) == len(self.keys), "distinct keys, at least one", "keys")
        self._require(self.engine in ENGINES, f"an engine out of {', '.join(ENGINES)}", "engine")
        formats = (None, *FORMATS)
        self._require(self.input_format in formats, f"a format out of {', '.join(FORMATS)}", "input_format")
        check_limits(
            max_record_bytes=self.max_record_bytes,
            max_window_bytes=self.max_window_bytes,
            memory_bytes=self.memory_bytes,
        )
        in_range = self.block_bytes is None or 1 <= self.block_bytes <= _MAX_BLOCK_BYTES
        self._require(in_range, f"block_bytes from 1 to {_MAX_BLOCK_BYTES}", "block_bytes")
        if self.keep_newlines and not self.split_sentences:
            message = "expected `split_sentences` with `keep_newlines`, found none"
            raise ConfigError(message, hint="without, texts are not touched, and nothing needs to be kept")
        if self.exact_prefix and len(self.keys) > 1:
            message = f"expected one key with `exact_prefix`, found {len(self.keys)}: {', '.join(self.keys)}"
            raise ConfigError(message, hint="the datasets of all keys would have one name")
        shares = [checked_number(f"share of {name!r}", share) for name, share in self.shares.items()]
        are_shares = not shares or (min(shares) > 0 and math.isclose(sum(shares), 1, abs_tol=1e-9))
        self._require(are_shares, "shares above 0 that add up to 1", "shares")
        self._require(len(shares) <= _MOST_SPLITS, f"at most {_MOST_SPLITS} splits", "shares")
        self._require(0 <= self.split_seed < 1 << 64, "a split_seed in [0, 2**64)", "split_seed")
        self._require(all(map(_is_name, self.shares)), "splits named by letters, digits, `-` and `_`", "shares")

    def _require(self, holds: bool, expected: str, name: str) -> None:  # noqa: FBT001 - private, and reads as a sentence
        if not holds:
            value = getattr(self, name)
            shown = list(value) if name == "keys" else value
            message = f"expected {expected}, got {shown!r}"
            raise ConfigError(message)

    @property
    def hashes_documents(self) -> bool:
        """Whether the texts of each document are hashed, to tell duplicates or to deal documents to splits."""
        return self.drop_duplicates or bool(self.shares)

    @property
    def level(self) -> str:
        """What a sequence is, as the names of datasets say it."""
        return "sentence" if self.split_sentences else "document"

    def of_shards(self) -> dict[str, Any]:
        """Returns what decides what a shard holds, as values for JSON.

        Not how many bad records are too many, nor whether origins are written, nor the memory that reading may take: a
        shard that is done holds the same whatever the answer. An engine is asked for by who doubts another one.
        """
        return {
            "keys": list(self.keys),
            "prepend_bos": self.prepend_bos,
            "append_eod": self.append_eod,
            "split_sentences": self.split_sentences,
            "keep_newlines": self.keep_newlines,
            "hashes_documents": self.hashes_documents,
            **recorded_limits(self.max_record_bytes),
            "engine": self.engine,
            **self.of_hashes(),
            **({"template_tokens": True} if self.template_tokens else {}),
        }

    def of_datasets(self) -> dict[str, Any]:
        """Returns what decides what the datasets hold, as values for JSON."""
        return self.of_shards() | {
            "input_format": self.input_format,
            "drop_duplicates": self.drop_duplicates,
            "shares": dict(self.shares),
            "split_seed": self.split_seed if self.shares else 0,
        }

    def of_job(self) -> dict[str, Any]:
        """Returns what processes that share a job must agree on, as values for JSON."""
        return {
            **self.of_datasets(),
            **JobSettings.of_job(self),
            "one_pair_per_file": self.one_pair_per_file,
            **({"exact_prefix": True} if self.exact_prefix else {}),
        }


def _is_name(name: str) -> bool:
    return bool(name) and name.isascii() and name.replace("-", "").replace("_", "").isalnum()
