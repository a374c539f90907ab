"""`tokenloom preprocess`: text into datasets."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokenloom.cli import console
from tokenloom.cli.job_options import add_job_options, add_record_timeout, job_of
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.reference_options import (
    add_reference_preprocessing,
    has_template,
    say_without_effect,
    settle_preprocessing,
)
from tokenloom.cli.tokenising_options import (
    add_document_options,
    add_read_limits,
    add_tokenising_options,
    tokenizer_of,
)
from tokenloom.cli.values import count, number, shares, signed_number
from tokenloom.errors import ConfigError
from tokenloom.inputs.formats import FORMATS  # whose names cost nothing: help must not import the readers
from tokenloom.preprocess.settings import BadRecordBudget, CorpusSettings

if TYPE_CHECKING:
    from tokenloom.preprocess.preview import DocumentPreview
    from tokenloom.preprocess.summary import CorpusSummary
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_SHOWN_CHARACTERS = 200
_MOST_SHOWN = 20
"""Datasets listed in the summary."""

_MOST_NAMED = 3
"""Inputs in its title."""


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "preprocess",
        description=(
            "Tokenize a corpus into PREFIX_KEY_document.bin and .idx. What was interrupted goes on where it was when "
            "the same command runs again; on several machines that share the folder, all take part."
        ),
    )
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="files, folders, patterns, s3:// addresses, @LIST, or - for standard input: JSON lines, text, Parquet, "
        "Arrow and Hugging Face datasets; gzip, zstd, bz2, xz",
    )
    parser.add_argument(
        "--input-format",
        choices=tuple(FORMATS),
        help="format of all inputs (default: told from each file); text-files also takes files of a folder whose names "
        "tell no other format",
    )
    parser.add_argument(
        "--json-keys", nargs="+", default=["text"], metavar="KEY", help="keys or columns of the texts (default text)"
    )
    add_tokenising_options(parser, bad="records")
    add_document_options(parser)
    _add_selection(parser)
    _add_work(parser)
    add_reference_preprocessing(parser)
    looking = parser.add_argument_group("looking first")
    looking.add_argument(
        "--dry-run", type=count, metavar="N", help="show how the first N documents are tokenized, and write nothing"
    )
    looking.add_argument(
        "--find-optimal-workers",
        "--find-optimal-num-workers",
        action="store_true",
        help="measure on the beginning of the input how many processes and threads are fastest",
    )
    add_json(
        parser,
        "num_files, num_ignored, num_shards, num_shards_reused, was_complete, num_documents, num_duplicates, "
        "num_doubled, num_blank_lines, num_rejected, rejected_paths, num_text_bytes, num_tokens, dtype, engine, "
        "engine_reason, seconds, and in datasets key, split, prefix, num_documents, num_empty, num_sequences, "
        "num_tokens, num_bytes of each",
    )
    parser.set_defaults(run=run)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which documents go where")
    group.add_argument(
        "--max-bad-records",
        metavar="N|P%",
        help="set at most so many bad records aside, instead of stopping at the first",
    )
    group.add_argument("--drop-duplicates", action="store_true", help="keep only the first of equal documents")
    group.add_argument(
        "--split",
        type=shares,
        default={},
        metavar="SPLIT",
        help="share of documents of each dataset, assigned by a hash of their text: train=0.99,valid=0.01 or 98,1,1",
    )
    group.add_argument(
        "--split-seed",
        type=signed_number,
        default=0,
        metavar="N",
        help="seed of the assignment of documents to splits (default 0)",
    )
    group.add_argument(
        "--one-pair-per-file", action="store_true", help="write datasets for each input file, in the folder PREFIX"
    )
    group.add_argument(
        "--exact-prefix", action="store_true", help="write PREFIX.bin and .idx, without the key; of one key only"
    )


def _add_work(parser: argparse.ArgumentParser) -> None:
    kept = CorpusSettings()
    group = add_job_options(parser, threads=8, shard_bytes=kept.shard_bytes)
    add_record_timeout(group)
    group.add_argument(
        "--worker-timeout",
        type=number,
        default=kept.worker_timeout_seconds,
        metavar="SECONDS",
        help="time without a sign of life after which a process loses its shard to another (default %(default)g)",
    )
    add_read_limits(group)


def run(options: argparse.Namespace) -> int:
    """Tokenizes and prints the summary."""
    from tokenloom.preprocess.text import preprocess_corpus

    settle_preprocessing(options)
    tokenizer = tokenizer_of(options)
    settings = _settings(options)
    say_without_effect(options)
    if options.dry_run is not None:
        return _show_documents(options, settings, tokenizer)
    if options.find_optimal_workers:
        return _show_trials(options, settings, tokenizer)
    summary = preprocess_corpus(options.inputs, options.output_prefix, tokenizer, settings, **job_of(options))
    if options.json:
        print_json({**dataclasses.asdict(summary), "num_tokens": summary.num_tokens})
    else:
        _print_summary(summary, _listed(options.inputs))
    return 0


def _settings(options: argparse.Namespace) -> CorpusSettings:
    return CorpusSettings(
        keys=tuple(options.json_keys),
        input_format=options.input_format,
        prepend_bos=options.prepend_bos,
        append_eod=options.append_eod,
        template_tokens=options.template_tokens or has_template(options),
        split_sentences=options.split_sentences,
        keep_newlines=options.keep_newlines,
        drop_duplicates=options.drop_duplicates,
        shares=options.split,
        split_seed=options.split_seed,
        bad_records=_budget(options),
        engine=options.engine,
        shard_bytes=options.shard_size,
        memory_bytes=options.memory,
        record_timeout_seconds=options.record_timeout,
        worker_timeout_seconds=options.worker_timeout,
        max_record_bytes=options.max_record_size,
        max_window_bytes=options.max_window,
        one_pair_per_file=options.one_pair_per_file,
        exact_prefix=options.exact_prefix,
        origins=not options.no_origins,
        document_hashes=options.document_hashes,
    )


def _budget(options: argparse.Namespace) -> BadRecordBudget:
    if options.max_bad_records and options.skip_bad_lines:
        message = "expected `--max-bad-records` or `--skip-bad-lines`, which sets any number aside, got both"
        raise ConfigError(message)
    return BadRecordBudget.parse(options.max_bad_records or ("100%" if options.skip_bad_lines else "0"))


def _listed(names: Sequence[str]) -> str:
    hidden = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {hidden:,} more" if hidden > 0 else "")


def _show_documents(options: argparse.Namespace, settings: CorpusSettings, tokenizer: TextTokenizer) -> int:
    from tokenloom.preprocess.preview import preview_corpus

    preview = preview_corpus(options.inputs, options.output_prefix, tokenizer, settings, count=options.dry_run)
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


def _show_trials(options: argparse.Namespace, settings: CorpusSettings, tokenizer: TextTokenizer) -> int:
    from tokenloom.preprocess.tuning import find_optimal_workers

    def tell(number: int, total: int) -> None:
        print(f"trial {number + 1} of {total}", file=sys.stderr)

    trials = find_optimal_workers(options.inputs, options.output_prefix, tokenizer, settings, progress=tell)
    if options.json:
        print_json({"trials": trials})
        return 0
    console.print_table(
        ("processes x threads", "MB/s", "tokens/s"),
        [
            (
                f"--processes {trial.num_processes} --workers {trial.num_workers}",
                f"{trial.bytes_per_second / 1e6:.1f}",
                f"{trial.tokens_per_second:,.0f}",
            )
            for trial in trials
        ],
        title="the fastest first",
    )
    return 0


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
