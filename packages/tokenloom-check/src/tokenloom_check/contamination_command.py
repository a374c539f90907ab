"""`tokenloom contamination`: which passages of benchmarks stand in data, and which steps of a run read them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either, UsageError, Written
from tokenloom.cli.run_common import NO_STEPS, WIDTH, BatchSizes, print_row
from tokenloom.errors import ConfigError
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.prefixes import expand_prefixes
from tokenloom.loading.batch_sizes import Topology
from tokenloom.loading.from_data import tokenizer_of_data
from tokenloom.machine import usable_processors
from tokenloom.optional import require
from tokenloom.rendering.words import cell_width, counted, name_of, printable
from tokenloom.run.audit.span_table import joined_tables
from tokenloom.run.run import Run
from tokenloom.setting_types import Count, Number
from tokenloom.storage.atomic import publish_bytes
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer
from tokenloom_check.contamination import (
    Benchmarks,
    Contamination,
    Int64s,
    SearchedSource,
    find_contamination,
    item_text,
    passage_text,
    passages_read,
    read_benchmarks,
)

_MOST_SHOWN = 10
_CONTEXT = 100
"""Characters of an item that are shown, about."""

_DOCUMENTS_AT_ONCE = 10_000
_WORDS = (8, 50)
_IN_RUN = "what a run read of it"


@dataclass(frozen=True, kw_only=True)
class Options(BatchSizes):
    """Search benchmarks in tokenized data: all their n-grams of words, and whole short items, whatever their case,
    punctuation, white space and Unicode form; of Chinese, Japanese, Thai, Lao, Khmer and Burmese n-grams of characters.
    With a run also the positions and steps that read what was found, past and to come, by arithmetic. The exit status
    is 1 if something was found, as for an error, and 0 if not.

    Attributes:
        benchmarks: files of items, a record each: JSON lines, Parquet, CSV, or text with an item a line.
        data: prefixes of pairs, globs or folders.
        run_path: run.toml of a run, whose sources are searched.
        fields: a field of the items with text (default text); write it again for more.
        input_format: format of all benchmarks, such as jsonl or text-files (default: by their names).
        words: words of an n-gram, 8 to 50.
        least_words: search fields with fewer words as a whole, if they have N or more.
        tokenizer: tokenizer.json or its folder (default: that of the data).
        threads: threads that search (default: one per processor).
        save_interval: steps between checkpoints: name the last one that has read nothing of a benchmark.
        until_position: only what is read before position N.
        until_step: only what is read before step N.
        path_to_cache: folder of the index cache, with order = "megatron".
        deny: write the documents into FILE, for `documents` of a [[denied]] and for `tokenloom deny`.
        output: write a row per item and document into FILE.parquet.
        all: show all items, not only the first.
        json: print one JSON object: words, num_tokens, benchmarks (with items, too_short, found, coverage, documents,
            and with a run clean_until, clean_step, clean_checkpoint, num_read, num_seen), sources (documents and items
            of each), and items (benchmark, record, coverage, num_ngrams, documents, and positions and steps: num_read
            and first).
    """

    EITHER: ClassVar[Either] = (("until_position", "until_step"),)

    benchmarks: Annotated[tuple[str, ...], Written(metavar="BENCHMARK", is_positional=True)] = ()
    data: Annotated[tuple[str, ...], Written(metavar="PREFIX")] = ()
    run_path: Annotated[str | None, Written(names=("--run",), metavar="RUN")] = None
    fields: Annotated[tuple[str, ...], Written(names=("--field",), metavar="NAME", is_repeated=True)] = ()
    input_format: Annotated[str | None, Written(metavar="FORMAT")] = None
    words: Count = 13
    least_words: Count = 5
    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None
    threads: Count | None = None
    save_interval: Annotated[Count | None, Written(group=_IN_RUN)] = None
    until_position: Annotated[Number | None, Written(group=_IN_RUN)] = None
    until_step: Annotated[Number | None, Written(group=_IN_RUN)] = None
    path_to_cache: Annotated[str | None, Written(metavar="FOLDER", group=_IN_RUN)] = None
    deny: Annotated[str | None, Written(metavar="FILE", group=_IN_RUN)] = None
    output: Annotated[str | None, Written(metavar="FILE")] = None
    all: bool = False
    json: bool = False

    def __post_init__(self) -> None:
        """Refuses options that do not go together."""
        if bool(self.data) == (self.run_path is not None):
            message = "name data with --data or a run with --run, one of both"
            raise UsageError(message)
        if not _WORDS[0] <= self.words <= _WORDS[1]:
            message = f"expected --words from {_WORDS[0]} to {_WORDS[1]}, found {self.words}"
            raise UsageError(message)
        if self.run_path is None and (self.deny is not None or self.save_interval is not None):
            message = "--deny and --save-interval are about a run: name it with --run"
            raise UsageError(message)
        if self.save_interval is not None and not self.has_batch_sizes:
            raise UsageError(NO_STEPS)
        if self.output is not None and not self.output.endswith(".parquet"):
            message = f"expected --output to end in .parquet, found {self.output!r}"
            raise UsageError(message)


def run(options: Options) -> int:
    """Searches, prints and writes what was found."""
    opened = None if options.run_path is None else Run.open(options.run_path, path_to_cache=options.path_to_cache)
    sources = _sources(options, opened)
    tokenizer = _tokenizer(options, opened, sources)
    benchmarks = read_benchmarks(
        options.benchmarks,
        fields=options.fields or ("text",),
        words=options.words,
        least_words=min(options.least_words, options.words),
        input_format=options.input_format,
    )
    found = find_contamination(benchmarks, sources, tokenizer, num_threads=options.threads or usable_processors())
    answer = _Answer(found, tokenizer, None if opened is None else _Reading(found, opened, options))
    if options.deny is not None:
        publish_bytes(options.deny, "".join(f"{name}\n" for name in answer.document_names()).encode())
    if options.output is not None:
        _write_parquet(answer, options.output)
    if options.json:
        print_json(answer.as_json(options.words))
    else:
        _print(answer, options)
    return 1 if len(found.passages) else 0


def _sources(options: Options, opened: Run | None) -> list[SearchedSource]:
    if opened is not None:
        return [
            SearchedSource(name=source.name, prefixes=tuple(pair.prefix for pair in source.pairs))
            for source in opened.lock.sources
        ]
    return [SearchedSource(name=prefix_of(each), prefixes=(prefix_of(each),)) for each in expand_prefixes(options.data)]


def _tokenizer(options: Options, opened: Run | None, sources: Sequence[SearchedSource]) -> TextTokenizer:
    if options.tokenizer is None and opened is not None and opened.lock.tokenizer is not None:
        found: TextTokenizer = opened.tokenizer.loaded
        return found
    if options.tokenizer is not None:
        return load_tokenizer(options.tokenizer)
    named: TextTokenizer = tokenizer_of_data(None, [prefix for source in sources for prefix in source.prefixes])
    return named


class _Reading:
    """At which positions a run reads what was found.

    Attributes:
        items, positions: int64[count], each item and position once, by item.
        topology: how positions are dealt to steps; None if the options do not tell.
        consumed: positions that training is known to have read.
        stop: one past the last position that was looked at; None for the end of the run.
        save_interval: steps between checkpoints.
    """

    def __init__(self, found: Contamination, opened: Run, options: Options) -> None:
        lock, passages = opened.lock, found.passages
        self.stop = options.position_of(options.until_position, options.until_step, lock)
        if self.stop is None and opened.num_samples is None:
            message = f"expected where to stop, since the last stage of `{opened.path}` has no end, found nothing"
            raise ConfigError(message, hint="give --until-position or --until-step")
        sizes = options.batch_sizes(lock)
        self.topology = None if sizes is None else Topology(batch_sizes=sizes)
        self.consumed = lock.consumed
        self.save_interval = options.save_interval
        self.items, self.positions = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        documents = np.unique(np.stack([passages.sources, passages.documents]), axis=1)
        tables = []
        for first in range(0, documents.shape[1], _DOCUMENTS_AT_ONCE):
            some = documents[:, first : first + _DOCUMENTS_AT_ONCE]
            by_source = {source: some[1, some[0] == source] for source in np.unique(some[0]).tolist()}
            tables.append(opened.occurrences(by_source, stop=self.stop))
        if tables:
            which, positions = passages_read(passages, joined_tables(tables))
            self.items, self.positions = np.unique(np.stack([passages.items[which], positions]), axis=1)

    def of_items(self, items: Int64s) -> Int64s:
        """Returns the positions that read one of some items, rising."""
        return np.unique(self.positions[np.isin(self.items, items)])

    def steps(self, positions: Int64s) -> Int64s | None:
        """Returns the steps of positions, each once; None if nobody told batch sizes."""
        return None if self.topology is None else np.unique(self.topology.steps(positions))


class _Answer:
    """What was found, as rows for people and programs."""

    def __init__(self, found: Contamination, tokenizer: TextTokenizer, reading: _Reading | None) -> None:
        self.found = found
        self.tokenizer = tokenizer
        self.reading = reading

    @property
    def benchmarks(self) -> Benchmarks:
        """What was searched for."""
        return self.found.benchmarks

    @cached_property
    def longest(self) -> Int64s:
        """The longest passage of each item and document."""
        return self.found.passages.longest()

    @cached_property
    def items(self) -> Int64s:
        """The items that were found, those with the largest share first."""
        found = np.unique(self.found.passages.items)
        return found[np.lexsort((found, -self.found.coverage[found]))]

    def document_names(self) -> list[str]:
        """Returns the documents that passages stand in, as a run names them."""
        passages = self.found.passages
        each = np.unique(np.stack([passages.sources, passages.documents]), axis=1)
        return [f"{self.found.sources[source].name}:{document}" for source, document in each.T.tolist()]

    def of_benchmarks(self) -> Iterator[dict[str, Any]]:
        """Yields what is to say of each benchmark."""
        longest, passages, benchmarks = self.longest, self.found.passages, self.benchmarks
        for number, name in enumerate(benchmarks.names):
            of_file = benchmarks.files == number
            items = self.items[of_file[self.items]]
            rows = longest[of_file[passages.items[longest]]]
            documents = np.unique(np.stack([passages.sources[rows], passages.documents[rows]]), axis=1)
            grams = benchmarks.num_grams[of_file]
            row: dict[str, Any] = {
                "name": name,
                "items": len(grams),
                "too_short": int((grams == 0).sum()),
                "found": len(items),
                "coverage": float((self.found.coverage[of_file] * grams).sum() / max(1, int(grams.sum()))),
                "documents": documents.shape[1],
            }
            if self.reading is not None:
                row |= self._read(items)
            yield row

    def _read(self, items: Int64s) -> dict[str, Any]:
        """Returns what a run reads of a benchmark."""
        assert self.reading is not None
        positions, consumed = self.reading.of_items(items), self.reading.consumed
        is_read = np.isin(items, self.reading.items)
        is_seen = np.isin(items, self.reading.items[self.reading.positions < consumed])
        steps = self.reading.steps(positions)
        first = int(steps[0]) if steps is not None and len(steps) else None
        interval = self.reading.save_interval
        return {
            "clean_until": int(positions[0]) if len(positions) else None,
            "clean_step": first,
            "clean_checkpoint": None if first is None or interval is None else first // interval * interval,
            "num_read": int(is_read.sum()),
            "num_seen": int(is_seen.sum()) if consumed else None,
        }

    def of_sources(self) -> Iterator[dict[str, Any]]:
        """Yields how many documents and items were found in each source."""
        passages = self.found.passages
        for number, source in enumerate(self.found.sources):
            inside = passages.sources == number
            counts = (len(np.unique(each[inside])) for each in (passages.documents, passages.items))
            yield {"name": source.name, **dict(zip(("documents", "items"), counts, strict=True))}

    def of_items(self, items: Int64s) -> Iterator[dict[str, Any]]:
        """Yields items with the documents that hold something of them, the longest passage first."""
        passages, longest = self.found.passages, self.longest
        for item in items.tolist():
            first, stop = np.searchsorted(passages.items[longest], [item, item + 1])
            rows = longest[first:stop]
            row = {
                "benchmark": self.benchmarks.names[int(self.benchmarks.files[item])],
                "record": int(self.benchmarks.records[item]),
                "coverage": float(self.found.coverage[item]),
                "num_ngrams": int(self.benchmarks.num_grams[item]),
                "documents": [self._passage(each) for each in rows[np.argsort(-passages.num_grams[rows])].tolist()],
            }
            if self.reading is not None:
                positions = self.reading.of_items(np.array([item]))
                row["positions"] = _counted(positions)
                row["steps"] = _counted(self.reading.steps(positions))
            yield row

    def _passage(self, row: int) -> dict[str, Any]:
        passages, source = self.found.passages, int(self.found.passages.sources[row])
        document, tokens = int(passages.documents[row]), (int(passages.starts[row]), int(passages.stops[row]))
        text, start, stop = item_text(self.benchmarks, int(passages.first_grams[row]), int(passages.num_grams[row]))
        return {
            "source": self.found.sources[source].name,
            "document": document,
            "start": tokens[0],
            "length": tokens[1] - tokens[0],
            "num_ngrams": int(passages.num_grams[row]),
            "of_item": text.encode()[start:stop].decode(),
            "of_document": passage_text(self.found.sources, source, document, tokens, self.tokenizer),
        }

    def as_json(self, words: int) -> dict[str, Any]:
        """Returns all of it for programs."""
        return {
            "words": words,
            "num_tokens": self.found.num_tokens,
            "benchmarks": list(self.of_benchmarks()),
            "sources": list(self.of_sources()),
            "items": list(self.of_items(self.items)),
        }


def _counted(numbers: NDArray[Any] | None) -> dict[str, Any] | None:
    if numbers is None:
        return None
    return {"num_read": len(numbers), "first": int(numbers[0]) if len(numbers) else None}


def _write_parquet(answer: _Answer, path: str) -> None:
    arrow, parquet = require("pyarrow", extra="parquet"), require("pyarrow.parquet", extra="parquet")
    rows = []
    for item in answer.of_items(answer.items):
        read = {
            f"{name}_{key}": None if item.get(name) is None else item[name][key]
            for name in ("positions", "steps")
            for key in ("num_read", "first")
        }
        shared = {name: item[name] for name in ("benchmark", "record", "coverage")} | read
        rows += [shared | passage for passage in item["documents"]]
    numbers = ("positions_num_read", "positions_first", "steps_num_read", "steps_first")
    texts = ("source", "of_item", "of_document")
    fields = [("benchmark", arrow.string()), ("record", arrow.int64()), ("coverage", arrow.float64())]
    fields += [(name, arrow.int64()) for name in (*numbers, "document", "start", "length", "num_ngrams")]
    fields += [(name, arrow.string()) for name in texts]
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pylist(rows, schema=arrow.schema(fields)), sink)
    publish_bytes(path, sink.getvalue().to_pybytes())


def _print(answer: _Answer, options: Options) -> None:
    widths = (26, 9, 9, 9, 9, 10)
    print_row(("benchmark", "items", "too short", "found", "n-grams", "documents"), widths, indent="")
    rows = list(answer.of_benchmarks())
    for row in rows:
        counts = (f"{row[name]:,}" for name in ("items", "too_short", "found"))
        cells = (os.path.basename(row["name"]), *counts, f"{row['coverage']:.2%}", f"{row['documents']:,}")
        print_row(cells, widths, indent="")
    print(f"\n{answer.found.num_tokens:,} tokens searched for n-grams of {options.words} words")
    for source in answer.of_sources():
        if source["documents"]:
            counts = f"{counted(source['items'], 'item')} in {counted(source['documents'], 'document')}"
            print(f"  {name_of(source['name'], width=40)}: {counts}")
    if answer.reading is not None:
        print()
        for row in rows:
            for line in _read_lines(row, answer.reading):
                print(line)
    shown = answer.items if options.all else answer.items[:_MOST_SHOWN]
    for item in answer.of_items(shown):
        _print_item(item)
    if len(shown) < len(answer.items):
        print(f"\n… and {counted(len(answer.items) - len(shown), 'item')} more; --all shows them, --json prints them")
    if options.deny is not None:
        print(f"\n{options.deny}: {counted(len(answer.document_names()), 'document')} to deny")


def _read_lines(row: dict[str, Any], reading: _Reading) -> Iterator[str]:
    """Yields what a run reads of a benchmark, in lines."""
    name = name_of(os.path.basename(row["name"]), width=30)
    until = "" if reading.stop is None else f" before position {reading.stop:,}"
    if row["clean_until"] is None:
        yield f"{name}: clean, no step reads anything of it{until}"
        return
    step, position = row["clean_step"], row["clean_until"]
    where = f"position {position:,}" if step is None else f"step {step:,}"
    seen = "" if row["num_seen"] is None else f", {row['num_seen']:,} of them by now"
    yield f"{name}: clean up to {where}; {counted(row['num_read'], 'item')} read since{until}{seen}"
    if row["clean_checkpoint"] is not None:
        checkpoint = row["clean_checkpoint"]
        yield f"  last clean checkpoint: {f'step {checkpoint:,}' if checkpoint else 'none, but the initial weights'}"


def _print_item(item: dict[str, Any]) -> None:
    name = f"{name_of(os.path.basename(item['benchmark']), width=30)}:{item['record']}"
    documents = item["documents"]
    found = f"{item['coverage']:.0%} of {counted(item['num_ngrams'], 'n-gram')}, {counted(len(documents), 'document')}"
    print(f"\n{name}  {found}")
    first = documents[0]
    document = str(first["document"])
    label = f"{name_of(first['source'], width=max(4, 19 - len(document)))}:{document}"
    for heading, text in (("item", first["of_item"]), (label, first["of_document"])):
        print(f"  {heading:<20} {_cut(text, WIDTH - 24)}")
    positions, steps = item.get("positions"), item.get("steps")
    if positions is not None and positions["num_read"]:
        where = f"position {positions['first']:,}"
        where = where if steps is None else f"step {steps['first']:,} ({where})"
        print(f"  first read at {where}, {counted(positions['num_read'], 'position')} in all")


def _cut(text: str, width: int) -> str:
    """Returns a text on one line of so many columns, its midst left out where it is longer."""
    line = printable(" ".join(text.split()), keep="")
    if cell_width(line) <= width:
        return line
    half = (width - 3) // 2
    return f"{_within(line[:half], half)} … {_within(line[::-1][:half], half)[::-1]}"


def _within(text: str, width: int) -> str:
    while cell_width(text) > width:
        text = text[:-1]
    return text
