"""`tokenloom preprocess-chat`: conversations into datasets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from tokenloom.cli import console
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import OneOf, UsageError, Written
from tokenloom.cli.tokenising_options import JobOptions, TokenizerOptions, written
from tokenloom.preprocess.settings import ChatSettings


@dataclass(frozen=True, kw_only=True)
class Options(TokenizerOptions, JobOptions):
    """Tokenize conversations into PREFIX.bin, PREFIX.idx and PREFIX.roles, which says what of them the assistant said.
    What was interrupted goes on where it was when the same command runs again; on several machines that share the
    folder, all take part.

    Attributes:
        input_path: JSON lines (.jsonl; also .gz, .zst, .bz2, .xz), .parquet or .arrow.
        named_input: the input, by an option.
        json: print one JSON object: prefix, num_documents, num_sequences, num_tokens, num_answer_tokens,
            num_blank_lines, num_rejected, rejected_path, schema, template, dtype, engine, engine_reason, seconds,
            was_complete.
    """

    ONE_OF: ClassVar[OneOf] = {"INPUT (or --input)": ("input_path", "named_input")}

    input_path: Annotated[str | None, Written(metavar="INPUT", is_positional=True)] = None
    named_input: Annotated[str | None, Written(names=("--input",), metavar="PATH")] = None
    settings: Annotated[ChatSettings, written()] = field(default_factory=ChatSettings)
    json: bool = False

    def __post_init__(self) -> None:
        """Refuses two inputs."""
        if self.input_path and self.named_input:
            message = "expected INPUT or `--input`, found both"
            raise UsageError(message)


def run(options: Options) -> int:
    """Tokenizes and prints the summary."""
    from tokenloom.preprocess.chat import preprocess_chat

    path, settings = options.input_path or options.named_input, options.settled(options.settings)
    tokenizer = options.load_tokenizer()
    summary = preprocess_chat(
        **options.job_arguments(preprocess_chat, input_path=path, tokenizer=tokenizer, settings=settings)
    )
    if options.json:
        print_json(summary)
        return 0
    rejected = "0" if summary.rejected_path is None else f"{summary.num_rejected:,} in {summary.rejected_path}"
    share = summary.num_answer_tokens / summary.num_tokens
    console.print_table(
        (path or "", ""),
        [
            *([("nothing to do", "all of it was done before")] if summary.was_complete else []),
            ("schema", summary.schema),
            ("template", summary.template),
            ("lines", f"{summary.num_documents:,}"),
            ("conversations", f"{summary.num_sequences:,}"),
            ("tokens", f"{summary.num_tokens:,}"),
            ("of these to train", f"{summary.num_answer_tokens:,} ({100 * share:.1f} %)"),
            ("dtype", summary.dtype),
            ("rejected lines", rejected),
            ("blank lines", f"{summary.num_blank_lines:,}"),
            ("seconds", f"{summary.seconds:.2f}"),
            *([] if summary.was_complete else [("tokens/s", f"{summary.num_tokens / summary.seconds:,.0f}")]),
            ("engine", summary.engine),
            ("engine chosen", summary.engine_reason),
            ("dataset", summary.prefix),
        ],
    )
    return 0
