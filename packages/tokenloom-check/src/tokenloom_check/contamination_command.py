"""`tokenloom contamination`: finds benchmark items in data, and the first step of a run that reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import numpy as np

from tokenloom.cli.options import JsonOption, Position, Written, refuse_usage
from tokenloom.cli.output import Answer, say, table
from tokenloom.cli.run_options import NO_STEPS, BatchSizes
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.prefixes import expand_prefixes
from tokenloom.kernels.arrays import Int64s
from tokenloom.loading.from_data import tokenizer_of_data
from tokenloom.machine import usable_processors
from tokenloom.optional import require
from tokenloom.rendering.words import counted, lines_of, name_of, printable
from tokenloom.run.run import Run
from tokenloom.setting_types import Count
from tokenloom.storage.atomic import publish_bytes
from tokenloom.tokenizers.text_tokenizer import TextTokenizer
from tokenloom_check.contamination import (
    Contamination,
    Sources,
    check_no_other_weights,
    find_contamination,
    passages_read,
    read_benchmarks,
    write_masks,
)

_MOST_SHOWN = 10
_IN_RUN = "contamination of a run"
_COLUMNS = {
    **dict.fromkeys(("benchmark", "source", "of_item", "of_document"), "string"),
    **dict.fromkeys(("record", "num_ngrams", "num_positions", "first_position", "first_step"), "int64"),
    **dict.fromkeys(("document", "start", "length", "num_consecutive"), "int64"),
    "coverage": "float64",
}
"""The columns of `--output` and their Arrow types."""


@dataclass(frozen=True, kw_only=True)
class Options(JsonOption, BatchSizes):
    """Search benchmarks in tokenized data: all their n-grams of words, and short items as a whole. Case, punctuation,
    white space and Unicode form are ignored; Chinese, Japanese, Thai, Lao, Khmer and Burmese use n-grams of characters.
    With --run, also report which past and future positions and steps read a passage. Exits with 1 if a passage was
    found or for an error, else with 0.

    Attributes:
        benchmarks: benchmark files with an item per record: JSON lines, Parquet, CSV, or text with an item per line.
        data: prefixes of pairs, globs or folders.
        run_path: run.toml of a run, whose sources are searched.
        fields: text field of the items (default text); repeat the option for more fields.
        words: words of an n-gram, 8 to 50.
        least_words: search fields with fewer words than an n-gram as a whole, if they have at least N.
        tokenizer: tokenizer.json or its folder (default: the tokenizer of the data).
        threads: number of threads (default: one per processor).
        parts: save the results of each part of the data in FOLDER. A killed search resumes there, and all processes
            with the same arguments share the search, on one machine or several.
        save_interval: steps between checkpoints, to report the last checkpoint before any benchmark text was read.
        until_position: ignore samples from position N on.
        path_to_cache: folder of the index cache of a run with order = "megatron".
        deny: write the documents with passages to FILE, for `documents` of a [[denied]] table and `tokenloom deny`.
        mask: write a column `loss_weight` for all searched data: 0 for tokens of passages, 1 for others. An existing
            column keeps its other weights. A run uses the column if `columns` of [samples] names it.
        output: write a row per item and document to FILE.parquet.
        json: print one JSON object: words, num_tokens, num_masked (with --mask), and three lists of objects.
            `benchmarks`: benchmark, items, too_short, found, coverage, documents, and with --run num_read, num_seen,
            first_position, first_step, clean_checkpoint. `sources`: source, items, documents. `items`: benchmark,
            record, coverage, num_ngrams, with --run num_positions, first_position, first_step, and `passages`, a list
            with the longest passage in each document.
    """

    benchmarks: Annotated[tuple[str, ...], Written(metavar="BENCHMARK", is_positional=True)] = ()
    data: Annotated[tuple[str, ...], Written(metavar="PREFIX")] = ()
    run_path: Annotated[str | None, Written(names=("--run",), metavar="RUN")] = None
    fields: Annotated[tuple[str, ...], Written(names=("--field",), metavar="NAME", is_repeated=True)] = ()
    words: Count = 13
    least_words: Count = 5
    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None
    threads: Count | None = None
    parts: Annotated[str | None, Written(metavar="FOLDER")] = None
    save_interval: Annotated[Count | None, Written(group=_IN_RUN)] = None
    until_position: Annotated[Position | None, Written(group=_IN_RUN)] = None
    path_to_cache: Annotated[str | None, Written(metavar="FOLDER", group=_IN_RUN)] = None
    deny: Annotated[str | None, Written(metavar="FILE", group=_IN_RUN)] = None
    mask: bool = False
    output: Annotated[str | None, Written(metavar="FILE")] = None

    def __post_init__(self) -> None:
        if bool(self.data) == (self.run_path is not None):
            refuse_usage("give either --data or --run")
        if not 8 <= self.words <= 50:
            refuse_usage(f"--words must be in [8, 50], got {self.words}")
        if self.run_path is None and (self.deny is not None or self.save_interval is not None):
            refuse_usage("--deny and --save-interval need --run")
        if self.save_interval is not None and not self.has_batch_sizes:
            refuse_usage(NO_STEPS)
        if self.output is not None and not self.output.endswith(".parquet"):
            refuse_usage(f"--output must end in .parquet, got {self.output!r}")


def run(options: Options) -> Answer:
    opened = None if options.run_path is None else Run.open(options.run_path, path_to_cache=options.path_to_cache)
    benchmarks = read_benchmarks(
        options.benchmarks,
        fields=options.fields or ("text",),
        words=options.words,
        least_words=min(options.least_words, options.words),
    )
    sources, tokenizer = _sources_and_tokenizer(options, opened)
    stop = None if opened is None else options.position_of(options.until_position, opened.lock)
    if opened is not None and stop is None and opened.num_samples is None:
        raise ConfigError(f"`{opened.path}`: the last stage has no end", hint="pass --until-position or --until-step")
    if options.mask:
        check_no_other_weights(sources)
    pairs = [IndexedDataset(prefix) for prefixes in sources.values() for prefix in prefixes]
    if cut := [pair.path_prefix for pair in pairs if pair.num_documents != len(pair)]:
        what = f"{counted(len(cut), 'pair')} with documents of several sequences, such as `{cut[0]}`"
        say(f"{what}: passages across two sequences are not found")
    num_threads = options.threads or usable_processors()
    found = find_contamination(benchmarks, sources, tokenizer, num_threads=num_threads, folder=options.parts)
    rows = _Rows(found, opened, options, stop)
    num_masked = write_masks(found) if options.mask else None
    if options.deny is not None:
        publish_bytes(options.deny, "".join(f"{name}\n" for name in rows.document_names()).encode())
    if options.output is not None:
        _write_parquet(rows, options.output)
    record = rows.as_json(num_masked) if options.json else None
    return Answer(record, _lines(rows, num_masked), status=1 if len(rows.items) else 0)


def _sources_and_tokenizer(options: Options, opened: Run | None) -> tuple[Sources, TextTokenizer]:
    """Returns the sources (those of the run, or each given pair) and the tokenizer of the data."""
    sources: Sources
    if opened is None:
        sources = {prefix: (prefix,) for prefix in map(prefix_of, expand_prefixes(options.data))}
    else:
        sources = {source.name: tuple(pair.prefix for pair in source.pairs) for source in opened.lock.sources}
        if options.tokenizer is None and opened.lock.tokenizer is not None:
            return sources, opened.tokenizer.loaded
    return sources, tokenizer_of_data(options.tokenizer, [prefix for pairs in sources.values() for prefix in pairs])


class _Rows:
    """The results as JSON values: rows of benchmarks, sources and items, with the positions that read them."""

    def __init__(self, found: Contamination, opened: Run | None, options: Options, stop: int | None) -> None:
        self.found, self.options, self.stop, self.is_run = found, options, stop, opened is not None
        passages = found.passages
        items = np.unique(passages.items)
        self.items: Int64s = items[np.argsort(-found.coverage[items], kind="stable")]
        self._longest = passages.longest()
        self._documents = np.unique(np.stack([passages.sources, passages.documents]), axis=1)
        self._read: Int64s = np.empty((2, 0), dtype=np.int64)  # items, and positions that read them
        if opened is not None:
            self._consumed, self._sizes = opened.lock.consumed, options.batch_sizes(opened.lock)
            sources, documents = self._documents
            by_source = {source: documents[sources == source] for source in np.unique(sources).tolist()}
            which, positions = passages_read(passages, opened.occurrences(by_source, stop=stop))
            self._read = np.unique(np.stack([passages.items[which], positions]), axis=1)

    def document_names(self) -> list[str]:
        names = list(self.found.sources)
        return [f"{names[source]}:{document}" for source, document in self._documents.T.tolist()]

    def _first_read(self, positions: Int64s) -> dict[str, Any]:
        first = int(positions.min()) if len(positions) else None
        step = None if first is None or self._sizes is None else self._sizes.step_of_position(first)
        return {"first_position": first, "first_step": step}

    def benchmarks(self) -> Iterator[dict[str, Any]]:
        benchmarks, passages = self.found.benchmarks, self.found.passages
        for number, name in enumerate(benchmarks.names):
            of_file = benchmarks.files == number
            items, rows = self.items[of_file[self.items]], np.flatnonzero(of_file[passages.items])
            num_grams = benchmarks.num_grams[of_file]
            row: dict[str, Any] = {
                "benchmark": name,
                "items": len(num_grams),
                "too_short": int((num_grams == 0).sum()),
                "found": len(items),
                "coverage": float((self.found.coverage[of_file] * num_grams).sum() / max(1, int(num_grams.sum()))),
                "documents": len(np.unique(np.stack([passages.sources[rows], passages.documents[rows]]), axis=1).T),
            }
            if self.is_run:
                seen = self._read[0, self._read[1] < self._consumed]
                row["num_read"] = int(np.isin(items, self._read[0]).sum())
                row["num_seen"] = int(np.isin(items, seen).sum()) if self._consumed else None
                row |= self._first_read(self._read[1, np.isin(self._read[0], items)])
                step, interval = row["first_step"], self.options.save_interval
                row["clean_checkpoint"] = None if step is None or interval is None else step // interval * interval
            yield row

    def sources(self) -> Iterator[dict[str, Any]]:
        passages = self.found.passages
        for number, name in enumerate(self.found.sources):
            rows = np.flatnonzero(passages.sources == number)
            counts = [len(np.unique(each[rows])) for each in (passages.items, passages.documents)]
            yield {"source": name, "items": counts[0], "documents": counts[1]}

    def item_rows(self) -> Iterator[dict[str, Any]]:
        """Yields items, most coverage first, each with its longest passage in each document, longest first."""
        benchmarks, passages = self.found.benchmarks, self.found.passages
        for item in self.items.tolist():
            row = {
                "benchmark": benchmarks.names[int(benchmarks.files[item])],
                "record": int(benchmarks.records[item]),
                "coverage": float(self.found.coverage[item]),
                "num_ngrams": int(benchmarks.num_grams[item]),
            }
            if self.is_run:
                positions = self._read[1, slice(*np.searchsorted(self._read[0], [item, item + 1]))]
                row |= {"num_positions": len(positions), **self._first_read(positions)}
            own = self._longest[slice(*np.searchsorted(passages.items[self._longest], [item, item + 1]))]
            longest_first = own[np.argsort(-passages.num_grams[own], kind="stable")]
            yield row | {"passages": [self.found.passage(each) for each in longest_first.tolist()]}

    def as_json(self, num_masked: int | None) -> dict[str, Any]:
        return {
            "words": self.options.words,
            "num_tokens": self.found.num_tokens,
            **({} if num_masked is None else {"num_masked": num_masked}),
            "benchmarks": list(self.benchmarks()),
            "sources": list(self.sources()),
            "items": list(self.item_rows()),
        }


def _write_parquet(rows: _Rows, path: str) -> None:
    arrow, parquet = require("pyarrow", extra="parquet"), require("pyarrow.parquet", extra="parquet")
    values = [item | passage for item in rows.item_rows() for passage in item.pop("passages")]
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in _COLUMNS.items()])
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pylist(values, schema=schema), sink)
    publish_bytes(path, sink.getvalue().to_pybytes())


def _lines(rows: _Rows, num_masked: int | None) -> Iterator[str]:
    benchmarks, options = list(rows.benchmarks()), rows.options
    cells = []
    for row in benchmarks:
        counts = [row[name] for name in ("items", "too_short", "found")]
        cells.append((os.path.basename(row["benchmark"]), *counts, f"{row['coverage']:.2%}", row["documents"]))
    yield from table(("benchmark", "items", "too short", "found", "n-grams", "documents"), cells)
    yield f"{rows.found.num_tokens:,} tokens searched for n-grams of {options.words} words"
    for source in rows.sources():
        if source["documents"]:
            found = f"{counted(source['items'], 'item')} in {counted(source['documents'], 'document')}"
            yield f"  {name_of(source['source'], width=40)}: {found}"
    if rows.is_run:
        yield ""
        for row in benchmarks:
            yield from _read_lines(row, "" if rows.stop is None else f" before position {rows.stop:,}")
    for item in islice(rows.item_rows(), _MOST_SHOWN):
        yield from _item_lines(item)
    if len(rows.items) > _MOST_SHOWN:
        yield f"\n… and {counted(len(rows.items) - _MOST_SHOWN, 'item')} more; --json prints all"
    if num_masked is not None:
        yield f'\n{counted(num_masked, "token")} masked: `columns = ["loss_weight"]` in [samples] applies it'
    if options.deny is not None:
        yield f"\n{options.deny}: {counted(len(rows.document_names()), 'document')} to deny"


def _read_lines(row: dict[str, Any], until: str) -> Iterator[str]:
    """Yields what a run reads of a benchmark."""
    name = name_of(os.path.basename(row["benchmark"]), width=30)
    if row["too_short"] == row["items"]:
        yield f"{name}: not searched, all items are too short"
    elif row["first_position"] is None:
        yield f"{name}: clean, no step reads any passage{until}"
    else:
        seen = "" if row["num_seen"] is None else f", {row['num_seen']:,} by now"
        yield f"{name}: clean up to {_place(row)}; {counted(row['num_read'], 'item')} read from there on{until}{seen}"
        if (checkpoint := row["clean_checkpoint"]) is not None:
            yield f"  last clean checkpoint: {f'step {checkpoint:,}' if checkpoint else 'none'}"


def _place(row: dict[str, Any]) -> str:
    position = f"position {row['first_position']:,}"
    return position if row["first_step"] is None else f"step {row['first_step']:,}"


def _item_lines(item: dict[str, Any]) -> Iterator[str]:
    """Yields the coverage of an item, and its text beside the longest passage."""
    passages = item["passages"]
    found = f"{item['coverage']:.0%} of {counted(item['num_ngrams'], 'n-gram')}, {counted(len(passages), 'document')}"
    yield f"\n{name_of(os.path.basename(item['benchmark']), width=30)}:{item['record']}  {found}"
    number = str(passages[0]["document"])
    label = f"{name_of(passages[0]['source'], width=max(4, 19 - len(number)))}:{number}"
    for heading, text in (("item", passages[0]["of_item"]), (label, passages[0]["of_document"])):
        first, *others = lines_of(printable(" ".join(text.split()), keep=""), 54)
        yield f"  {heading:<20} {first}{' …' if others else ''}"
    if item.get("first_position") is not None:
        yield f"  first read at {_place(item)}, by {counted(item['num_positions'], 'position')} in all"
