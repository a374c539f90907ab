"""`tokenloom when`: at which steps of a run documents, records, texts or tokens were read, or will be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either, OneOf, Written
from tokenloom.cli.run_common import Dealing, RunPath
from tokenloom.cli.stopping import say
from tokenloom.cli.values import ids
from tokenloom.errors import ConfigError
from tokenloom.rendering.words import counted, name_of
from tokenloom.run.audit.source_origins import SourceOrigins, origins_missing
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.run.audit.token_search import Match, find_ids, find_text, find_whole_texts
from tokenloom.run.document_names import parse_name, record_name, resolve_names
from tokenloom.run.held_out import are_held_out
from tokenloom.run.run import Run
from tokenloom.setting_types import Number
from tokenloom.tokenizers.load import load_tokenizer

Row = dict[str, Any]
Places = dict[tuple[int, int], list[tuple[int, int] | None]]
"""By source and document the stretches of tokens that are asked for, as start and length; None for all of it."""

HEADING = f"{'position':>11} {'step':>9} {'rank':>4} {'pass':>4} {'start':>9} {'length':>6}  document"
_MOST_SHOWN = 1000
_AT_ONCE = 1000
"""Documents whose occurrences are looked for together."""


_SOUGHT = "what is looked for (one or more of these)"
_WHERE = "where (default: in the whole run)"
_NEEDED = "what is needed for that"


@dataclass(frozen=True, kw_only=True)
class Options(RunPath, Dealing):
    """Print every position of a run at which documents are read, past and to come, with pass and stage. By arithmetic,
    whatever the length of the run; only texts and tokens are looked for in the data. The exit status is 0 also if
    nothing reads the tokens, 1 for an error and 2 for wrong usage.

    Attributes:
        document: document N, from 0, of source NAME.
        record: what line or row N, from 1, of FILE became.
        text_file: documents of this text, by their hashes.
        tokens: this text within documents; all data are read.
        ids: the same, given as ids of tokens.
        until_position: before position N.
        until_step: before step N.
        tokenizer: tokenizer.json or its folder (default: that of the run).
        path_to_cache: folder of the index cache, with order = "megatron".
        json: print one JSON object per span, a line each: what `trace --json` has, and match, the first of the tokens
            that were looked for, num_matched, how many these are, and seen, whether training has consumed the position,
            as far as run.lock knows; null where something is not known.
    """

    EITHER: ClassVar[Either] = (("until_position", "until_step"),)
    ONE_OF: ClassVar[OneOf] = {
        "--document, --record, --text-file, --tokens or --ids": ("document", "record", "text_file", "tokens", "ids")
    }

    document: Annotated[tuple[str, ...], Written(metavar="NAME:N", is_repeated=True, group=_SOUGHT)] = ()
    record: Annotated[tuple[str, ...], Written(metavar="FILE:N", is_repeated=True, group=_SOUGHT)] = ()
    text_file: Annotated[str | None, Written(metavar="FILE", group=_SOUGHT)] = None
    tokens: Annotated[str | None, Written(metavar="TEXT", group=_SOUGHT)] = None
    ids: Annotated[Sequence[int] | None, Written(metavar="I,I,…", parse=ids, group=_SOUGHT)] = None
    until_position: Annotated[Number | None, Written(group=_WHERE)] = None
    until_step: Annotated[Number | None, Written(group=_WHERE)] = None
    tokenizer: Annotated[str | None, Written(metavar="PATH", group=_NEEDED)] = None
    path_to_cache: Annotated[str | None, Written(metavar="FOLDER", group=_NEEDED)] = None
    json: bool = False


def run(options: Options) -> int:
    """Looks for documents, and prints where they are read."""
    opened = Run.open(options.run_path, path_to_cache=options.path_to_cache)
    topology = options.topology(opened.lock)
    stop = options.position_of(options.until_position, options.until_step, opened.lock)
    if stop is None and opened.num_samples is None:
        message = f"expected where to stop, since the last stage of `{options.run_path}` has no end, found nothing"
        raise ConfigError(message, hint="give --until-position or --until-step")
    places = _places_of(options, opened)
    if not options.json:
        print(f"run {opened.identity}")
        for line in _about(opened, places):
            print(line)
    origins = SourceOrigins(opened.lock)
    num_shown = num_rows = 0
    for table in _tables(opened, places, stop):
        table = table.with_origins(origins)
        if topology is not None:
            table = table.with_steps(topology)
        for row in _rows(table, places, opened):
            num_rows += 1
            if options.json:
                print_json(row)
            elif num_shown < _MOST_SHOWN:
                if not num_shown:
                    print(f"\n{HEADING}")
                print(line_of(row))
                num_shown += 1
    if not options.json:
        where = "" if stop is None else f" before position {stop:,}"
        print(f"\n{counted(num_rows, 'span')}{where}" if num_rows else f"\nnever read{where}")
        if num_shown < num_rows:
            print(f"the first {num_shown:,} are shown; --json prints all")
    elif origins.missing and (options.record or num_rows):
        say(origins_missing(origins.missing))
    return 0


def _places_of(options: Options, opened: Run) -> Places:
    """Returns what is looked for.

    Raises:
        ConfigError: there is no such document or record, or the data do not tell.
    """
    lock, places = opened.lock, Places()
    names = [source.name for source in lock.sources]
    asked = [*options.document, *(record_name(each, names) for each in options.record)]
    found = resolve_names([parse_name(each, names) for each in asked], lock.sources)
    for source, documents in found.by_source:
        places.update(((source, document), [None]) for document in documents)
    for name in found.empty_records:
        say(f"{name} gave no document of this run: it was blank, bad, a duplicate, or went into other data")
    if found.unknown_pairs:
        say(origins_missing(found.unknown_pairs))
    if options.text_file is not None:
        for place in _whole_texts(options.text_file, opened):
            places.setdefault(place, []).append(None)
    matches: list[Match] = []
    if options.tokens is not None:
        tokenizer = opened.tokenizer.loaded if options.tokenizer is None else load_tokenizer(options.tokenizer)
        try:
            matches += find_text(lock, options.tokens, tokenizer)
        except ConfigError as error:
            raise ConfigError(error.message, hint=(error.hint or "").replace("the ids themselves", "--ids")) from error
    if options.ids is not None:
        matches += find_ids(lock, options.ids)
    for match in matches:
        places.setdefault((match.source, match.document), []).append((match.start, match.length))
    return places


def _whole_texts(path: str, opened: Run) -> list[tuple[int, int]]:
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error if isinstance(error, UnicodeDecodeError) else error.strerror
        message = f"`{path}`: expected a text in UTF-8, which cannot be read: {reason}"
        raise ConfigError(message) from error
    texts = [text, text.removesuffix("\n"), text.removesuffix("\r\n"), f"{text}\n"]
    try:
        found, missing = find_whole_texts(opened.lock, texts)
    except ConfigError as error:
        hint = "tokenize with `tokenloom preprocess --document-hashes`, or look for a part of the text with --tokens"
        raise ConfigError(error.message, hint=hint) from error
    if missing:
        say(f"{counted(len(missing), 'pair')} without hashes were not looked at: `{missing[0]}`, …")
    return found


def _tables(opened: Run, places: Places, stop: int | None) -> Iterator[SpanTable]:
    """Yields where documents are read: in one table if they are few, else some documents at a time."""
    documents = sorted(places)
    for first in range(0, len(documents), _AT_ONCE):
        by_source: dict[int, list[int]] = {}
        for source, document in documents[first : first + _AT_ONCE]:
            by_source.setdefault(source, []).append(document)
        yield opened.occurrences(by_source, stop=stop)


def _rows(table: SpanTable, places: Places, opened: Run) -> Iterator[Row]:
    """Yields the spans that hold something of what is looked for, once for each of these."""
    consumed = opened.lock.consumed
    for source, row in zip(table.sources.tolist(), table.rows(), strict=True):
        seen = row["position"] < consumed if consumed else None
        for place in places[source, row["document"]]:
            if place is None:
                yield row | {"match": None, "num_matched": None, "seen": seen}
                continue
            start, length = place
            if row["start"] < start + length and start < row["start"] + row["length"]:
                yield row | {"match": start, "num_matched": length, "seen": seen}


def _about(opened: Run, places: Places) -> Iterator[str]:
    """Yields what is found, and what of it is held out."""
    names = [source.name for source in opened.lock.sources]
    num_found = sum(len(stretches) for stretches in places.values())
    by_source: dict[int, list[int]] = {}
    for source, document in sorted(places):
        by_source.setdefault(source, []).append(document)
    in_all = sum(map(len, by_source.values()))
    yield f"{counted(in_all, 'document')}" + (f", with {counted(num_found, 'place')}" if num_found > in_all else "")
    for source, documents in by_source.items():
        held = are_held_out(opened.lock, source, np.array(documents, dtype=np.int64))
        for document in _first(np.array(documents)[held].tolist()):
            yield f"{names[source]}:{document} is held out: training never reads it"


def _first(documents: Sequence[int], most: int = 20) -> Iterable[int]:
    return documents[:most]


def line_of(row: Row) -> str:
    """Returns a span as a line below `HEADING`."""
    columns = (("position", 11), ("step", 9), ("rank", 4), ("pass", 4), ("start", 9), ("length", 6))
    numbers = " ".join(_number(row[name], width) for name, width in columns)
    what = "" if row["seen"] is None else "seen" if row["seen"] else "to come"
    document = str(row["document"])
    name = f"{name_of(row['source'], width=19 - len(document))}:{document}"
    return f"{numbers}  {name:<20} {'denied' if row['denied'] else what}".rstrip()


def _number(value: int | None, width: int) -> str:
    return f"{'-' if value is None else format(value, ','):>{width}}"
