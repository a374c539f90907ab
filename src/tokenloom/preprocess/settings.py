"""Settings of jobs, and which of them decide the bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.inputs import ReadLimits
from tokenloom.inputs.formats import FORMATS
from tokenloom.numbers import checked_integer, checked_number, parse_integer, parse_percentage, quoted
from tokenloom.preprocess.schemas import Schema
from tokenloom.setting_types import Bytes, Count, Seconds, check_types
from tokenloom.tokenizers.kinds import EngineName

LEAST_SHARD_BYTES = 64_000
"""A shard costs its own files and some milliseconds: a corpus in shards of single bytes takes for ever."""

_MAX_BLOCK_BYTES = 64 << 20
_MOST_SPLITS = 127
_NAME = re.compile("[A-Za-z0-9_-]*[A-Za-z0-9][A-Za-z0-9_-]*")


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
        if self.most is not None:
            checked_integer("number of bad records", self.most, at_least=0)
        if not 0 <= self.most_share <= 1:
            raise ConfigError(f"share of bad records: must be from 0 to 1, got {self.most_share!r}")

    @classmethod
    def parse(cls, text: str) -> BadRecordBudget:
        """Returns the budget of a text such as `100` or `0.1%`; a `ConfigError` for any other text."""
        try:
            if text.endswith("%"):
                return cls(most=None, most_share=parse_percentage(text, "it"))
            return cls(most=parse_integer(text, "it", at_least=0))
        except ConfigError as error:
            hint = "write a number of bad records such as 100, or a share such as 0.1%"
            raise ConfigError(f"budget of bad records {quoted(text)}: {error.message}", hint=hint) from None

    def is_exceeded(self, num_bad: int, num_records: int | None = None) -> bool:
        """Whether there are too many; the share counts where the number of records is known."""
        is_over = self.most is not None and num_bad > self.most
        return is_over or (num_records is not None and num_bad > self.most_share * num_records)

    def __str__(self) -> str:
        share = f"{100 * self.most_share:.4g} %"
        limits = [*([] if self.most is None else [f"{self.most}"]), *([share] if self.most_share < 1 else [])]
        return " or ".join(limits) or "any number"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings(ReadLimits):
    """Settings of every job; see also `ReadLimits`.

    Attributes:
        bad_records: how many bad records are set aside in PREFIX.rejected.jsonl, before they are too many.
        shard_bytes: bytes of the input files, as they are, in a shard; a process that dies loses one shard at most.
        record_timeout_seconds: time limit for the records that a thread takes at once, and for one alone; a record that
            exceeds it is bad.
        worker_timeout_seconds: time without a heartbeat after which a process loses its shard to another.
        origins: write PREFIX.origins.npy, the file and record of each document.
        document_hashes: write PREFIX.hashes.npy, a hash of each document's text as it stands in the input; see
            `hash_of_text`.
    """

    bad_records: BadRecordBudget = field(default_factory=BadRecordBudget)
    shard_bytes: Bytes = 256 << 20
    record_timeout_seconds: Seconds = 600.0
    worker_timeout_seconds: Seconds = 120.0
    origins: bool = True
    document_hashes: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        ReadLimits.__post_init__(self)
        checked_integer("shard_bytes", self.shard_bytes, at_least=LEAST_SHARD_BYTES)
        for name in ("record_timeout_seconds", "worker_timeout_seconds"):
            checked_number(name, getattr(self, name), above=0)

    def recorded(self) -> dict[str, Any]:
        """Returns the settings of every job that decide the bytes, for manifests; none where they are the defaults."""
        return ReadLimits.recorded(self) | ({"document_hashes": True} if self.document_hashes else {})

    def of_job(self) -> dict[str, Any]:
        """Returns the settings that processes of one job must share, as values for JSON."""
        return {"shard_bytes": self.shard_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSettings(JobSettings):
    """How a corpus becomes datasets; see also `JobSettings`.

    Attributes:
        keys: keys or columns of the texts in each record; `meta.text` is the `text` in `meta`. Plain text is under
            `text`.
        input_format: format of all inputs (default: that of each file's name); text-files also takes files of a folder
            whose names have no known format.
        append_eod: end each document that has tokens with the tokenizer's end-of-document token.
        prepend_bos: begin each document that has tokens with the tokenizer's beginning-of-document token.
        template_tokens: put the special tokens of the tokenizer's own template ("[CLS]" and "[SEP]", say) around each
            text, an empty one too, before those.
        split_sentences: write a sequence per sentence, to PREFIX_KEY_sentence.
        keep_newlines: keep the white space between sentences, with the sentence before it.
        drop_duplicates: keep only the first of documents with the same texts.
        shares: share of documents of each split, assigned by a hash of their texts; empty for no split.
        split_seed: seed of the assignment of documents to splits.
        engine: what encodes texts; auto: gigatoken if it gives the same ids, else the tokenizer's own library.
        block_bytes: text that a thread takes at once; None for the size that measured best.
        one_pair_per_file: write datasets for each input file, named after it, in the folder PREFIX.
        exact_prefix: write PREFIX.bin and .idx, without the key and what a sequence is; of one key only.
    """

    keys: tuple[str, ...] = ("text",)
    input_format: str | None = None
    append_eod: bool = False
    prepend_bos: bool = False
    template_tokens: bool = False
    split_sentences: bool = False
    keep_newlines: bool = False
    drop_duplicates: bool = False
    shares: Mapping[str, float] = field(default_factory=dict)
    split_seed: int = 0
    engine: EngineName = "auto"
    block_bytes: Bytes | None = None
    one_pair_per_file: bool = False
    exact_prefix: bool = False

    def __post_init__(self) -> None:
        JobSettings.__post_init__(self)
        if self.block_bytes is not None:
            checked_integer("block_bytes", self.block_bytes, at_least=1, below=_MAX_BLOCK_BYTES + 1)
        checked_integer("split_seed", self.split_seed, at_least=0, below=1 << 64)
        shares = [checked_number(f"share of {name!r}", share) for name, share in self.shares.items()]
        add_up = not shares or (min(shares) > 0 and math.isclose(sum(shares), 1, abs_tol=1e-9))
        are_names = all(_NAME.fullmatch(name) for name in self.shares)
        for holds, name, rule in (
            (self.keys and len(set(self.keys)) == len(self.keys), "keys", "must be distinct, at least one"),
            (self.input_format in (None, *FORMATS), "input_format", f"must be one of {', '.join(FORMATS)}"),
            (self.split_sentences or not self.keep_newlines, "keep_newlines", "needs `split_sentences`"),
            (not self.exact_prefix or len(self.keys) == 1, "exact_prefix", f"needs one key, not {len(self.keys)}"),
            (add_up, "shares", "must be above 0 and add up to 1"),
            (len(shares) <= _MOST_SPLITS, "shares", f"must be of {_MOST_SPLITS} splits at most"),
            (are_names, "shares", "must be of splits named by letters, digits, `-` and `_`"),
        ):
            if not holds:
                raise ConfigError(f"`{name}`: {rule}, got {getattr(self, name)!r}")

    @property
    def hashes_documents(self) -> bool:
        """Whether the texts of each document are hashed, to find duplicates or to assign documents to splits."""
        return self.drop_duplicates or bool(self.shares)

    def of_shards(self) -> dict[str, Any]:
        """Returns the settings that decide the bytes of a shard, as values for JSON.

        The budget of bad records, origins and memory limits change no byte of a shard. `engine` counts: users choose
        one because they doubt another.
        """
        return {
            "keys": list(self.keys),
            "prepend_bos": self.prepend_bos,
            "append_eod": self.append_eod,
            "split_sentences": self.split_sentences,
            "keep_newlines": self.keep_newlines,
            "hashes_documents": self.hashes_documents,
            "engine": self.engine,
            **self.recorded(),
            **({"template_tokens": True} if self.template_tokens else {}),
        }

    def of_datasets(self) -> dict[str, Any]:
        """Returns the settings that decide the bytes of the datasets, as values for JSON."""
        return self.of_shards() | {
            "input_format": self.input_format,
            "drop_duplicates": self.drop_duplicates,
            "shares": dict(self.shares),
            "split_seed": self.split_seed if self.shares else 0,
        }

    def of_job(self) -> dict[str, Any]:
        return {
            **self.of_datasets(),
            **JobSettings.of_job(self),
            "one_pair_per_file": self.one_pair_per_file,
            **({"exact_prefix": True} if self.exact_prefix else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings(JobSettings):
    """How conversations become a dataset with roles; see also `JobSettings`.

    Attributes:
        chat_template: chatml, which is built in, or a file with a Jinja template (default: the tokenizer's own); not
            used for texts.
        schema: form of the records (default: found by their columns).
        engine: what encodes texts; auto: gigatoken if it gives the same ids, else the tokenizer's own library.
    """

    shard_bytes: Bytes = 64 << 20
    chat_template: str | None = None
    schema: Schema | None = None
    engine: EngineName = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalSettings(JobSettings):
    """How texts and images become a dataset; see also `JobSettings`.

    Attributes:
        text_key: key of the text in a record.
        image_key: key of the image's path in a record, from the file's folder on.
        append_eod: end each text that has tokens with the tokenizer's end-of-document token.
        pad_length: cut texts off at so many tokens, or fill them up to it with that token; needs `append_eod`.
        shard_bytes: bytes of the input file, as it is, in a shard: small, since its records lead to images. Of the
            files of a folder, 256 times as many.
    """

    shard_bytes: Bytes = 1 << 20
    text_key: str = "text"
    image_key: str = "image"
    append_eod: bool = False
    pad_length: Count | None = None

    def __post_init__(self) -> None:
        JobSettings.__post_init__(self)
        if self.pad_length is not None:
            checked_integer("pad_length", self.pad_length, at_least=1)
            if not self.append_eod:
                raise ConfigError("`pad_length`: needs `append_eod`, whose token fills texts up")
