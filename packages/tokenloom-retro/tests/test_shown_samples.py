"""A sample with its neighbors: the tokens that training reads, and its lines."""

from __future__ import annotations

from tokenloom.inspect.shown import Look
from tokenloom_retro.sample import retro_lines


def retrieved(text, *, start=64, stop=128):
    return {"chunk": 7, "data": "web", "document": 1234, "start": start, "stop": stop, "text": text}


def sample(*chunks):
    which = {"split": "train", "sample": 5, "num_samples": 1000, "documents": [["books", 3]]}
    return {**which, "num_retrieved": 2, "chunks": chunks}


def chunk(text, *neighbors, start=0):
    return {"start": start, "stop": start + 64, "text": text, "neighbors": neighbors}


def test_neighbors_are_printed_below_their_chunk():
    found = sample(
        chunk("first line\nsecond\n", (retrieved("near"), retrieved("after it", start=128, stop=129)), ()),
        chunk("end[EOD]", (retrieved("last"),), start=64),
    )
    assert list(retro_lines(found, Look(width=40))) == [
        "sample 5 of 1,000 (train)",
        "of document 3 of books",
        "── chunk 0, tokens 0 to 63 ─────────────",
        "first line",
        "second",
        "    neighbor 1: document 1,234 of web,",
        "    tokens 64 to 127",
        "        near",
        "    then token 128",
        "        after it",
        "    neighbor 2: none",
        "── chunk 1, tokens 64 to 127 ───────────",
        "end[EOD]",
        "    neighbor 1: document 1,234 of web,",
        "    tokens 64 to 127",
        "        last",
        "    end of the document",
    ]


def test_terminal_escapes_are_shown_as_text():
    found = sample(chunk("a\x1b[2Jb\rc\td\n\n\u202ee", (retrieved("\x07"),)))
    lines = list(retro_lines(found, Look(width=20)))
    text = "\n".join(lines)
    assert all(line.isprintable() for line in lines)
    assert "a\\x1b[2Jb\\rc" in text
    assert max(map(len, lines)) <= 20
    assert "── chunk 0, tokens 0\nto 63" in text
