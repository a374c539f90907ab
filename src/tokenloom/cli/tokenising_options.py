"""The options of all commands that turn records into a pair, also as Megatron's tools call them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from tokenloom.cli.options import OneOf, WithoutEffect, Written, arguments_of
from tokenloom.errors import ConfigError
from tokenloom.preprocess.settings import BadRecordBudget, JobSettings
from tokenloom.setting_types import Count, Number
from tokenloom.tokenizers.kinds import KINDS

if TYPE_CHECKING:
    from tokenloom.preprocess.sharded import Runner
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_TEMPLATED = ("HuggingFaceTokenizer", "GPT2BPETokenizer", "GPT2BPE", "BertWordPieceLowerCase", "BertWordPieceCase")
"""Types whose texts the reference puts into the tokenizer's own template, unless it is told not to."""

_LANGUAGE = "english"


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
    WITHOUT_EFFECT: ClassVar[WithoutEffect] = {
        "the ids of texts do not depend on it": (
            "--tokenizer-hf-include-special-tokens --tokenizer-hf-use-fast --tokenizer-hf-no-use-fast --pad-vocab-size "
            "--no-pad-vocab-size --padded-vocab-size=N --vocab-extra-ids=N --make-vocab-size-divisible-by=N"
        ),
        "the type says all that is needed": "--tokenizer-metadata=N --metadata-path=N",
        "special tokens are the model's own": "--tokenizer-sentencepiece-legacy",
        "no code of a tokenizer is run": "--trust-remote-code",
        "it is used wherever it is exact, see --engine": "--use-gigatoken",
    }

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
    WITHOUT_EFFECT: ClassVar[WithoutEffect] = {
        "documents have the order of the input in any case": "--keep-sequential-samples",
        "progress is shown by time": "--log-interval=N",
        "nothing is tried: a job has a thread per processor, and says its speed as it goes": (
            "--find-optimal-num-workers --workers-to-check=N… --max-documents=N"
        ),
        "texts are no conversations: see preprocess-chat": "--chat-template=N",
    }

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


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions(ReferenceTokenizer):
    """Which tokenizer to load.

    Attributes:
        tokenizer: a tokenizer.json, a SentencePiece .model, a .tiktoken, GPT-2's vocab.json or BERT's vocab.txt, or a
            folder with one; byte: bytes are ids; null:N: texts are lists of ids below N.
        tokenizer_kind: kind of tokenizer; auto: told from the file's content.
        tiktoken_pattern: how tiktoken cuts texts into words: r50k, p50k, cl100k, o200k or an expression (default: what
            PATH.json says, or what belongs to a published file); v1 or v2 of TikTokenizer.
        eod_token: token that ends a document, where the tokenizer does not say.
    """

    ONE_OF: ClassVar[OneOf] = {
        "--tokenizer PATH (or --tokenizer-type)": (
            *("tokenizer", "tokenizer_type", "tokenizer_model"),
            *("vocab_file", "merge_file", "vocab_size"),
        )
    }

    tokenizer: Annotated[str | None, Written(metavar="PATH|byte|null:N")] = None
    tokenizer_kind: Annotated[str, Written(choices=("auto", *KINDS))] = "auto"
    tiktoken_pattern: str | None = None
    eod_token: str | None = None

    def load_tokenizer(self, *, bos_token: str | None = None) -> TextTokenizer:
        """Returns the tokenizer that the options name.

        Args:
            bos_token: token that begins a document, where the tokenizer does not say.
        """
        from tokenloom.tokenizers.load import load_tokenizer

        if self.tokenizer_type is None and self.tokenizer_model is None:
            for name in ("vocab_file", "merge_file", "vocab_size"):
                if getattr(self, name) is not None:
                    message = f"expected --tokenizer-type with --{name.replace('_', '-')}, found none"
                    raise ConfigError(message)
            return load_tokenizer(
                self.tokenizer,
                kind=self.tokenizer_kind,
                eod_token=self.eod_token,
                bos_token=bos_token,
                pattern=self.tiktoken_pattern,
            )
        if self.tokenizer is not None:
            other = "--tokenizer-type" if self.tokenizer_type else "--tokenizer-model"
            message = f"--tokenizer and {other} both name one"
            raise ConfigError(message, hint="leave one out")
        if self.tokenizer_type is None:
            return load_tokenizer(self.tokenizer_model, kind=self.tokenizer_kind, eod_token=self.eod_token)
        from tokenloom.megatron.versions import reference_version
        from tokenloom.tokenizers.reference_types import ReferenceTokenizerOptions, load_reference_tokenizer

        return load_reference_tokenizer(
            ReferenceTokenizerOptions.of(vars(self)),
            null_has_own_eod=reference_version() < (0, 17),
            eod_token=self.eod_token,
        )


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """By whom a job is done.

    Attributes:
        num_processes: number of processes on this machine (default one per 8 processors, or fewer).
        num_workers: number of threads (default one per processor).
        runner: what does the work: this machine, or a Ray cluster.
        ray_address: address of the cluster (default: one that runs here, or a new one).
        restart: drop what an earlier run did.
    """

    GROUP: ClassVar[str] = "how the work is done"

    num_processes: Annotated[int | None, Written(names=("--processes",))] = None
    num_workers: Annotated[int | None, Written(names=("--workers",))] = None
    runner: Literal["local", "ray"] = "local"
    ray_address: str | None = None
    restart: bool = False

    def job_arguments(self, function: Callable[..., Any], **others: Any) -> dict[str, Any]:
        """Returns the options as arguments of a function that does a job; see `arguments_of`."""
        return arguments_of(self, function, **{"runner": self._runner(), **others})

    def _runner(self) -> Runner | None:
        if self.runner == "local":
            return None
        from tokenloom.preprocess.ray_runner import RayRunner

        return RayRunner(address=self.ray_address, num_workers=self.num_workers or 1)


SettingsT = TypeVar("SettingsT", bound=JobSettings)


@dataclass(frozen=True, kw_only=True)
class JobOptions(RunnerOptions):
    """Where a job writes.

    Attributes:
        output_prefix: path of the outputs without suffix.
        overwrite: replace outputs that another run made.
        work_folder: folder of what is not finished (default PREFIX.job).
        skip_bad_lines: set bad records aside in PREFIX.rejected.jsonl instead of stopping, whatever their number.
    """

    output_prefix: str
    overwrite: bool = False
    work_folder: str | None = None
    skip_bad_lines: bool = False

    def settled(self, settings: SettingsT) -> SettingsT:
        """Returns settings with what `skip_bad_lines` says of bad records."""
        if not self.skip_bad_lines:
            return settings
        if settings.bad_records != BadRecordBudget():
            message = "expected `--max-bad-records` or `--skip-bad-lines`, which sets any number aside, got both"
            raise ConfigError(message)
        return replace(settings, bad_records=BadRecordBudget(most=None))


def written(**fields: Written) -> Written:
    """Returns how the settings of a job are written.

    Args:
        fields: how those are that only some jobs have.
    """
    origins = Written(help="write no PREFIX.origins, which says of which file and record each document is")
    bad_records = Written(names=("--max-bad-records",), metavar="N|P%", parse=BadRecordBudget.parse)
    return Written(without=("block_bytes",), fields={"bad_records": bad_records, "origins": origins, **fields})
