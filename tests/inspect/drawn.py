"""What is drawn in tests: a sample of two documents, with everything that a token can be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tests.indexed.origins import files_of, runs_of_records

from tokenloom.indexed.origins import Origins
from tokenloom.inspect.shown import NO_PART, NO_SPAN, Shown, ShownSpan, TokenKind

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


def shown(
    texts: Sequence[str],
    *,
    spans: Sequence[ShownSpan] = (),
    spans_of: Sequence[int] | None = None,
    kinds: Sequence[TokenKind] | None = None,
    parts: Sequence[int] | None = None,
    loss: Sequence[bool] | None = None,
    **changes: object,
) -> Shown:
    """Returns tokens with ids from 100 on; by default text of the one span that there is, if there is one."""
    size = len(texts)
    return Shown(
        spans=tuple(spans),
        num_tokens=size,
        ids=np.arange(100, 100 + size),
        texts=tuple(texts),
        kinds=np.array([TokenKind.text] * size if kinds is None else kinds, dtype=np.uint8),
        spans_of=np.array(([0] if spans else [NO_SPAN]) * size if spans_of is None else spans_of, dtype=np.int32),
        parts=np.array([NO_PART] * size if parts is None else parts, dtype=np.int8),
        loss=None if loss is None else np.array(loss, dtype=np.bool_),
        **{"heading": "position 7", **changes},
    )


def sample() -> Shown:
    """Returns the end of a document, another one whole, a denied one, an empty one, and padding."""
    kinds = [TokenKind.text, TokenKind.eod, TokenKind.bos, *[TokenKind.text] * 3, TokenKind.eod]
    kinds += [TokenKind.denied] * 2 + [TokenKind.padding] * 3
    return shown(
        ["end.", "<eod>", "<s>", "two\nlines", "", "é", "<eod>", *[""] * 5],
        spans=[
            span(3, 8, 10, slot=0, origin="raw/web.jsonl:17"),
            span(5, 0, 5, slot=2, num_tokens=5),
            span(6, 0, 2, slot=7, denied=True),
            span(8, 0, 0, slot=9, num_tokens=0),
        ],
        spans_of=[0, 0, 1, 1, 1, 1, 1, 2, 2, NO_SPAN, NO_SPAN, NO_SPAN],
        kinds=kinds,
        loss=[False, True, False, True, True, True, True, *[False] * 5],
        notes=("a note",),
    )


def origins_of(path: str, records: Sequence[tuple[int, int]]) -> Origins:
    """Returns which records of a file documents were made of; (-1, 0) where that is not known."""
    return Origins.from_runs(files_of(path), runs_of_records(records))
