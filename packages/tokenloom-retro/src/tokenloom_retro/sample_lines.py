"""A sample with its neighbors as lines of a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from tokenloom.inspect.shown_terminal import Look
from tokenloom.rendering.terminal import Piece, cell_width, folded, plain_text, written
from tokenloom.rendering.words import counted
from tokenloom_retro.sample import QueriedChunk, RetrievedChunk, RetroSample

_HEADING = "1"
_FAINT = "2"
_RULE = "─"
_INDENT = 4
_TAB_COLUMNS = 4


def retro_lines(sample: RetroSample, look: Look | None = None) -> Iterator[str]:
    """Yields lines, without line breaks: each chunk of a sample, and below it its neighbors, indented.

    Texts of data cannot drive a terminal, whatever they hold.
    """
    look = Look() if look is None else look
    yield from _lines(f"sample {sample.sample:,} of {sample.num_samples:,} ({sample.split})", look, style=_HEADING)
    yield from _lines(f"of {_documents_in_words(sample.documents)}", look)
    for number, chunk in enumerate(sample.chunks):
        yield from _rule(f"chunk {number}, tokens {chunk.start:,} to {chunk.stop - 1:,}", look)
        yield from _lines(chunk.text, look)
        yield from _neighbor_lines(chunk, sample.num_retrieved, look)


def _neighbor_lines(chunk: QueriedChunk, num_retrieved: int, look: Look) -> Iterator[str]:
    for number, retrieved in enumerate(chunk.neighbors, 1):
        if not retrieved:
            yield from _lines(f"neighbor {number}: none", look, style=_FAINT, indent=_INDENT)
            continue
        first, *others = retrieved
        where = f"document {first.document:,} of {first.data}, {_tokens_of(first)}"
        yield from _lines(f"neighbor {number}: {where}", look, style=_FAINT, indent=_INDENT)
        yield from _lines(first.text, look, indent=2 * _INDENT)
        for other in others:
            yield from _lines(f"then {_tokens_of(other)}", look, style=_FAINT, indent=_INDENT)
            yield from _lines(other.text, look, indent=2 * _INDENT)
        if len(retrieved) < num_retrieved:
            yield from _lines("then the document ends", look, style=_FAINT, indent=_INDENT)


def _tokens_of(chunk: RetrievedChunk) -> str:
    if chunk.stop - chunk.start == 1:
        return f"token {chunk.start:,}"
    return f"tokens {chunk.start:,} to {chunk.stop - 1:,}"


def _documents_in_words(documents: Sequence[tuple[str, int]]) -> str:
    """Returns which documents stand in a sample, by data set, in their order."""
    words = []
    for data, group in groupby(documents, key=lambda each: each[0]):
        numbers = [f"{number:,}" for _, number in group]
        several = "s" if len(numbers) > 1 else ""
        shown = numbers if len(numbers) <= 8 else [*numbers[:7], f"{counted(len(numbers) - 7, 'other')}"]
        words.append(f"document{several} {', '.join(shown)} of {data}")
    return ", ".join(words)


def _rule(heading: str, look: Look) -> Iterator[str]:
    line = _RULE if plain_text(_RULE, look.encoding) == _RULE else "-"
    text = f"{line * 2} {heading}"
    room = look.width - cell_width(text) - 1
    yield from _lines(f"{text} {line * room}" if room > 1 else text, look, style=_HEADING)


def _lines(text: str, look: Look, *, style: str = "", indent: int = 0) -> Iterator[str]:
    """Yields text as lines, which break where it does and where the width ends."""
    width = max(look.width - indent, 2) if look.width else 0
    for line in text.expandtabs(_TAB_COLUMNS).removesuffix("\n").split("\n"):
        pieces = [Piece(plain_text(line, look.encoding), style)]
        for part in _folded(pieces, width):
            yield (" " * indent + written(part, colour=look.colour)).rstrip(" ")


def _folded(pieces: Iterable[Piece], width: int) -> Iterator[list[Piece]]:
    """Yields lines, an empty one for nothing."""
    empty = True
    for line in folded(pieces, width):
        empty = False
        yield line
    if empty:
        yield []
