"""Chunks that are like each other as lines for a terminal or a log: places, similarities, and how their texts begin."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tokenloom.inspect.shown_terminal import Look
from tokenloom.inspect.shown_words import NEWLINE
from tokenloom.rendering.terminal import Piece, folded, plain_text
from tokenloom.rendering.words import counted
from tokenloom.retro.document_neighbors import ChunkNeighbor, DocumentNeighbors, ShownChunk
from tokenloom.retro.pair_duplicates import NearDuplicates

_LINES = 3
"""Lines of a text that are shown."""

_INDENT = "  "


def neighbor_lines(found: DocumentNeighbors, look: Look, *, lines: int = _LINES) -> Iterator[str]:
    """Yields what is most like a document, as lines of at most `look.width` columns.

    Args:
        found: what was found.
        look: width and encoding.
        lines: lines of each text; 0 for none.
    """
    heading = f"document {found.document:,} of {found.prefix}{_made_of(found.origin)}: "
    heading += f"{counted(found.num_chunks, 'chunk')}, compared with {found.num_searched:,} by {found.embedder}"
    yield from _folded(heading, look)
    if not found.documents and not any(each.neighbors for each in found.chunks):
        yield from _folded("nothing is like it", look)
    for each in found.documents:
        alike = f"{each.num_chunks:,} of {counted(found.num_chunks, 'chunk')} among the nearest"
        place = f"document {each.document:,} of {each.prefix}{_made_of(each.origin)}"
        yield ""
        yield from _folded(
            f"{each.similarity:.3f}  {place}; {alike}, at most {each.nearest.similarity:.3f} alike", look
        )
        yield from _folded(f"       here, tokens {_span(each.own)}", look)
        yield from _text(each.own, look, lines)
        yield from _folded(f"       there, tokens {_span(each.nearest.chunk)}", look)
        yield from _text(each.nearest.chunk, look, lines)
    for of_chunk in found.chunks:
        yield ""
        yield from _folded(f"chunk of tokens {_span(of_chunk.chunk)}", look)
        yield from _text(of_chunk.chunk, look, lines)
        for neighbor in of_chunk.neighbors:
            yield from _folded(_neighbor(neighbor), look)
            yield from _text(neighbor.chunk, look, lines)


def duplicate_lines(found: NearDuplicates, look: Look, *, most: int, lines: int = _LINES) -> Iterator[str]:
    """Yields what is nearly the same, as lines of at most `look.width` columns.

    Args:
        found: what was found.
        look: width and encoding.
        most: pairs that are shown.
        lines: lines of each text; 0 for none.
    """
    yield from _folded(duplicate_words(found), look)
    for pair in islice(found.chunks, most):
        yield ""
        yield from _folded(f"{pair.similarity:.3f}  {_place(pair.first)}", look)
        yield from _text(pair.first, look, lines)
        yield from _folded(f"       {_place(pair.second)}", look)
        yield from _text(pair.second, look, lines)
    if found.num_pairs > most:
        yield ""
        yield from _folded(f"and {counted(found.num_pairs - most, 'more pair')}", look)


def duplicate_words(found: NearDuplicates) -> str:
    """Returns in a few sentences what is nearly the same."""
    where = f"also in `{found.corpus}`" if found.benchmark is not None else "in another document, too"
    of = found.benchmark or found.corpus
    words = [
        f"{found.num_found:,} of {counted(found.num_chunks, 'chunk')} of `{of}` are {where}: "
        f"{counted(found.num_pairs, 'pair')} of chunks with a similarity of {found.threshold:g} or more, in "
        f"{counted(found.num_document_pairs, 'pair')} of documents"
    ]
    if found.num_inside_documents:
        words.append(f"{counted(found.num_inside_documents, 'pair')} inside one document are not counted")
    if found.num_short:
        words.append(f"{counted(found.num_short, 'pair')} with fewer than {found.least_tokens:,} tokens are left out")
    if found.num_full:
        words.append(f"{counted(found.num_full, 'chunk')} may have more similar ones than were looked at")
    return "; ".join(words)


def _neighbor(neighbor: ChunkNeighbor) -> str:
    return f"{neighbor.similarity:.3f}  {_place(neighbor.chunk)}"


def _place(chunk: ShownChunk) -> str:
    return f"{chunk.prefix}, document {chunk.document:,}{_made_of(chunk.origin)}, tokens {_span(chunk)}"


def _span(chunk: ShownChunk) -> str:
    return f"[{chunk.start:,}, {chunk.end:,})"


def _made_of(origin: str | None) -> str:
    return "" if origin is None else f" ({origin})"


def _text(chunk: ShownChunk, look: Look, most: int) -> Iterator[str]:
    """Yields how a text begins, indented."""
    mark = "│ "
    shown = chunk.text.replace("\n", NEWLINE)
    width = max(2, look.width - len(_INDENT) - len(mark)) if look.width else 0
    folds = folded([Piece(plain_text(shown, look.encoding))], width)
    for line in islice(folds, most):
        yield plain_text(f"{_INDENT}{mark}{''.join(piece.text for piece in line)}", look.encoding).rstrip()


def _folded(text: str, look: Look) -> Iterator[str]:
    for line in folded([Piece(plain_text(text, look.encoding))], look.width):
        yield "".join(piece.text for piece in line).rstrip()
