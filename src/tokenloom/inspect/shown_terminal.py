"""Documents and samples as lines of a terminal or a log: coloured, or plain with marks that say the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenloom.inspect.shown import Shown, ShownSection, TokenKind, TokenRun
from tokenloom.inspect.shown_words import (
    NEWLINE,
    PADDING,
    PARTIAL,
    TAB,
    LegendEntry,
    legend,
    padding_words,
    styles,
    teaching_words,
    text_of_special,
)
from tokenloom.rendering.terminal import Piece, apart, cell_width, folded, plain_text, written

_STYLES = {
    "no-loss": "2",
    "prompt": "36",
    "answer": "1;32",
    "eod": "7;33",
    "bos": "7;36",
    "special": "1;33",
    "padding": "2",
    "denied": "31",
    "image": "1;34",
}
"""Parameters of "select graphic rendition": faint, reversed and bold tell apart what colours do, to every eye."""

_HEADING = "1"
_FAINT = "2"
_MARK = "35"

_NAMES = {TokenKind.eod: "EOD", TokenKind.bos: "BOS", TokenKind.special: "special"}
"""What special tokens are called where no colour tells them from text."""

_TAB_COLUMNS = 4

_RULE = "─"

_SPACE = "·"
"""Stands for a space where tokens are columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How lines are drawn.

    Attributes:
        width: columns of a line; 0 for lines as long as the data's.
        colour: whether to use colours and styles; else marks in brackets say the same.
        ids: whether to write the id of each token below it.
        encoding: what lines are written in; what it cannot hold becomes escapes.
        most_tokens: tokens of a section to show, from its begin and its end; None for all.
    """

    width: int = 80
    colour: bool = False
    ids: bool = False
    encoding: str = "utf-8"
    most_tokens: int | None = None


def shown_lines(shown: Shown, look: Look | None = None) -> Iterator[str]:
    """Yields lines, without line breaks: headings with tokens below them, and the marks that occur.

    Texts of data cannot drive a terminal, whatever they hold.
    """
    drawing = _Drawing(shown, Look() if look is None else look)
    yield from drawing.lines()


@dataclass(frozen=True, slots=True)
class _Cell:
    """A token in a grid: its text, its id below it, and whether a row begins or ends with it."""

    pieces: tuple[Piece, ...]
    below: str = ""
    begins_row: bool = False
    ends_row: bool = False

    @property
    def width(self) -> int:
        return max(sum(cell_width(piece.text) for piece in self.pieces), len(self.below))


class _Drawing:
    """What is shown, on its way to lines."""

    def __init__(self, shown: Shown, look: Look) -> None:
        self._shown = shown
        self._look = look
        self._said = ""  # part and loss, of what was drawn last
        signs = {NEWLINE: "$", TAB: ">", PARTIAL: "|", _RULE: "-", _SPACE: "_"}
        is_known = plain_text("".join(signs), look.encoding) == "".join(signs)
        self._signs = {sign: sign if is_known else plain for sign, plain in signs.items()}

    def lines(self) -> Iterator[str]:
        shown = self._shown
        sections = list(shown.sections())
        told = {value for _, value in shown.facts}
        if len(sections) != 1 or not sections[0].heading().startswith(shown.heading):
            yield from self._folded([self._piece(shown.heading, _HEADING)])
            facts = ", ".join(f"{name} {value}" for name, value in shown.facts)
            yield from self._folded([self._piece(facts)])
        elif (origin := sections[0].span and sections[0].span.origin) is not None:
            told.discard(origin)
        for note in shown.notes:
            yield from self._folded([self._piece(f"note: {note}")])
        for section in sections:
            if words := section.heading():
                yield from self._rule(words)
            if section.span is not None and section.span.origin not in (None, *told):
                yield from self._folded([self._piece(f"made of {section.span.origin}", _FAINT)])
            yield from self._grid(section) if self._look.ids else self._flow(section)
        entries = list(legend(shown))
        if self._look.ids and any(" " in text for text in shown.texts):
            entries.append(LegendEntry("space", "space", sign=_SPACE))
        if entries:
            yield from self._folded(self._legend(entries))

    def _rule(self, heading: str) -> Iterator[str]:
        line = self._signs[_RULE]
        piece = self._piece(f"{line * 2} {heading} ", _HEADING)
        rest = line * max(self._look.width - cell_width(piece.text), 2)
        if self._look.width and cell_width(piece.text) + 2 > self._look.width:
            rest = ""
        yield from self._folded([Piece(piece.text + rest if rest else piece.text.rstrip(), _HEADING)])

    def _legend(self, entries: Iterable[LegendEntry]) -> Iterator[Piece]:
        yield Piece("legend: ", _FAINT)
        for number, entry in enumerate(entries):
            yield Piece("; " if number else "")
            if entry.sign:
                yield Piece(self._signs.get(entry.sign, entry.sign), _MARK)
                yield Piece(f" {entry.name}")
            elif self._look.colour:
                yield Piece(entry.name, _STYLES.get(entry.style, ""))
                yield Piece(f": {entry.meaning}" if entry.meaning else "")
            else:
                yield Piece(_PLAIN_LEGEND.get(entry.style, f"[{entry.name}] {entry.meaning}").rstrip())

    # --- tokens that follow each other ------------------------------------------------------------------------

    def _flow(self, section: ShownSection) -> Iterator[str]:
        line: list[Piece] = []
        for run in self._cut(section.runs):
            if isinstance(run, str):
                yield from self._folded([*line, Piece(run, _FAINT)])
                line = []
                continue
            if (mark := self._teaching(run)) is not None:
                if run.part is not None:  # of conversations each part begins a line
                    yield from self._folded(line)
                    line = []
                    yield from self._folded([mark])
                else:
                    line.append(mark)
            for number, pieces in enumerate(self._tokens(run)):
                if not self._shown.has_texts and (number or line):
                    line.append(Piece(" "))
                for piece in pieces:
                    line.append(piece)
                    if piece.text == self._signs[NEWLINE] and piece.style == _MARK:
                        yield from self._folded(line)
                        line = []
        yield from self._folded(line)

    def _cut(self, runs: Iterable[TokenRun]) -> Iterator[TokenRun | str]:
        """Yields runs, and in the place of what is too much its number."""
        runs, most = list(runs), self._look.most_tokens
        start, stop = (runs[0].start, runs[-1].stop) if runs else (0, 0)
        if most is None or stop - start <= most:
            yield from runs
            return
        head, tail = start + most // 2, stop - (most - most // 2)
        for run in runs:
            if run.start < head:
                yield dataclasses.replace(run, stop=min(run.stop, head))
        yield f"[{tail - head:,} more tokens]"
        for run in runs:
            if run.stop > tail:
                yield dataclasses.replace(run, start=max(run.start, tail))

    def _teaching(self, run: TokenRun) -> Piece | None:
        """Returns the mark that says part and loss, where no colour does and they change; else None."""
        words = teaching_words(run)
        if self._look.colour or not words or words == self._said:
            return None
        self._said = words
        return Piece(f"[{words}]")

    def _tokens(self, run: TokenRun) -> Iterator[tuple[Piece, ...]]:
        """Yields the pieces of each token of a run; of padding one for all."""
        style = ";".join(_STYLES[name] for name in styles(run) if name in _STYLES)
        if run.kind in PADDING:
            yield (Piece(padding_words(run), _STYLES[run.kind.name]),)
        elif run.kind == TokenKind.text:
            texts = self._shown.texts
            for index in range(run.start, run.stop):
                begins_anew = index > run.start and not texts[index - 1]  # behind a sign, which takes no accents
                yield tuple(self._text(apart(texts[index]) if begins_anew else texts[index], style))
        else:
            for index in range(run.start, run.stop):
                yield (self._piece(self._special(run.kind, index), style),)

    def _special(self, kind: TokenKind, index: int) -> str:
        if self._look.colour or kind == TokenKind.image:
            return text_of_special(self._shown, index)
        text = self._shown.texts[index]
        if kind == TokenKind.special and text:
            return f"[{text}]"
        return f"[{_NAMES[kind]} {text}]" if text else f"[{_NAMES[kind]}]"

    def _text(self, text: str, style: str) -> Iterator[Piece]:
        if not text:
            yield Piece(self._signs[PARTIAL], _MARK)
        elif plain_text(text, self._look.encoding) == text:
            yield Piece(text, style)
        else:
            for char in text:
                if char == "\n":
                    yield Piece(self._signs[NEWLINE], _MARK)
                elif char == "\t":
                    yield Piece(self._signs[TAB].ljust(_TAB_COLUMNS), _MARK)
                else:
                    harmless = plain_text(char, self._look.encoding)
                    yield Piece(harmless, style if harmless == char else _MARK)

    # --- tokens with their ids --------------------------------------------------------------------------------

    def _grid(self, section: ShownSection) -> Iterator[str]:
        row: list[_Cell] = []
        used = 0
        for cell in self._cells(section):
            is_full = self._look.width and used + cell.width > self._look.width
            if row and (is_full or cell.begins_row):
                yield from self._row(row)
                row, used = [], 0
            row.append(cell)
            used += cell.width + 1
            if cell.ends_row:
                yield from self._row(row)
                row, used = [], 0
        if row:
            yield from self._row(row)

    def _cells(self, section: ShownSection) -> Iterator[_Cell]:
        for run in self._cut(section.runs):
            if isinstance(run, str):
                yield _Cell((Piece(run, _FAINT),), ends_row=True)
                continue
            if (mark := self._teaching(run)) is not None:
                begins_line = run.part is not None
                yield _Cell((mark,), begins_row=begins_line, ends_row=begins_line)
            ids = self._shown.ids[run.start : run.stop].tolist()
            if run.kind in PADDING:
                ids = ids[:1] if len(set(ids)) == 1 else [-1]
            for number, pieces in zip(ids, self._tokens(run), strict=True):
                if run.kind == TokenKind.text:
                    pieces = tuple(map(self._without_spaces, pieces))
                ends_row = run.kind == TokenKind.text and Piece(self._signs[NEWLINE], _MARK) in pieces
                yield _Cell(pieces, "" if number < 0 else str(number), ends_row=ends_row)

    def _without_spaces(self, piece: Piece) -> Piece:
        """Returns a piece in a cell of its own: with a sign for each space, and nothing that joins a neighbour."""
        if piece.style == _MARK:
            return piece
        return Piece(apart(piece.text).replace(" ", self._signs[_SPACE]), piece.style)

    def _row(self, cells: list[_Cell]) -> Iterator[str]:
        """Yields the texts of tokens, and a line with their ids below."""
        above: list[Piece] = []
        below = ""
        for number, cell in enumerate(cells, 1):
            gap = cell.width + 1 - sum(cell_width(piece.text) for piece in cell.pieces) if number < len(cells) else 0
            above += [*cell.pieces, Piece(" " * gap)]
            below += cell.below.ljust(cell.width + 1)
        yield from self._folded(above)
        if below.strip():
            yield from self._folded([Piece(below.rstrip(), _FAINT)])

    # --- lines ------------------------------------------------------------------------------------------------

    def _piece(self, text: str, style: str = "") -> Piece:
        return Piece(plain_text(text, self._look.encoding), style)

    def _folded(self, pieces: Iterable[Piece]) -> Iterator[str]:
        for line in folded(pieces, self._look.width):
            yield written(line, colour=self._look.colour).rstrip(" ")


_PLAIN_LEGEND = {
    "eod": "[EOD] end of document",
    "bos": "[BOS] begin of document",
    "special": "[...] special token",
    "padding": "[padding x N] padding",
    "denied": "[denied: padding x N] padding for a denied document",
    "image": "[image of N bytes] image",
}
