"""`tokenloom preprocess-chat`: conversations into datasets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from tokenloom.cli import console
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import UsageError, Written
from tokenloom.cli.tokenising_options import NO_ORIGINS, JobOptions, TokenizerOptions, require_tokenizer
from tokenloom.inputs.limits import ReadLimits
from tokenloom.preprocess.schemas import Schema
from tokenloom.preprocess.settings import CHAT_SHARD_BYTES, RECORD_TIMEOUT_SECONDS
from tokenloom.setting_types import Bytes, Seconds
from tokenloom.tokenizers.kinds import EngineName


@dataclass(frozen=True, kw_only=True)
class ChatOptions(TokenizerOptions, JobOptions):
    """Tokenize conversations into PREFIX.bin, PREFIX.idx and PREFIX.roles, which says what of them the assistant said.
    What was interrupted goes on where it was when the same command runs again; on several machines that share the
    folder, all take part.

    Attributes:
        input: JSON lines (.jsonl; also .gz, .zst, .bz2, .xz), .parquet or .arrow.
        named_input: the input, by an option.
        chat_template: chatml, which is built in, or a file with a Jinja template (default: the tokenizer's own).
        schema: form of the records (default: told from their columns).
        engine: what encodes texts; auto: gigatoken if it gives the same ids, else the tokenizer's own library.
        skip_bad_lines: set bad lines aside in PREFIX.rejected.jsonl instead of stopping.
        record_timeout_seconds: most time for the records that a thread takes at once, and for one alone; one that takes
            longer is bad.
        shard_bytes: bytes of the input file, as it is, in a shard, which is what is lost when a process dies.
        document_hashes: write PREFIX.hashes, a hash of each document's text, by which a text is found again.
        json: print one JSON object: prefix, num_documents, num_sequences, num_tokens, num_answer_tokens,
            num_blank_lines, num_rejected, rejected_path, schema, template, dtype, engine, engine_reason, seconds,
            was_complete.
    """

    input: Annotated[str | None, Written(metavar="INPUT", is_positional=True)] = None
    named_input: Annotated[str | None, Written(names=("--input",), metavar="PATH")] = None
    chat_template: str | None = None
    schema: Schema | None = None
    engine: EngineName = "auto"
    skip_bad_lines: bool = False
    read_limits: ReadLimits = field(default_factory=ReadLimits)
    record_timeout_seconds: Seconds = RECORD_TIMEOUT_SECONDS
    shard_bytes: Bytes = CHAT_SHARD_BYTES
    origins: Annotated[bool, NO_ORIGINS] = True
    document_hashes: bool = False
    json: bool = False

    def __post_init__(self) -> None:
        """Refuses two inputs."""
        if self.input and self.named_input:
            message = "expected INPUT or `--input`, found both"
            raise UsageError(message)


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_command("preprocess-chat", ChatOptions, run)
    require_tokenizer(parser)
    parser.require_any("input", "named_input", words="INPUT (or --input)")


def run(options: ChatOptions) -> int:
    """Tokenizes and prints the summary."""
    from tokenloom.preprocess.chat import preprocess_chat

    path = options.input or options.named_input or ""
    summary = preprocess_chat(
        path,
        options.output_prefix,
        options.load_tokenizer(),
        chat_template=options.chat_template,
        schema=options.schema,
        engine=options.engine,
        skip_bad_lines=options.skip_bad_lines,
        read_limits=options.read_limits,
        record_timeout_seconds=options.record_timeout_seconds,
        shard_bytes=options.shard_bytes,
        origins=options.origins,
        document_hashes=options.document_hashes,
        **options.job_arguments(),
    )
    if options.json:
        print_json(summary)
        return 0
    rejected = "0" if summary.rejected_path is None else f"{summary.num_rejected:,} in {summary.rejected_path}"
    share = summary.num_answer_tokens / summary.num_tokens
    console.print_table(
        (path, ""),
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
