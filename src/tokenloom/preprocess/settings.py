"""Settings of preprocessing jobs; each class states which settings decide the output bytes."""

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
"""Smallest `shard_bytes`: each shard costs several files and some milliseconds."""

_MAX_BLOCK_BYTES = 64 << 20
_MOST_SPLITS = 127
_NAME = re.compile("[A-Za-z0-9_-]*[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecordBudget:
    """The maximum number or share of bad records that a job accepts.

    Attributes:
        most: maximum number of bad records; None for no maximum.
        most_share: maximum share of bad records among all records, in [0, 1]; checked only at the end of the job.
    """

    most: int | None = 0
    most_share: float = 1.0

    def __post_init__(self) -> None:
        check_types(self)
        if self.most is not None:
            checked_integer("number of bad records", self.most, at_least=0)
        if not 0 <= self.most_share <= 1:
            raise ConfigError(f"share of bad records: must be in [0, 1], got {self.most_share!r}")

    @classmethod
    def parse(cls, text: str) -> BadRecordBudget:
        """Parses a budget such as `100` or `0.1%`; raises `ConfigError` for other text."""
        try:
            if text.endswith("%"):
                return cls(most=None, most_share=parse_percentage(text, "it"))
            return cls(most=parse_integer(text, "it", at_least=0))
        except ConfigError as error:
            hint = "give a number of bad records such as 100, or a share such as 0.1%"
            raise ConfigError(f"budget of bad records {quoted(text)}: {error.message}", hint=hint) from None

    def is_exceeded(self, num_bad: int, num_records: int | None = None) -> bool:
        """Returns whether there are too many bad records; checks the share only if `num_records` is given."""
        is_over = self.most is not None and num_bad > self.most
        return is_over or (num_records is not None and num_bad > self.most_share * num_records)

    def __str__(self) -> str:
        share = f"{100 * self.most_share:.4g} %"
        limits = [*([] if self.most is None else [f"{self.most}"]), *([share] if self.most_share < 1 else [])]
        return " or ".join(limits) or "any number"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings(ReadLimits):
    """Settings of every preprocessing job; see also `ReadLimits`.

    Attributes:
        bad_records: maximum number or share of bad records; bad records are written to PREFIX.rejected.jsonl.
        shard_bytes: bytes of input files per shard, before decompression; a process that dies loses at most one shard.
        record_timeout_seconds: time limit for tokenizing a block; a shard with a slower block is tokenized again record
            by record, and a record that exceeds the limit is bad.
        worker_timeout_seconds: time without a heartbeat after which another process takes over a shard.
        origins: write PREFIX.origins.npy, with the input file and record number of each document.
        document_hashes: write PREFIX.hashes.npy, a hash of each document's input text; see `hash_of_text`.
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
        """Returns the settings for the manifest: those of this class that decide bytes and differ from the default."""
        return ReadLimits.recorded(self) | ({"document_hashes": True} if self.document_hashes else {})

    def of_job(self) -> dict[str, Any]:
        """Returns the settings that must be equal in all processes of a job, as JSON values."""
        return {"shard_bytes": self.shard_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSettings(JobSettings):
    """Settings for preprocessing text; see also `JobSettings`.

    Attributes:
        keys: keys or columns of the texts in each record; `meta.text` is the key `text` in the object `meta`. Plain
            text files have the key `text`.
        input_format: format of all inputs (default: detect the format of each file by its name); text-files also reads
            the files of a folder that have unknown suffixes.
        append_eod: append the tokenizer's end-of-document token to each nonempty document.
        prepend_bos: prepend the tokenizer's beginning-of-document token to each nonempty document.
        template_tokens: add the special tokens of the tokenizer's post-processor (such as "[CLS]") to each text,
            even if the text is empty; the tokens of `prepend_bos` and `append_eod` then surround these tokens.
        split_sentences: write one sequence per sentence, to PREFIX_KEY_sentence.
        keep_newlines: keep the white space after each sentence.
        drop_duplicates: of documents with equal texts, keep only the first.
        shares: share of documents per split, assigned by a hash of the texts; empty for no splits.
        split_seed: seed for assigning documents to splits.
        engine: library that encodes texts; auto: gigatoken if it gives equal ids, else the tokenizer's own library.
        block_bytes: bytes of text that a thread tokenizes at once; None for the fastest measured size.
        one_pair_per_file: write separate datasets for each input file, named after the file, in the folder PREFIX.
        exact_prefix: write PREFIX.bin and PREFIX.idx, without `_KEY_document` in the name; needs exactly one key.
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
            (len(shares) <= _MOST_SPLITS, "shares", f"must have at most {_MOST_SPLITS} splits"),
            (are_names, "shares", "split names must consist of letters, digits, `-` and `_`"),
        ):
            if not holds:
                raise ConfigError(f"`{name}`: {rule}, got {getattr(self, name)!r}")

    @property
    def hashes_documents(self) -> bool:
        """Whether documents must be hashed, to find duplicates or to assign splits."""
        return self.drop_duplicates or bool(self.shares)

    def of_shards(self) -> dict[str, Any]:
        """Returns the settings that decide the bytes of a shard, as JSON values.

        Omits bad-record budget, origins and memory limits, which do not change bytes. Includes `engine`, although all
        engines give equal ids: users who distrust one engine choose the other.
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
        """Returns the settings that decide the bytes of the datasets, as JSON values."""
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
    """Settings for preprocessing conversations; see also `JobSettings`.

    Attributes:
        chat_template: chatml (built in) or the path of a Jinja file (default: the tokenizer's own template); ignored
            for the schema `text`.
        schema: schema of the records (default: detect the schema by the columns).
        engine: library that encodes texts; auto: gigatoken if it gives equal ids, else the tokenizer's own library.
    """

    shard_bytes: Bytes = 64 << 20
    chat_template: str | None = None
    schema: Schema | None = None
    engine: EngineName = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalSettings(JobSettings):
    """Settings for preprocessing image-text pairs; see also `JobSettings`.

    Attributes:
        text_key: key of the text in a record.
        image_key: key of the image path in a record; paths are relative to the folder of the input file.
        append_eod: append the tokenizer's end-of-document token to each nonempty text.
        pad_length: number of tokens of each nonempty text: a longer text is truncated, a shorter text is padded with
            end-of-document tokens; needs `append_eod`.
        shard_bytes: bytes of the input file per shard, not counting the images that its records name. If the input is a
            folder, a shard has texts and images of up to 256 × `shard_bytes` together.
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
                raise ConfigError("`pad_length`: needs `append_eod`, whose token pads the texts")
