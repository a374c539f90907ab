"""What is drawn in tests: a sample of two documents, with everything that a token can be."""

from collections.abc import Sequence
from itertools import starmap
from types import SimpleNamespace

from tests.indexed.origins import files_of, runs_of_records

from tokenloom.indexed.origins import Origins
from tokenloom.inspect.shown import Shown, ShownSpan, ShownToken

_ATTRIBUTES = ("id", "text", "kind", "part", "loss", "span")

HOSTILE = (
    "<script>alert(1)</script>",
    "</span></div><img src=x onerror=alert(1)>",
    "\" onmouseover='x' &amp; &#60;",
    "\x1b[31mred\x1b]0;title\x07",
    "\x9b2J",
    "\u202egnp.exe\u2066",
    "nul\x00 del\x7f",
    "lone \ud800",
    "\u2028\r\n\t",
    "a\u200bb\ufeff",
)
"""Texts that would do harm if they reached a page or a terminal as they are."""


def span(number: int, start: int, stop: int, *, slot: int, source: str = "web", **changes: object) -> ShownSpan:
    """Returns tokens of document `number`, which has 10."""
    settings = {"prefix": "data/web", "row": number, "num_tokens": 10, **changes}
    return ShownSpan(source=source, document=number, start=start, stop=stop, slot=slot, **settings)


def shown(texts, *, spans=(), spans_of=None, kinds=None, parts=None, loss=None, **changes) -> Shown:
    """Returns tokens with ids from 100 on; by default text of the one span that there is, if there is one."""
    size = len(texts)
    columns = (
        range(100, 100 + size),
        texts,
        ["text"] * size if kinds is None else kinds,
        [None] * size if parts is None else parts,
        [None] * size if loss is None else loss,
        ([0] if spans else [None]) * size if spans_of is None else spans_of,
    )
    tokens = tuple(starmap(ShownToken, zip(*columns, strict=True)))
    return Shown(spans=tuple(spans), num_tokens=size, tokens=tokens, **{"heading": "position 7", **changes})


def columns_of(what: Shown) -> SimpleNamespace:
    """Returns a list per attribute of tokens: `id`, `text`, `kind`, `part`, `loss` and `span`."""
    return SimpleNamespace(**{name: [getattr(token, name) for token in what.tokens] for name in _ATTRIBUTES})


def sample() -> Shown:
    """Returns the end of a document, another one whole, a denied one, an empty one, and padding."""
    kinds = ["text", "eod", "bos", *["text"] * 3, "eod", *["denied"] * 2, *["padding"] * 3]
    return shown(
        ["end.", "<eod>", "<s>", "two\nlines", "", "é", "<eod>", *[""] * 5],
        spans=[
            span(3, 8, 10, slot=0, origin="raw/web.jsonl:17"),
            span(5, 0, 5, slot=2, num_tokens=5),
            span(6, 0, 2, slot=7, denied=True),
            span(8, 0, 0, slot=9, num_tokens=0),
        ],
        spans_of=[0, 0, 1, 1, 1, 1, 1, 2, 2, None, None, None],
        kinds=kinds,
        loss=[False, True, False, True, True, True, True, *[False] * 5],
        notes=("a note",),
    )


def origins_of(path: str, records: Sequence[tuple[int, int]]) -> Origins:
    """Returns which records of a file documents were made of; (-1, 0) where that is not known."""
    return Origins.from_runs(files_of(path), [runs_of_records(records)])
