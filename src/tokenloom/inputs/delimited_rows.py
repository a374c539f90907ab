"""Rows of CSV and TSV in bytes: where they end, and which fields they hold.

Quotes as Python's `csv` reads them in its strict dialects `excel` and `excel-tab`: a field that begins with `"` ends at
the next `"` that is not doubled, and may hold delimiters and newlines; any other `"` is itself. Only a newline outside
quotes ends a row, with or without a carriage return before it.

Regular expressions run over a whole block without going back. From a file to texts that is 100 MB a second of one core,
more than tokenizers take. `csv` itself (145) has a limit of 128 KiB a field, for the whole process, and cannot drop a
row without holding it; `pyarrow.csv` (1000) gives up a file at its first byte that is no UTF-8, at a row longer than a
block, and tells no lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

QUOTE = b'"'

_QUOTED = rb'"[^"]*+(?:""[^"]*+)*+"'


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGrammar:
    """How rows with one delimiter are taken apart.

    Attributes:
        delimiter: a byte between fields.
        row: matches a whole row with its newline.
        rows: matches as many as there are.
        fields: matches a field and what ends it; groups: inside of quotes, text without quotes, the end, and a byte
            that is no part of any field.
        ends: matches the next end of a field without quotes.
    """

    delimiter: bytes
    row: re.Pattern[bytes]
    rows: re.Pattern[bytes]
    fields: re.Pattern[bytes]
    ends: re.Pattern[bytes]


@cache
def grammar_of(delimiter: bytes) -> RowGrammar:
    """Returns how rows with a delimiter are taken apart."""
    sign = re.escape(delimiter)
    any_field = rb"(?:%b[^%b\n]*+|[^\"%b\n][^%b\n]*+)?+" % (_QUOTED, sign, sign, sign)
    good_field = rb'(?:"([^"]*+(?:""[^"]*+)*+)"|([^"%b\r\n][^%b\r\n]*+|))(%b|\r?\n|\r?\Z)' % (sign, sign, sign)
    row = rb"(?:%b(?:%b%b)*+\n)" % (any_field, sign, any_field)
    return RowGrammar(
        delimiter=delimiter,
        row=re.compile(row),
        rows=re.compile(row + rb"*+"),
        fields=re.compile(rb"%b|(.)" % good_field, re.DOTALL),
        ends=re.compile(rb"[%b\n]" % sign),
    )


@dataclass(slots=True, kw_only=True)
class RowScanner:
    """Finds where rows end in bytes that come piece by piece; no piece is looked at twice, however long a row is.

    Attributes:
        grammar: how rows are taken apart.
        in_quotes: whether the bytes so far end inside quotes.
    """

    grammar: RowGrammar
    in_quotes: bool = False
    _begins_field: bool = field(default=True, init=False)
    _after_quote: bool = field(default=False, init=False)

    def first_end(self, data: bytes, start: int = 0) -> int:
        """Returns where the row that the bytes so far lie in ends, behind its newline; -1 if not in these bytes."""
        at = start
        while at < len(data):
            if self.in_quotes:
                at = data.find(QUOTE, at) + 1
                if not at:
                    return -1
                self.in_quotes, self._after_quote = False, True
            elif self._after_quote and data[at : at + 1] == QUOTE:
                self.in_quotes, self._after_quote = True, False
                at += 1
            elif self._begins_field and data[at : at + 1] == QUOTE:
                self.in_quotes, self._begins_field = True, False
                at += 1
            else:
                self._after_quote = self._begins_field = False
                found = self.grammar.ends.search(data, at)
                if found is None:
                    return -1
                at = found.end()
                self._begins_field = True
                if found.group() == b"\n":
                    return at
        return -1

    def last_end(self, data: bytes, start: int = 0) -> int:
        """Returns where the last row ends that does so in these bytes, of which one begins at `start`."""
        matched = self.grammar.rows.match(data, start)
        end = start if matched is None else matched.end()
        unfinished = self.first_end(data, end)
        assert unfinished < 0
        return end


def rows_of_bytes(grammar: RowGrammar, data: bytes) -> Iterator[bytes]:
    """Yields rows with their newlines; the last one may lack it, or the end of its quotes."""
    start = 0
    while found := grammar.row.match(data, start):
        yield found.group()
        start = found.end()
    if start < len(data):
        yield data[start:]


def num_rows_of(grammar: RowGrammar, data: bytes) -> int:
    """Returns how many rows some whole rows are."""
    return sum(1 for _ in grammar.row.finditer(data)) if QUOTE in data else data.count(b"\n")


def fields_of(grammar: RowGrammar, row: bytes) -> list[bytes] | None:
    """Returns the fields of a row without its newline; None if its quotes, or a carriage return, are out of place."""
    fields = []
    for quoted, plain, end, stray in grammar.fields.findall(row):
        if stray or end == b"\n" or end == b"\r\n":
            return None
        fields.append(quoted.replace(b'""', b'"') if quoted else plain)
        if not end.startswith(grammar.delimiter):
            return fields
    return None


def columns_of_rows(grammar: RowGrammar, data: bytes, num_columns: int) -> list[list[bytes]] | None:
    """Returns the fields of whole rows by column, without looking at any row; None if anything is unusual.

    Unusual are blank rows, other numbers of fields, and quotes or carriage returns out of place.
    """
    found = grammar.fields.findall(data if data.endswith(b"\n") else data + b"\n")
    found.pop()  # behind the last newline
    num_rows, rest = divmod(len(found), num_columns)
    ends = [end for _, _, end, _ in found]
    last = ends[num_columns - 1 :: num_columns]
    is_regular = last.count(b"\n") + last.count(b"\r\n") == num_rows
    if rest or not is_regular or ends.count(grammar.delimiter) != len(ends) - num_rows:
        return None
    values = [quoted.replace(b'""', b'"') if quoted else plain for quoted, plain, _, _ in found]
    if num_columns == 1 and b"" in values:
        return None
    return [values[number::num_columns] for number in range(num_columns)]
