"""Options as Megatron's tools call them, on the commands that do the same; and what they stand for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from tokenloom.cli.options import WithoutEffect, Written
from tokenloom.errors import ConfigError
from tokenloom.setting_types import Count, Number

_TEMPLATED = ("HuggingFaceTokenizer", "GPT2BPETokenizer", "GPT2BPE", "BertWordPieceLowerCase", "BertWordPieceCase")
"""Types whose texts the reference puts into the tokenizer's own template, unless it is told not to."""

_LANGUAGE = "english"
_NO_TRIALS = "nothing is tried: a job has a thread per processor, and says its speed as it goes"
_SAME = "the ids of texts do not depend on it"


@dataclass(frozen=True, kw_only=True)
class ReferenceTokenizer:
    """A tokenizer as Megatron's tools name one.

    Attributes:
        tokenizer_type: GPT2BPE, HuggingFaceTokenizer, SentencePieceTokenizer, TikTokenizer, BertWordPieceLowerCase,
            NullTokenizer, …: the ids that Megatron's tokenizer of this type gives; nothing is downloaded.
        tokenizer_model: file or folder of the tokenizer.
        vocab_file: GPT-2's vocab.json, or BERT's vocab.txt.
        merge_file: GPT-2's merges.txt.
        vocab_size: number of ids of NullTokenizer, TikTokenizer.
        tokenizer_special_tokens: further special tokens.
        tiktoken_num_special_tokens: ids kept for them (default 1000).
        null_tokenizer_eod_id: id that ends a document.
        tokenizer_hf_no_include_special_tokens: put no special tokens of the tokenizer's own template around each text.
    """

    GROUP: ClassVar[str] = "a tokenizer as Megatron's tools name it, instead of --tokenizer"
    WITHOUT_EFFECT: ClassVar[tuple[WithoutEffect, ...]] = (
        WithoutEffect(
            (
                "--tokenizer-hf-include-special-tokens",
                "--tokenizer-hf-use-fast",
                "--tokenizer-hf-no-use-fast",
                "--pad-vocab-size",
                "--no-pad-vocab-size",
            ),
            _SAME,
            nargs=0,
        ),
        WithoutEffect(("--padded-vocab-size", "--vocab-extra-ids", "--make-vocab-size-divisible-by"), _SAME),
        WithoutEffect(("--tokenizer-metadata", "--metadata-path"), "the type says all that is needed"),
        WithoutEffect(("--tokenizer-sentencepiece-legacy",), "special tokens are the model's own", nargs=0),
        WithoutEffect(("--trust-remote-code",), "no code of a tokenizer is run", nargs=0),
        WithoutEffect(("--use-gigatoken",), "it is used wherever it is exact, see --engine", nargs=0),
    )

    tokenizer_type: str | None = None
    tokenizer_model: Annotated[str | None, Written(metavar="PATH")] = None
    vocab_file: str | None = None
    merge_file: str | None = None
    vocab_size: Count | None = None
    tokenizer_special_tokens: Annotated[
        tuple[str, ...] | None,
        Written(names=("--tokenizer-special-tokens", "--special-tokens"), metavar="TOKEN"),
    ] = None
    tiktoken_num_special_tokens: Count | None = None
    null_tokenizer_eod_id: Number | None = None
    tokenizer_hf_no_include_special_tokens: bool = False

    @property
    def has_template(self) -> bool:
        """Whether the reference puts texts into the template of the tokenizer that these options name."""
        return self.tokenizer_type in _TEMPLATED and not self.tokenizer_hf_no_include_special_tokens


@dataclass(frozen=True, kw_only=True)
class ReferencePreprocessing:
    """What else Megatron's `preprocess_data.py` takes.

    Attributes:
        named_inputs: the inputs; text whose name does not tell its format is JSON lines.
        partitions: number of processes, among which --workers are divided.
        lang: language of sentences: english only.
        dataset_impl: the one format that there is.
    """

    GROUP: ClassVar[str] = "as Megatron's preprocess_data.py calls it"
    WITHOUT_EFFECT: ClassVar[tuple[WithoutEffect, ...]] = (
        WithoutEffect(("--keep-sequential-samples",), "documents have the order of the input in any case", nargs=0),
        WithoutEffect(("--log-interval",), "progress is shown by time"),
        WithoutEffect(("--find-optimal-num-workers",), _NO_TRIALS, nargs=0),
        WithoutEffect(("--workers-to-check",), _NO_TRIALS, nargs="+"),
        WithoutEffect(("--max-documents",), _NO_TRIALS),
        WithoutEffect(("--chat-template",), "texts are no conversations: see preprocess-chat"),
    )

    named_inputs: Annotated[tuple[str, ...], Written(names=("--input",), metavar="PATH")] = ()
    partitions: Count | None = None
    lang: Annotated[str, Written(metavar="LANGUAGE", help="language of sentences: english only")] = _LANGUAGE
    dataset_impl: Literal["mmap"] | None = None

    def __post_init__(self) -> None:
        """Refuses other languages."""
        if self.lang != _LANGUAGE:
            message = f"expected sentences in {_LANGUAGE}, found --lang {self.lang}"
            raise ConfigError(message, hint="split them before, a sentence of a list under each key")


def format_of(names: Sequence[str]) -> str | None:
    """Returns JSON lines for files whose names tell no other format: what Megatron's tool takes any file for."""
    from tokenloom.inputs.find import formats_by_name

    by_name = [formats_by_name(name) for name in names]
    told = {formats[0] for formats in by_name if len(formats) == 1}
    return "jsonl" if told <= {"jsonl"} and not any(map(os.path.isdir, names)) else None
