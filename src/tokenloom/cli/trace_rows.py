"""Traced spans for people and programs: with their text, and the records of input files that they were made of."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenloom.cli.drawing import visible
from tokenloom.cli.json_output import print_json
from tokenloom.cli.run_common import WIDTH, stage_of
from tokenloom.cli.stopping import say
from tokenloom.rendering.words import name_of
from tokenloom.run.audit.input_records import input_problem, read_records, span_tokens
from tokenloom.run.audit.source_origins import SourceOrigins
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.tokenizers.text_tokenizer import TextTokenizer, decoded

Row = dict[str, Any]

_HEADING = f"{'slot':>8} {'document':>12} {'start':>9} {'length':>8}  origin"
_ORIGIN_WIDTH = WIDTH - _HEADING.index("origin")


class InputFiles:
    """The input files of traced documents.

    Args:
        origins: tells files and records.
    """

    def __init__(self, origins: SourceOrigins) -> None:
        self._origins = origins
        self._problems: dict[int, str | None] = {}

    @property
    def num_problems(self) -> int:
        """How many of the files that were looked at are not what they were."""
        return sum(problem is not None for problem in self._problems.values())

    def check(self, table: SpanTable) -> None:
        """Says of each file that documents are of, once, if it is not what it was."""
        assert table.files is not None
        for file in np.unique(table.files[table.files >= 0]).tolist():
            if file not in self._problems:
                self._problems[file] = problem = input_problem(self._origins.files[file])
                if problem is not None:
                    say(problem)

    def add_records(self, rows: Sequence[Row], table: SpanTable) -> None:
        """Adds to each span what its record is, as `input`; None of a file that is not what it was.

        Raises:
            InputError, StorageError: a file cannot be read.
        """
        assert table.files is not None
        assert table.records is not None
        for row in rows:
            row["input"] = None
        for file, problem in self._problems.items():
            chosen = np.flatnonzero((table.files == file) & ~table.denied)
            if problem is not None or not len(chosen):
                continue
            numbers = table.records[chosen].tolist()
            found = read_records(self._origins.files[file], numbers)
            for place, number in zip(chosen.tolist(), numbers, strict=True):
                rows[place]["input"] = found.get(number)


def add_texts(rows: Sequence[Row], table: SpanTable, tokenizer: TextTokenizer | None) -> None:
    """Adds to each span its text, as `text`: without a tokenizer the ids in words; None of what is denied."""
    for row, tokens in zip(rows, span_tokens(table), strict=True):
        row["text"] = None if row["denied"] else decoded(tokens.tolist(), tokenizer)


def print_rows(rows: Sequence[Row], *, as_json: bool) -> None:
    """Prints spans: an object per line, or a table per sample."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    for _, sample in itertools.groupby(rows, key=lambda row: row["position"]):
        spans = list(sample)
        print(f"\n{_sample_of(spans[0])}\n{_HEADING}")
        for row in spans:
            numbers = f"{row['slot']:>8,} {row['document']:>12,} {row['start']:>9,} {row['length']:>8,}"
            print(f"{numbers}  {visible(_origin_of(row))}")
            for name in ("text", "input"):
                if row.get(name) is not None:
                    for line in visible(row[name]).removesuffix("\n").split("\n"):
                        print(f"  {name} | {line}")


def _sample_of(row: Row) -> str:
    """Returns where a sample stands, and what it is of."""
    words = [f"position {row['position']:,}"]
    words += [
        f"{name.replace('_', '-')} {row[name]:,}" for name in ("step", "rank", "micro_batch") if row[name] is not None
    ]
    if row["stage"] is not None:
        words.append(stage_of(row["stage"]))
    words.append(f"source {name_of(row['source'])}")
    if row["pass"] is not None:
        words.append(f"pass {row['pass']:,}")
    return textwrap.fill(", ".join(words), WIDTH, subsequent_indent="  ")


def _origin_of(row: Row) -> str:
    """Returns record and file of a document, or row and pair, cut at the left."""
    name, number = (row["pair"], f" row {row['row']:,}") if row["file"] is None else (row["file"], f":{row['record']}")
    before = "denied: " if row["denied"] else ""
    room = _ORIGIN_WIDTH - len(before) - len(number)
    return before + (name if len(name) <= room else f"…{name[len(name) - room + 1 :]}") + number
