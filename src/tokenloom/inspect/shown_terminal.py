"""Documents and samples as lines of a terminal or a log: coloured, or plain with marks that say the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from tokenloom.inspect.shown import (
    LEGEND,
    NEWLINE,
    PADDING,
    PARTIAL,
    SIGNS,
    SPACE,
    TAB,
    Shown,
    ShownToken,
    TokenRun,
    padding_words,
)
from tokenloom.rendering.words import Piece, cell_width, lines_of, printable

_STYLES = {
    "no-loss": "dim",
    "prompt": "cyan",
    "answer": "bold green",
    "eod": "reverse yellow",
    "bos": "reverse cyan",
    "special": "bold yellow",
    "padding": "dim",
    "denied": "red",
    "image": "bold blue",
}
"""Faint, reversed and bold tell apart what colours do, to every eye."""

_SIGN = "magenta"

_MARKS = {"eod": "EOD", "bos": "BOS", "special": ""}
"""What special tokens are called where no colour tells them from text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How lines are drawn.

    Attributes:
        width: columns of a line.
        colour: whether to use colours and styles; else marks in brackets say the same.
        ids: whether to write the id of each token below it.
        most_tokens: tokens of a section to show, from its begin and its end; None for all.
    """

    width: int = 80
    colour: bool = False
    ids: bool = False
    most_tokens: int | None = None


class _Cell(NamedTuple):
    """What is drawn of a token, its id, and whether it has a line of its own."""

    pieces: Sequence[Piece]
    below: str = ""
    is_alone: bool = False


def shown_lines(shown: Shown, look: Look) -> Iterator[str]:
    """Yields lines, without line breaks: headings with tokens below them, and the marks that occur.

    Texts of data cannot drive a terminal, whatever they hold.
    """
    for pieces in _Drawing(shown, look).pieces():
        yield from filter(None, lines_of(pieces, look.width, colour=look.colour))


class _Drawing:
    """What is shown, on its way to lines."""

    def __init__(self, shown: Shown, look: Look) -> None:
        self._shown = shown
        self._look = look
        self._said = ""  # part and loss, of what was drawn last
        self._signs = {"\n": NEWLINE, "\t": TAB, " ": SPACE} if look.ids else {"\n": f"{NEWLINE}\n", "\t": f"{TAB}   "}

    def pieces(self) -> Iterator[Sequence[Piece]]:
        """Yields what begins a line each."""
        shown, origin, sections = self._shown, None, list(self._shown.sections())
        if len(sections) != 1 or any(token.loss is not None for token in shown.tokens):  # else its section says it
            yield [(printable(shown.heading, keep=""), "bold")]
            yield [(printable(", ".join(f"{name} {value}" for name, value in shown.facts), keep=""), "")]
            origin = dict(shown.facts).get("made of")
        for note in shown.notes:
            yield [(printable(f"note: {note}", keep=""), "")]
        for section in sections:
            if heading := printable(section.heading, keep=""):
                yield [(f"── {heading} {'─' * (self._look.width - cell_width(heading) - 4)}", "bold")]
            if section.span is not None and section.span.origin not in (None, origin):
                origin = section.span.origin
                yield [(printable(f"made of {origin}", keep=""), "dim")]
            yield from (self._grid if self._look.ids else self._flow)(self._cells(section.runs))
        if legend := list(self._legend()):
            yield [("legend: ", "dim"), *legend[1:]]

    def _legend(self) -> Iterator[Piece]:
        for each in (*self._shown.legend(), *([SPACE] if self._look.ids else [])):
            if each in ("padding", "denied", "image"):  # which is said by what stands there
                continue
            yield "; ", ""
            name, _, meaning = (LEGEND | SIGNS)[each].partition(": ")
            if each in SIGNS:
                yield each, _SIGN
                yield f" {name}", ""
            elif self._look.colour:
                yield name, _STYLES.get(each, "")
                yield f": {meaning}" if meaning else "", ""
            else:
                yield f"[{_MARKS.get(each, name) or '...'}] {meaning or name}", ""

    def _flow(self, cells: Iterable[_Cell]) -> Iterator[Sequence[Piece]]:
        """Yields tokens that follow each other."""
        line: list[Piece] = []
        for cell in cells:
            if cell.is_alone:
                yield from (line, cell.pieces)
                line = []
            else:
                line += cell.pieces
        yield line

    def _grid(self, cells: Iterable[_Cell]) -> Iterator[Sequence[Piece]]:
        """Yields rows of tokens, each with a row of their ids below it."""
        rows: list[tuple[list[Piece], list[str]]] = []
        used, is_ended = 0, True
        for cell in cells:
            text = "".join(text for text, _ in cell.pieces)
            width = max(cell_width(text), len(cell.below)) + 1
            if is_ended or cell.is_alone or used + width > self._look.width + 1:
                rows.append(([], []))
                used = 0
            rows[-1][0].extend((*cell.pieces, (" " * (width - cell_width(text)), "")))
            rows[-1][1].append(cell.below.ljust(width))
            used, is_ended = used + width, cell.is_alone or NEWLINE in text
        for above, below in rows:
            yield from (above, [("".join(below), "dim")])

    def _cells(self, runs: Iterable[TokenRun]) -> Iterator[_Cell]:
        """Yields what is drawn of tokens, and marks where part or loss changes and no colour says it."""
        units = [unit for run in runs for unit in ([run] if run[0].kind in PADDING else zip(run, strict=True))]
        most = len(units) if self._look.most_tokens is None else self._look.most_tokens
        if num_hidden := max(len(units) - most, 0):
            units[most // 2 : most // 2 + num_hidden] = [()]
        for unit in units:
            if not unit:
                yield _Cell([(f"[{num_hidden:,} more tokens]", "dim")], is_alone=True)
                continue
            token = unit[0]
            if not self._look.colour and token.teaching not in ("", self._said):
                self._said = token.teaching
                yield _Cell([(f"[{token.teaching}]", "")], is_alone=token.part is not None)
            yield _Cell(list(self._token(token, unit)), "" if token.id < 0 else str(token.id))

    def _token(self, token: ShownToken, run: TokenRun) -> Iterator[Piece]:
        style = " ".join(_STYLES[each] for each in token.styles if each in _STYLES)
        if token.kind in PADDING:
            yield padding_words(run), _STYLES[token.kind]
        elif token.kind in _MARKS and not self._look.colour:
            name = _MARKS[token.kind] or ("" if token.text else "special")
            yield printable(f"[{' '.join(filter(None, (name, token.text)))}]", keep=""), ""
        elif token.kind != "text":
            yield printable(token.words, keep=""), style
        elif not token.text:
            yield PARTIAL, _SIGN
        else:
            signs = (self._signs.get(char, printable(char, keep="")) for char in token.text)
            for is_sign, found in groupby(zip(token.text, signs, strict=True), key=lambda pair: pair[0] != pair[1]):
                yield "".join(sign for _, sign in found), _SIGN if is_sign else style
