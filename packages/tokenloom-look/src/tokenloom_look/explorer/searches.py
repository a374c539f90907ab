"""Searches all documents for a text or ids; each request searches a part of them and returns a cursor to continue.

A search compares ids if some tokens of the text do not depend on the surrounding text. Otherwise, for short texts, the
search decodes all data, which is a hundred times slower. In documents that were tokenized with BPE dropout, only
decoding finds a text reliably.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.indexed.layout import IMAGE_MODE
from tokenloom.inspect.shown import OpenPair
from tokenloom.inspect.texts import TOKENS_AT_ONCE, StableIds, places_of_ids, stretches
from tokenloom.numbers import items_of, parse_integer, quoted
from tokenloom.tokenizers.text_tokenizer import decoded
from tokenloom_look.explorer.queries import Query
from tokenloom_look.explorer.session import Session
from tokenloom_look.html import element, joined

SECONDS = 0.3  # maximum time of a request
_MOST_MATCHES = 50
_MOST_IDS = 256
_MOST_KEPT = 8
_MOST_CHARACTERS = 2000
_DECODED_AT_ONCE = 2048
_AROUND = 24  # tokens of context before and after a match
_CURSOR = re.compile(r"([0-9]{1,10})\.([0-9]{1,15})\.([0-9]{1,15})\.([0-9]{1,19})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The place where a search continues, and the number of tokens searched so far."""

    pair: int
    row: int = 0
    start: int = 0
    searched: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        if (found := _CURSOR.fullmatch(text)) is None:
            raise ConfigError(f"`cursor` must have the form PAIR.ROW.START.SEARCHED, got {quoted(text)}")
        pair, row, start, searched = map(int, found.groups())
        return cls(pair=pair, row=row, start=start, searched=searched)

    def __str__(self) -> str:
        return f"{self.pair}.{self.row}.{self.start}.{self.searched}"


class _Place(NamedTuple):
    """A match: tokens [start, stop) of sequence `row`; a search from token `again` on finds this match again."""

    row: int
    start: int
    stop: int
    again: int


@dataclass(frozen=True, slots=True)
class _Stage:
    """The matches in one part of a pair, and the sequence `row` and token `start` to continue from."""

    places: list[_Place]
    row: int
    start: int


