"""The options of all commands that turn records into a pair, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from tokenloom.cli.options import OneOf, Written, arguments_of
from tokenloom.cli.reference_options import ReferenceTokenizer
from tokenloom.errors import ConfigError
from tokenloom.preprocess.settings import BadRecordBudget, JobSettings
from tokenloom.tokenizers.kinds import KINDS  # whose names cost nothing: help must not import the engines

if TYPE_CHECKING:
    from tokenloom.preprocess.sharded import Runner
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer


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

        Raises:
            ConfigError: they name two, or one that cannot be meant.
            TokenizerError: a file is no such tokenizer.
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
        """Returns settings with what `skip_bad_lines` says of bad records.

        Raises:
            ConfigError: the settings say something else.
        """
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
