"""`tokenloom preprocess`: text into datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from tokenloom.cli import console
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import OneOf, Written
from tokenloom.cli.reference_options import ReferencePreprocessing, format_of
from tokenloom.cli.tokenising_options import JobOptions, TokenizerOptions, written
from tokenloom.cli.values import shares
from tokenloom.errors import ConfigError
from tokenloom.inputs.formats import FORMATS  # whose names cost nothing: help must not import the readers
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.setting_types import Count

if TYPE_CHECKING:
    from tokenloom.preprocess.preview import DocumentPreview
    from tokenloom.preprocess.summary import CorpusSummary
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_SHOWN_CHARACTERS = 200
_MOST_SHOWN = 20
"""Datasets listed in the summary."""

_MOST_NAMED = 3
"""Inputs in its title."""

_SETTINGS = written(
    keys=Written(names=("--json-keys",), metavar="KEY"),
    input_format=Written(choices=tuple(FORMATS)),
    shares=Written(
        names=("--split",),
        metavar="SPLIT",
        parse=shares,
        help="share of documents of each dataset, assigned by a hash of their text: train=0.99,valid=0.01 or 98,1,1",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Options(TokenizerOptions, JobOptions, ReferencePreprocessing):
    """Tokenize a corpus into PREFIX_KEY_document.bin and .idx. What was interrupted goes on where it was when the same
    command runs again; on several machines that share the folder, all take part.

    Attributes:
        inputs: files, folders, patterns, s3:// addresses, @LIST, or - for standard input: JSON lines, text, Parquet,
            Arrow and Hugging Face datasets; gzip, zstd, bz2, xz.
        bos_token: token that begins a document, where the tokenizer does not say.
        dry_run: show how the first N documents are tokenized, and write nothing.
        json: print one JSON object: num_files, num_ignored, num_shards, num_shards_reused, was_complete, num_documents,
            num_duplicates, num_doubled, num_blank_lines, num_rejected, rejected_paths, num_text_bytes, num_tokens,
            dtype, engine, engine_reason, seconds, and in datasets key, split, prefix, num_documents, num_empty,
            num_sequences, num_tokens, num_bytes of each.
    """

    ONE_OF: ClassVar[OneOf] = {"INPUT (or --input)": ("inputs", "named_inputs")}

    inputs: Annotated[tuple[str, ...], Written(metavar="INPUT", is_positional=True)] = ()
    settings: Annotated[CorpusSettings, _SETTINGS] = field(default_factory=CorpusSettings)
    bos_token: str | None = None
    dry_run: Count | None = None
    json: bool = False


def run(options: Options) -> int:
    """Tokenizes and prints the summary."""
    from tokenloom.preprocess.text import preprocess_corpus

    options = _settled(options)
    tokenizer = options.load_tokenizer(bos_token=options.bos_token)
    if options.dry_run is not None:
        return _show_documents(options, options.dry_run, tokenizer)
    summary = preprocess_corpus(**options.job_arguments(preprocess_corpus, tokenizer=tokenizer))
    if options.json:
        print_json({**dataclasses.asdict(summary), "num_tokens": summary.num_tokens})
    else:
        _print_summary(summary, _listed(options.inputs))
    return 0


def _settled(options: Options) -> Options:
    """Returns the options with those that say the same in another way put where the command's own are.

    Raises:
        ConfigError: two of them say the same thing.
    """
    settings, both = options.settled(options.settings), "leave one out"
    if options.has_template:
        settings = replace(settings, template_tokens=True)
    if options.inputs and options.named_inputs:
        message = "--input and inputs without an option both name inputs"
        raise ConfigError(message, hint=both)
    if options.named_inputs:
        settings = replace(settings, input_format=settings.input_format or format_of(options.named_inputs))
    num_processes, num_workers = options.num_processes, options.num_workers
    if options.partitions is not None:
        if num_processes is not None:
            message = "--partitions and --processes both say how many processes"
            raise ConfigError(message, hint=both)
        num_processes = options.partitions
        num_workers = None if num_workers is None else max(1, num_workers // num_processes)
    return replace(
        options,
        settings=settings,
        inputs=options.inputs or options.named_inputs,
        num_processes=num_processes,
        num_workers=num_workers,
    )


def _listed(names: Sequence[str]) -> str:
    hidden = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {hidden:,} more" if hidden > 0 else "")


def _show_documents(options: Options, count: int, tokenizer: TextTokenizer) -> int:
    from tokenloom.preprocess.preview import preview_corpus

    preview = preview_corpus(options.inputs, options.output_prefix, tokenizer, options.settings, count=count)
    if options.json:
        told = dataclasses.asdict(preview)
        told["documents"] = [
            {"path": path, "key": key, **dataclasses.asdict(document)} for path, key, document in preview.documents
        ]
        print_json(told)
        return 0
    for path, key, document in preview.documents:
        density = (
            f", {document.num_text_bytes / document.num_tokens:.2f} bytes per token" if document.num_tokens else ""
        )
        print(f"{path}, {key!r}: {document.num_text_bytes:,} bytes, {document.num_tokens:,} tokens{density}")
        print(f"  ids:  {_ids_in_words(document)}")
        print(f"  text: {_shortened(document.text)!r}")
        if document.is_doubled:
            print("  its text already spells out a token that is added")
        if not document.is_exact:
            print("  decoding does not give the text back: the tokenizer normalises it, or lacks characters")
    for bad in preview.bad_lines:
        print(f"{bad.path} {bad.unit} {bad.line}: {bad.reason}")
    print(f"\nengine {preview.engine}: {preview.engine_reason}")
    print(f"input: {preview.num_files:,} files, {preview.num_bytes:,} bytes; {preview.num_ignored:,} others ignored")
    print(f"tokens would be stored as {preview.dtype}, in {preview.num_shards:,} shards; nothing was written")
    return 0


def _ids_in_words(document: DocumentPreview) -> str:
    shown = list(map(str, document.first_ids))
    if document.num_tokens > len(document.first_ids):
        rest = document.last_ids[-(document.num_tokens - len(document.first_ids)) :]
        shown += ([] if len(rest) < len(document.last_ids) else ["…"]) + list(map(str, rest))
    return " ".join(shown)


def _shortened(text: str) -> str:
    half = _SHOWN_CHARACTERS // 2
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:half]} … {text[-half:]}"


def _work_rows(summary: CorpusSummary, reused: str) -> list[tuple[str, str]]:
    speed = ""
    if not summary.num_shards_reused:  # else some of it was not read now
        speed = f", {summary.num_text_bytes / summary.seconds / 1e6:.1f} MB/s"
        speed += f", {summary.num_tokens / summary.seconds:,.0f} tokens/s"
    return [
        ("text bytes read", f"{summary.num_text_bytes:,}"),
        ("shards", f"{summary.num_shards:,}{reused}"),
        ("seconds", f"{summary.seconds:.2f}{speed}"),
    ]


def _print_summary(summary: CorpusSummary, title: str) -> None:
    num_hidden = len(summary.datasets) - _MOST_SHOWN
    reused = f", {summary.num_shards_reused} of them done before" if summary.num_shards_reused else ""
    datasets = [
        (
            f"dataset of {dataset.key!r}" + (f", {dataset.split}" if dataset.split else ""),
            f"{dataset.prefix} ({dataset.num_documents:,} documents, {dataset.num_tokens:,} tokens)",
        )
        for dataset in summary.datasets[:_MOST_SHOWN]
    ]
    unusual = (
        ("duplicates left out", summary.num_duplicates, ""),
        ("documents that spell out an added token", summary.num_doubled, ""),
        ("rejected records", summary.num_rejected, f" in {', '.join(summary.rejected_paths)}"),
        ("blank lines", summary.num_blank_lines, ""),
        ("datasets without documents", sum(not dataset.num_documents for dataset in summary.datasets), ""),
    )
    ignored = f", {summary.num_ignored:,} ignored" if summary.num_ignored else ""
    console.print_table(
        (title, ""),
        [
            *([("nothing to do", "all of it was done before")] if summary.was_complete else []),
            ("input files", f"{summary.num_files:,}{ignored}"),
            ("documents", f"{summary.num_documents:,}"),
            *datasets,
            *([("further datasets", f"{num_hidden:,}")] if num_hidden > 0 else []),
            *((name, f"{number:,}{more}") for name, number, more in unusual if number),
            ("tokens", f"{summary.num_tokens:,} of {summary.dtype}"),
            *([] if summary.was_complete else _work_rows(summary, reused)),
            ("engine", f"{summary.engine}: {summary.engine_reason}"),
        ],
    )