def search(session: Session, query: Query, *, seconds: float = SECONDS) -> dict[str, Any]:
    """Searches for at most `seconds`; returns matches, and a cursor to continue from (None at the end)."""
    text, ids = query.optional_text("text"), query.optional_text("ids")
    chosen = None if query.optional_text("source") is None else session.source(query)
    cursor = query.optional_text("cursor")
    query.check_read()
    if (text is None) == (ids is None):
        raise ConfigError("the query must have either `text` or `ids`")
    pattern = _Pattern.of_ids(ids) if text is None else _pattern_of(session, text)
    pairs, total = _pairs(session, chosen)
    at = Cursor(pair=pairs.start) if cursor is None else Cursor.parse(cursor)
    if at.pair not in pairs and len(pairs):
        raise ConfigError(f"`cursor` must belong to this search, got {quoted(str(at))}")
    matches: list[dict[str, Any]] = []
    until = time.monotonic() + seconds
    end = False
    while not end:
        at, found, end = _next(session, pattern, at, pairs, most=_MOST_MATCHES - len(matches), until=until)
        matches += found
        if len(matches) >= _MOST_MATCHES or time.monotonic() >= until:
            break
    return {
        "matches": matches,
        "method": pattern.method,
        "searched_tokens": total if end else at.searched,
        "total_tokens": total,
        "cursor": None if end else str(at),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """The search pattern: ids, a text searched by its ids, or a text searched by decoding."""

    ids: tuple[int, ...] = ()
    text: str = ""
    stable: StableIds | None = None
    tokenizer: Any = None

    @classmethod
    def of_ids(cls, text: str | None) -> _Pattern:
        items = [item for item in items_of(text or "", blanks_separate=True) if item.text]
        ids = [parse_integer(item.text, item.place, at_least=0) for item in items]
        if not 0 < len(ids) <= _MOST_IDS or max(ids) >= 2**63:
            raise ConfigError(f"`ids`: must be 1 to {_MOST_IDS} token ids, got {quoted(text or '')}")
        return cls(ids=tuple(ids))

    @classmethod
    def of_text(cls, text: str, session: Session) -> _Pattern:
        tokenizer = session.target.tokenizer
        if tokenizer is None:
            raise ConfigError("searching for text needs a tokenizer", hint="search for ids, or pass --tokenizer")
        if len(text) > _MOST_CHARACTERS:
            raise ConfigError(f"`text`: must have at most {_MOST_CHARACTERS} characters, got {len(text)}")
        try:
            stable = StableIds.of(text, tokenizer)
        except ConfigError:  # too short: search by decoding, which `method` reports
            return cls(text=text, tokenizer=tokenizer)
        return cls(text=text, ids=stable.ids, stable=stable, tokenizer=tokenizer)

    @property
    def method(self) -> str:
        if self.ids:
            return "ids" if self.stable is None else "text by ids"
        return "text by decoding"

    def stages(self, pair: OpenPair, row: int, start: int, until: float) -> Iterator[_Stage]:
        """Yields matches from token `start` of sequence `row` on, part by part; a part may end at the time `until`."""
        if self.ids:
            return self._stages_of_ids(pair, row, start, until)
        return self._stages_of_text(pair, row, start)

    def _stages_of_ids(self, pair: OpenPair, row: int, start: int, until: float) -> Iterator[_Stage]:
        for found in places_of_ids(pair.data, self.ids, row=row, start=start, at_once=TOKENS_AT_ONCE):
            places: list[_Place] = []
            for at, begin in zip(found.rows.tolist(), found.starts.tolist(), strict=True):
                if len(places) > _MOST_MATCHES:
                    break
                if _is_image(pair, at):
                    continue
                place: tuple[int, int] | None = (begin, begin + len(self.ids))
                if self.stable is not None:
                    if (at, begin) > (row, start) and time.monotonic() >= until:
                        yield _Stage(places, at, begin)
                        return
                    place = self.stable.place_in(pair.data, at, begin, self.tokenizer)
                if place is not None:
                    places.append(_Place(at, *place, begin))
            yield _Stage(places, found.next_row, found.next_start)

    def _stages_of_text(self, pair: OpenPair, row: int, start: int) -> Iterator[_Stage]:
        overlap = len(self.text.encode(errors="replace")) + 8
        lengths = pair.data.sequence_lengths
        for span in stretches(lengths, overlap=overlap, row=row, start=start, at_once=_DECODED_AT_ONCE):
            tokens = span.tokens_of(pair.data)
            ends = np.cumsum(span.lengths).tolist()
            places: list[_Place] = []
            rows = zip(span.rows.tolist(), span.starts.tolist(), ends, span.lengths.tolist(), strict=True)
            for at, first, end, length in rows:
                if _is_image(pair, at):
                    continue
                begins_next = span.next_start - first if span.next_row == at else length
                for begin, stop in _places(self.text, tokens[end - length : end].tolist(), self.tokenizer):
                    if begin >= begins_next or len(places) > _MOST_MATCHES:  # the next part finds this match again
                        break
                    places.append(_Place(at, first + begin, first + stop, first + begin))
            yield _Stage(places, span.next_row, span.next_start)


def _pattern_of(session: Session, text: str) -> _Pattern:
    """Returns the pattern of a text, cached between requests."""
    if (found := session.patterns.get(text)) is None:
        if len(session.patterns) >= _MOST_KEPT:
            session.patterns.clear()
        found = session.patterns[text] = _Pattern.of_text(text, session)
    return found


def _next(
    session: Session, pattern: _Pattern, at: Cursor, pairs: range, *, most: int, until: float
) -> tuple[Cursor, list[dict[str, Any]], bool]:
    """Searches one part of a pair; returns the new cursor, at most `most` matches, and whether the search has ended."""
    if at.pair not in pairs:
        return at, [], True
    pair = session.target.pairs.get(session.target.pair_rows.prefixes[at.pair])
    stage = None
    if at.row < len(pair.data):
        if at.start > 0 and at.start >= int(pair.data.sequence_lengths[at.row]):
            raise ConfigError(f"`cursor` must belong to this search, got {quoted(str(at))}")
        stage = next(pattern.stages(pair, at.row, at.start, until), None)
    if stage is None:  # the end of the pair
        searched = at.searched
        return Cursor(pair=at.pair + 1, searched=searched), [], at.pair + 1 not in pairs
    found = [_match(session, pair, at.pair, place) for place in stage.places[:most]]
    if len(stage.places) > most:
        rest = stage.places[most]
        return _moved(pair, at, rest.row, rest.again), found, False
    return _moved(pair, at, stage.row, stage.start), found, stage.row >= len(pair.data) and at.pair + 1 not in pairs


def _moved(pair: OpenPair, at: Cursor, row: int, start: int) -> Cursor:
    """Returns the cursor moved to token `start` of sequence `row` in the same pair."""
    passed = int(pair.data.sequence_lengths[at.row : row].sum(dtype=np.int64)) - at.start + start
    return Cursor(pair=at.pair, row=row, start=start, searched=at.searched + passed)


def _pairs(session: Session, source: int | None) -> tuple[range, int]:
    """Returns the indices of the pairs to search, and their total number of tokens."""
    sources, bounds = session.target.sources, session.target.pair_rows.first_pairs.tolist()
    if source is None:
        return range(bounds[0], bounds[-1]), sum(each.num_tokens for each in sources)
    return range(bounds[source], bounds[source + 1]), sources[source].num_tokens


def _match(session: Session, pair: OpenPair, number: int, place: _Place) -> dict[str, Any]:
    row, start, stop, _ = place
    owner = pair.document_of(row)
    first_row = pair.rows_of(owner).start
    lengths = pair.data.sequence_lengths[first_row:row].astype(np.int64)
    if pair.data.multimodal:
        lengths[np.asarray(pair.data.sequence_modes[first_row:row]) == IMAGE_MODE] = 1
    document = row if session.target.run is not None else owner
    return {
        "source": session.target.pair_rows.source_of(number),
        "document": int(session.target.pair_rows.first_documents[number]) + document,
        "start": int(lengths.sum()) + start,
        "length": stop - start,
        "context_html": _context(pair, place, session.target.tokenizer),
    }


def _context(pair: OpenPair, place: _Place, tokenizer: Any) -> str:
    """Returns a match with its context as HTML; the match is in `<mark>`."""
    row, start, stop, _ = place
    first, last = max(0, start - _AROUND), min(int(pair.data.sequence_lengths[row]), stop + _AROUND)
    found = pair.data.get(row, first, last - first)
    ids = (found[0] if pair.data.multimodal else found).tolist()
    cut = (0, start - first, stop - first, last - first)
    texts = [decoded(ids[begin:end], tokenizer) for begin, end in pairwise(cut)]
    between = "" if tokenizer is not None else " "
    parts = [texts[0].lstrip("\ufffd"), element("mark", texts[1]), texts[2].rstrip("\ufffd")]
    return joined(
        ["… " if first else "", joined(parts, between), "" if last == pair.data.sequence_lengths[row] else " …"]
    )


def _is_image(pair: OpenPair, row: int) -> bool:
    return pair.data.multimodal and int(pair.data.sequence_modes[row]) == IMAGE_MODE


def _places(text: str, tokens: list[int], tokenizer: Any) -> Iterator[tuple[int, int]]:
    """Yields the range of tokens, (first, end), of each occurrence of a text; the end is exclusive."""
    last = -1
    for place in range(decoded(tokens, tokenizer).count(text)):
        # Binary search works since adding tokens never removes an occurrence.
        stop = _least(lambda end: decoded(tokens[:end], tokenizer).count(text) > place, len(tokens))  # noqa: B023
        begin = _least(lambda begin: text not in decoded(tokens[begin:stop], tokenizer), stop) - 1  # noqa: B023
        if begin > last:
            yield begin, stop
            last = begin


def _least(holds: Callable[[int], bool], most: int) -> int:
    """Returns the smallest number below `most` for which the monotone condition `holds` is true; `most` if none."""
    return bisect_left(range(most), 1, key=holds)
