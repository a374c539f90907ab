"""What the marks of a drawing mean, in words: the same in terminal, report and explorer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tokenloom.indexed.roles import PartKind
from tokenloom.inspect.shown import Shown, TokenKind, TokenRun
from tokenloom.rendering.plain import printable

PADDING = frozenset({TokenKind.padding, TokenKind.denied})
"""Kinds that are drawn as their number, since all their tokens are alike."""

PARTIAL = "▏"
"""Stands for a token that only begins a character, and so adds no text."""

NEWLINE = "↵"
"""Stands before a line break of the data."""

TAB = "→"
"""Stands before a tab of the data."""

_KINDS = {
    TokenKind.eod: "end of document",
    TokenKind.bos: "begin of document",
    TokenKind.special: "special token",
    TokenKind.padding: "padding",
    TokenKind.denied: "denied document: padding",
    TokenKind.image: "image",
}
_PARTS = {PartKind.prompt: "prompt", PartKind.answer: "answer"}


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A mark that occurs.

    Attributes:
        style: what it is drawn as: "loss", "no-loss", "prompt", "answer", the name of a `TokenKind`, "partial",
            "newline", "tab" or "escape".
        name: what that is.
        meaning: what follows from it; "" where the name says it.
        sign: the sign that stands there, if there is one.
    """

    style: str
    name: str
    meaning: str = ""
    sign: str = ""


def styles(run: TokenRun) -> tuple[str, ...]:
    """Returns what a run is drawn as: kind, part and loss, as far as they are more than text."""
    kind = () if run.kind == TokenKind.text else (run.kind.name,)
    part = () if run.part is None or run.part == PartKind.text else (run.part.name,)
    loss = () if run.loss is None else ("loss" if run.loss else "no-loss",)
    return (*kind, *part, *loss)


def kind_words(run: TokenRun) -> str:
    """Returns the kind of a run in words; "" for text."""
    return _KINDS.get(run.kind, "")


def teaching_words(run: TokenRun) -> str:
    """Returns part and loss of a run in words, such as "answer, with loss"; "" of padding, and where none is known."""
    if run.kind in PADDING:
        return ""
    part = None if run.part is None else _PARTS.get(run.part)
    loss = None if run.loss is None else ("with loss" if run.loss else "without loss")
    return ", ".join(word for word in (part, loss) if word is not None)


def padding_words(run: TokenRun) -> str:
    """Returns padding as its number, such as "[padding x 12]"."""
    name = "padding" if run.kind == TokenKind.padding else "denied: padding"
    return f"[{name} x {run.stop - run.start:,}]"


def text_of_special(shown: Shown, index: int) -> str:
    """Returns what stands for a token that is no text: its spelling, an image in brackets, or the kind in words."""
    text, kind = shown.texts[index], TokenKind(shown.kinds[index])
    if kind == TokenKind.image:
        return f"[{text}]"
    return text or f"[{_KINDS[kind]}]"


def legend(shown: Shown) -> Iterator[LegendEntry]:
    """Yields the marks that occur in what is shown, and no others."""
    if shown.loss is not None and len(shown):
        if shown.loss.any():
            yield LegendEntry("loss", "with loss", "the model learns to predict it")
        if not shown.loss[~np.isin(shown.kinds, list(PADDING))].all():
            yield LegendEntry("no-loss", "without loss", "the model only reads it")
    for part, words in _PARTS.items():
        if (shown.parts == part).any():
            yield LegendEntry(part.name, words)
    for kind, words in _KINDS.items():
        if (shown.kinds == kind).any():
            yield LegendEntry(kind.name, words)
    are_text = np.flatnonzero(shown.kinds == TokenKind.text).tolist()
    texts = [shown.texts[index] for index in are_text]
    if "" in texts:
        yield LegendEntry("partial", "a token that only begins a character", sign=PARTIAL)
    together = "".join(texts)
    if "\n" in together:
        yield LegendEntry("newline", "line break", sign=NEWLINE)
    if "\t" in together:
        yield LegendEntry("tab", "tab", sign=TAB)
    if printable(together) != together:
        yield LegendEntry("escape", "a character without glyph", sign=r"\x1b")
