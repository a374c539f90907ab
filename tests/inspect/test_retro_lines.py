"""A sample with its neighbors as lines: indented, folded, and harmless."""

from __future__ import annotations

from tokenloom.inspect.retro_lines import retro_lines
from tokenloom.inspect.retro_sample import QueriedChunk, RetrievedChunk, RetroSample
from tokenloom.inspect.shown_terminal import Look


def retrieved(text: str, *, start: int = 64, stop: int = 128) -> RetrievedChunk:
    return RetrievedChunk(chunk=7, data="web", document=1234, start=start, stop=stop, text=text)


def sample(*chunks: QueriedChunk, documents: tuple = (("books", 3),), num_retrieved: int = 2) -> RetroSample:
    return RetroSample(
        split="train", sample=5, num_samples=1000, documents=documents, num_retrieved=num_retrieved, chunks=chunks
    )


def chunk(text: str, *neighbors: tuple[RetrievedChunk, ...], start: int = 0) -> QueriedChunk:
    return QueriedChunk(start=start, stop=start + 64, text=text, neighbors=neighbors)


def test_neighbors_stand_below_their_chunk():
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
        "    then the document ends",
    ]


def test_many_documents_are_counted():
    many = tuple(("books", number) for number in range(20))
    lines = list(retro_lines(sample(documents=(*many, ("web", 1), ("books", 9))), Look(width=0)))
    assert lines[1] == ("of documents 0, 1, 2, 3, 4, 5, 6, 13 others of books, document 1 of web, document 9 of books")


def test_texts_cannot_drive_a_terminal():
    found = sample(chunk("a\x1b[2Jb\rc\td\n\n\u202ee", (retrieved("\x07"),)))
    lines = list(retro_lines(found, Look(width=20, colour=False, encoding="ascii")))
    text = "\n".join(lines)
    assert text.isascii()
    assert all(line.isprintable() for line in lines)
    assert "a\\x1b[2Jb\\rc" in text
    assert max(map(len, lines)) <= 20
    assert "-- chunk 0, tokens\n0 to 63\n" in text


def test_colours_only_where_they_are_wanted():
    found = sample(chunk("text", (retrieved("near"),)))
    plain = list(retro_lines(found, Look(colour=False)))
    coloured = list(retro_lines(found, Look(colour=True)))
    assert [line.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "") for line in coloured] == plain
    assert any("\x1b" in line for line in coloured)
