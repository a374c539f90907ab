"""What a user decides about a corpus, and what of it decides the bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.inputs import ReadLimits
from tokenloom.inputs.formats import FORMATS
from tokenloom.numbers import checked_integer, checked_number, parse_integer, parse_percentage, quoted
from tokenloom.preprocess.schemas import SCHEMAS, Schema
from tokenloom.setting_types import Bytes, Count, Seconds, check_types
from tokenloom.tokenizers.kinds import ENGINES, EngineName

LEAST_SHARD_BYTES = 64_000
"""A shard costs its own files and some milliseconds: a corpus in shards of single bytes takes for ever."""

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
        if self.most is not None:
            checked_integer("number of bad records", self.most, at_least=0)
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
class JobSettings(ReadLimits):
    """What any job asks of settings; see also `ReadLimits`.

    Attributes:
        bad_records: how many bad records are set aside in PREFIX.rejected.jsonl, before they are too many.
        shard_bytes: bytes of the input files, as they are, in a shard, which is what is lost when a process dies.
        record_timeout_seconds: most time for the records that a thread takes at once, and for one alone; one that takes
            longer is bad.
        worker_timeout_seconds: time without a sign of life after which a process loses its shard to another.
        origins: write PREFIX.origins.npy, which says of which file and record each document is.
        document_hashes: write PREFIX.hashes.npy, a hash of each document's text as it stands in the input, by which
            `hash_of_text` finds a text again.
    """

    bad_records: BadRecordBudget = field(default_factory=BadRecordBudget)
    shard_bytes: Bytes = 256 << 20
    record_timeout_seconds: Seconds = 600.0
    worker_timeout_seconds: Seconds = 120.0
    origins: bool = True
    document_hashes: bool = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_types(self)
        ReadLimits.__post_init__(self)
        checked_integer("shard_bytes", self.shard_bytes, at_least=LEAST_SHARD_BYTES)
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
    """How a corpus becomes datasets; see also `JobSettings`.

    Attributes:
        keys: keys or columns of the texts in each record; `meta.text` is the `text` in `meta`. Plain text is under
            `text`.
        input_format: format of all inputs (default: told from each file); text-files also takes files of a folder whose
            names tell no other format.
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
        block_bytes: text that a thread takes at once; None for what measured best.
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
        """Checks the settings."""
        JobSettings.__post_init__(self)
        self._require(bool(self.keys) and len(set(self.keys)) == len(self.keys), "distinct keys, at least one", "keys")
        self._require(self.engine in ENGINES, f"an engine out of {', '.join(ENGINES)}", "engine")
        formats = (None, *FORMATS)
        self._require(self.input_format in formats, f"a format out of {', '.join(FORMATS)}", "input_format")
        if self.block_bytes is not None:
            checked_integer("block_bytes", self.block_bytes, at_least=1, below=_MAX_BLOCK_BYTES + 1)
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
        checked_integer("split_seed", self.split_seed, at_least=0, below=1 << 64)
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
            **self.recorded(),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings(JobSettings):
    """How conversations become a dataset with roles; see also `JobSettings`.

    Attributes:
        chat_template: chatml, which is built in, or a file with a Jinja template (default: the tokenizer's own); not
            used for texts.
        schema: form of the records (default: told from their columns).
        engine: what encodes texts; auto: gigatoken if it gives the same ids, else the tokenizer's own library.
    """

    shard_bytes: Bytes = 64 << 20
    chat_template: str | None = None
    schema: Schema | None = None
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        """Checks the settings."""
        JobSettings.__post_init__(self)
        if self.schema is not None and self.schema not in SCHEMAS:
            message = f"expected a schema out of {', '.join(SCHEMAS)}, got {self.schema!r}"
            raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalSettings(JobSettings):
    """How texts and images become a dataset; see also `JobSettings`.

    Attributes:
        text_key: key of the text in a record.
        image_key: key of the image's path in a record, from the file's folder on.
        append_eod: end each text that has tokens with the tokenizer's end-of-document token.
        pad_length: cut texts off at so many tokens, or fill them up to it with that token; needs `append_eod`.
        shard_bytes: bytes of the input file, as it is, in a shard, which is what is lost when a process dies: its
            records lead to images. Of the files of a folder, 256 times as many.
    """

    shard_bytes: Bytes = 1 << 20
    text_key: str = "text"
    image_key: str = "image"
    append_eod: bool = False
    pad_length: Count | None = None

    def __post_init__(self) -> None:
        """Checks the settings."""
        JobSettings.__post_init__(self)
        if self.pad_length is not None:
            checked_integer("pad_length", self.pad_length, at_least=1)
            if not self.append_eod:
                message = "expected `append_eod` with `pad_length`, found none"
                raise ConfigError(message, hint="texts are filled up with the end-of-document token")


def _is_name(name: str) -> bool:
    return bool(name) and name.isascii() and name.replace("-", "").replace("_", "").isalnum()
