"""Reads JSON lines: an object per line, with texts under some of its keys.

A native kernel extracts the texts of ordinary lines without Python objects, and Python parses the few unusual lines of
a block. If many lines are unusual, `orjson` parses the whole block; if `orjson` fails, Python parses line by line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import json_texts
from tokenloom.inputs.lines import LineBlock, LineFormat
from tokenloom.inputs.records import ParsedBlock, Texts, UnusableLineError, decoded, parse_carefully, value_at
from tokenloom.inputs.utf8_texts import Utf8Texts
from tokenloom.optional import require

_BYTES_PER_UNUSUAL = 512
"""If a block has more than one unusual line per this many bytes, parsing the whole block with `orjson` is cheaper."""


class JsonLineBlock(LineBlock):
    """A block of lines that are JSON objects."""

    __slots__ = ()

    def plain_texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Extracts the texts of all lines with the kernel, else with `orjson`; see `LineBlock`."""
        loads = require("orjson", extra="preprocess").loads
        if (parsed := self._by_kernel(keys)) is not None:
            return parsed
        try:
            lines = self.lines()
            columns = _columns(lines, keys, loads)
        except (ValueError, LookupError, TypeError):
            return None
        if any(set(map(type, column)) != {str} for column in columns):
            return None
        return ParsedBlock(columns=tuple(Texts(texts=column) for column in columns), num_documents=len(lines))

    def value_reader(self) -> Callable[[bytes], Any]:
        loads = require("orjson", extra="preprocess").loads
        return lambda line: _parse_record(line, loads)

    def _by_kernel(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Extracts the texts with the kernel; returns None if a key has a dot, or too many lines are unusual."""
        if any("." in key for key in keys):
            return None
        most_unusual = len(self.data) // _BYTES_PER_UNUSUAL
        try:
            found = json_texts(self.data, [key.encode() for key in keys], most_unusual)
        except UnicodeEncodeError:
            return None
        if found is None:
            return None
        columns = [Utf8Texts(content=content, offsets=offsets) for content, offsets in found[0]]
        if len(found[1]):
            return self._with_unusual(columns, found[1].reshape(-1, 3), keys)
        return ParsedBlock(columns=tuple(Texts(texts=column) for column in columns), num_documents=len(columns[0]))

    def _with_unusual(
        self, columns: Sequence[Utf8Texts], unusual: NDArray[np.int64], keys: Sequence[str]
    ) -> ParsedBlock:
        """Merges the texts of the kernel with the texts of unusual lines.

        `unusual`, int64[num_unusual, 3], has per line: number of kernel texts before it, its start and stop in `data`.
        """
        lines = [self.data[start:stop] for _, start, stop in unusual.tolist()]
        parsed = parse_carefully(replace(self, data=b"\n".join([*lines, b""]), first_record=1), keys)
        numbers = unusual[:, 0] + np.arange(len(unusual))
        is_document = np.ones(len(unusual), dtype=np.bool_)
        is_document[parsed.skipped] = False
        num_before = unusual[is_document, 0]
        bad_lines = [replace(bad, line=self.first_record + int(numbers[bad.line - 1])) for bad in parsed.bad_lines]
        return ParsedBlock(
            columns=tuple(_between(*each, num_before) for each in zip(columns, parsed.columns, strict=True)),
            num_documents=len(columns[0]) + parsed.num_documents,
            bad_lines=bad_lines,
            skipped=numbers[parsed.skipped],
        )


def _between(column: Utf8Texts, others: Texts, num_before: NDArray[np.int64]) -> Texts:
    """Inserts the documents `others` into `column`, which has one text per document; see `Utf8Texts.with_others`."""
    assert others.document_ends is not None
    counts = np.diff(others.document_ends, prepend=0)
    texts = column.with_others(others.texts, np.repeat(num_before, counts))
    if (counts == 1).all():
        return Texts(texts=texts)
    all_counts = np.insert(np.ones(len(column), dtype=np.int64), num_before, counts)
    return Texts(texts=texts, document_ends=np.cumsum(all_counts))


def _columns(lines: list[bytes], keys: Sequence[str], loads: Any) -> list[list[Any]]:
    """Parses lines into a list of values per key; frees each record at once, which doubles speed for short texts."""
    if len(keys) == 1 and "." not in keys[0]:
        [key] = keys
        return [[loads(line)[key] for line in lines]]
    rows = [[value_at(record, key) for key in keys] for record in map(loads, lines)]
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in keys]


def _parse_record(line: bytes, loads: Any) -> Any:
    try:
        return loads(line)
    except (ValueError, RecursionError):
        pass  # the standard library also accepts lone surrogates, NaN and byte order marks
    try:
        return json.loads(decoded(line).removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise UnusableLineError(f"not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, a thousand levels of nesting
        raise UnusableLineError(f"unsupported JSON: {error}") from error


class JsonLines(LineFormat):
    """The JSON lines format: one JSON object per line."""

    title = "JSON lines"
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson", ".json")
    block: type[LineBlock] = JsonLineBlock


JSONL = JsonLines()
