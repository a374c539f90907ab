"""Documents and samples as HTML: what the pages of report and explorer insert, and no script or style of its own."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator

from tokenloom.inspect.shown import Shown, ShownSection, TokenKind, TokenRun
from tokenloom.inspect.shown_words import (
    NEWLINE,
    PADDING,
    PARTIAL,
    TAB,
    kind_words,
    legend,
    padding_words,
    styles,
    teaching_words,
    text_of_special,
)
from tokenloom.rendering.plain import printable


def shown_html(shown: Shown, *, ids: bool = False, tokens: bool = True, level: int = 3) -> str:
    """Returns a section with a heading per span, and in it the tokens.

    Runs of tokens that are alike have the class `run` and those of `shown_words.styles`; `data-slot` is the number of
    their first token in the whole, so that the n-th `.token` in them is number `data-slot` + n. What colours tell is
    also said in words, to those who do not see.

    Args:
        shown: what to draw.
        ids: whether to show the id of each token below it: the class `ids` on the whole, which `style.css` knows.
        tokens: whether each token is an element, with its id as `data-id`; else only runs are.
        level: level of the headings, 1 to 6.
    """
    notes = "".join(f'<p class="note">{_escaped(note)}</p>' for note in shown.notes)
    sections = "".join(_section(shown, section, tokens=tokens, level=level) for section in shown.sections())
    styled = " ids" if ids and tokens else ""
    return f'<div class="shown{styled}">{notes}{sections}</div>'


def legend_html(shown: Shown) -> str:
    """Returns a list of the marks that occur in what is shown; "" if there are none."""
    entries = [
        f'<li><span class="run {entry.style}"><span class=token>{_escaped(entry.words)}</span></span></li>'
        for entry in legend(shown)
    ]
    return f'<ul class="legend">{"".join(entries)}</ul>' if entries else ""


def _section(shown: Shown, section: ShownSection, *, tokens: bool, level: int) -> str:
    span = section.span
    known = ""
    if span is not None:
        known = f' data-source="{_escaped(span.source)}" data-document="{span.document}" data-start="{span.start}"'
    heading = f"<h{level}>{_escaped(section.heading())}</h{level}>"
    origin = "" if span is None or span.origin is None else f'<p class="origin">made of {_escaped(span.origin)}</p>'
    runs = "".join(_runs(shown, section.runs, tokens=tokens))
    body = f'<div class="tokens" dir="auto">{runs}</div>' if section.runs else ""
    return f'<section class="{"between" if span is None else "document"}"{known}>{heading}{origin}{body}</section>'


def _runs(shown: Shown, runs: Iterable[TokenRun], *, tokens: bool) -> Iterator[str]:
    said = ""
    for run in runs:
        before = []
        if (teaching := teaching_words(run)) != said:
            before.append(teaching)
            said = teaching
        if run.kind not in PADDING and (kind := kind_words(run)):
            before.append(kind)
        words = f'<span class="visually-hidden">[{", ".join(before)}] </span>' if before else ""
        count = f' data-count="{run.stop - run.start}"' if run.kind in PADDING else ""
        classes = " ".join(("run", *styles(run)))
        body = padding_words(run) if count else _tokens(shown, run, tokens=tokens)
        separator = "" if shown.has_texts else " "
        yield f'{words}<span class="{classes}" data-slot="{shown.first + run.start}"{count}>{body}</span>{separator}'


def _tokens(shown: Shown, run: TokenRun, *, tokens: bool) -> str:
    indices = range(run.start, run.stop)
    if run.kind != TokenKind.text:
        texts = [text_of_special(shown, index) for index in indices]
    else:
        texts = list(shown.texts[run.start : run.stop])
    if not tokens:
        return _marked(("" if shown.has_texts else " ").join(texts))
    ids = shown.ids[run.start : run.stop].tolist()
    separator = "" if shown.has_texts else " "
    return separator.join(
        f"<span class=token data-id={number}>{_marked(text)}</span>"
        if text
        else f'<span class="token partial" data-id={number}>{PARTIAL}</span>'
        for number, text in zip(ids, texts, strict=True)
    )


def _marked(text: str) -> str:
    """Returns a text in which all without a glyph is marked, so that it differs from text that spells it."""
    if printable(text, keep="") == text:
        return html.escape(text)
    return "".join(_MARKS.get(char) or _character(char) for char in text)


def _character(char: str) -> str:
    shown = printable(char)
    return html.escape(char) if shown == char else f"<span class=mark>{html.escape(shown)}</span>"


def _escaped(text: str) -> str:
    return html.escape(printable(text, keep=""))


_MARKS = {"\n": f"<span class=mark>{NEWLINE}</span>\n", "\t": f"<span class=mark>{TAB}</span>\t"}
