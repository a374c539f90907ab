"""Chunks that are alike, as lines: places, similarities, texts that cannot drive a terminal, widths."""

from __future__ import annotations

from dataclasses import replace

from tests.inspect.duplicates import BY_DOCUMENT, DUPLICATES, FOUND, NEAR, ONE

from tokenloom.inspect.shown_chunks import duplicate_lines, duplicate_words, neighbor_lines
from tokenloom.inspect.shown_terminal import Look
from tokenloom.rendering.terminal import cell_width
from tokenloom.retro.document_neighbors import NeighborsOfChunk


def test_documents_stand_with_the_chunks_that_are_most_alike():
    lines = list(neighbor_lines(replace(FOUND, documents=(BY_DOCUMENT,)), Look(width=80), lines=1))
    assert lines == [
        "document 3 of web (a.jsonl:4): 2 chunks, compared with 5,000 by letters",
        "",
        "0.500  document 1,234 of books; 1 of 2 chunks among the nearest, at most 0.988",
        "alike",
        "       here, tokens [0, 64)",
        "  │ two↵lines \\x1b[31m",
        "       there, tokens [64, 70)",
        "  │ " + ("漢字 " * 15).rstrip(),
    ]


def test_chunks_stand_below_the_one_that_they_are_like():
    of_chunk = NeighborsOfChunk(chunk=ONE, neighbors=(NEAR,))
    lines = list(neighbor_lines(replace(FOUND, chunks=(of_chunk,)), Look(width=80), lines=0))
    assert lines[2:] == ["chunk of tokens [0, 64)", "0.988  books, document 1,234, tokens [64, 70)"]


def test_where_nothing_is_alike_that_is_said():
    assert list(neighbor_lines(FOUND, Look()))[-1] == "nothing is like it"


def test_lines_are_as_wide_as_they_may_be():
    found = replace(FOUND, documents=(BY_DOCUMENT,))
    for width in (20, 40, 80):
        look = Look(width=width)
        lines = [*duplicate_lines(DUPLICATES, look, most=3), *neighbor_lines(found, look)]
        assert max(map(cell_width, lines)) <= width
    assert "\\u6f22" in "".join(duplicate_lines(DUPLICATES, Look(encoding="ascii"), most=1))


def test_pairs_that_are_not_shown_are_counted():
    lines = list(duplicate_lines(DUPLICATES, Look(width=80), most=1, lines=0))
    assert lines == [
        "1 of 10 chunks of `books` are also in `web`: 2 pairs of chunks with a",
        "similarity of 0.9 or more, in 1 pair of documents",
        "",
        "0.988  books, document 1,234, tokens [64, 70)",
        "       web, document 3 (a.jsonl:4), tokens [0, 64)",
        "",
        "and 1 more pair",
    ]


def test_what_does_not_count_is_said():
    inside = replace(DUPLICATES, benchmark=None, num_inside_documents=3, num_short=1, num_full=2)
    assert duplicate_words(inside) == (
        "1 of 10 chunks of `web` are in another document, too: 2 pairs of chunks with a similarity of 0.9 or more, in "
        "1 pair of documents; 3 pairs inside one document are not counted; 1 pair with fewer than 16 tokens are left "
        "out; 2 chunks may have more similar ones than were looked at"
    )
