"""Documents and samples as HTML: what the pages of report and explorer insert, and no script or style of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tokenloom.inspect.shown import Shown, ShownSection, TokenKind, TokenRun
from tokenloom.inspect.shown_words import (
    NEWLINE,
    PADDING,
    PARTIAL,
    TAB,
    LegendEntry,
    kind_words,
    legend,
    padding_words,
    styles,
    teaching_words,
    text_of_special,
)
from tokenloom.rendering.plain import printable
from tokenloom_look.html import Markup, element, escaped, joined


def shown_html(shown: Shown, *, ids: bool = False, tokens: bool = True, level: int = 3) -> Markup:
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
    notes = (element("p", note, class_="note") for note in shown.notes)
    sections = (_section(shown, section, tokens=tokens, level=level) for section in shown.sections())
    classes = ["shown", *(["ids"] if ids and tokens else []), *(["mixed"] if _is_mixed(shown) else [])]
    return element("div", *notes, *sections, class_=" ".join(classes))


def _is_mixed(shown: Shown) -> bool:
    """Whether some text has loss and some has none; the first token of a sample, which is no label, does not count."""
    if shown.loss is None:
        return False
    loss = shown.loss[1:][~np.isin(shown.kinds[1:], list(PADDING))]
    return bool(loss.any() and not loss.all())


def legend_html(shown: Shown) -> Markup:
    """Returns a list of the marks that occur in what is shown; "" if there are none."""
    entries = [_entry(entry) for entry in legend(shown)]
    return element("ul", *entries, class_="legend") if entries else Markup("")


def _entry(entry: LegendEntry) -> Markup:
    if entry.sign:
        return element("li", _mark(entry.sign), f" {entry.name}")
    drawn = element("span", element("span", entry.name, class_="token"), class_=f"run {entry.style}")
    return element("li", drawn, f": {entry.meaning}" if entry.meaning else None)


def _section(shown: Shown, section: ShownSection, *, tokens: bool, level: int) -> Markup:
    span, words = section.span, section.heading()
    return element(
        "section",
        element(f"h{level}", words) if words else None,
        None if span is None or span.origin is None else element("p", f"made of {span.origin}", class_="origin"),
        element("div", *_runs(shown, section.runs, tokens=tokens), class_="tokens", dir="auto")
        if section.runs
        else None,
        class_="between" if span is None else "document",
        data_source=None if span is None else span.source,
        data_document=None if span is None else span.document,
        data_start=None if span is None else span.start,
    )


def _runs(shown: Shown, runs: Iterable[TokenRun], *, tokens: bool) -> Iterator[Markup]:
    separator = Markup("" if shown.has_texts else " ")
    said = ""
    for run in runs:
        before = []
        if (teaching := teaching_words(run)) and teaching != said:
            before.append(teaching)
            said = teaching
        is_padding = run.kind in PADDING
        if not is_padding and (kind := kind_words(run)):
            before.append(kind)
        if before:
            yield element("span", f"[{', '.join(before)}] ", class_="visually-hidden")
        yield element(
            "span",
            padding_words(run) if is_padding else _tokens(shown, run, tokens=tokens),
            class_=" ".join(("run", *styles(run))),
            data_slot=shown.first + run.start,
            data_count=run.stop - run.start if is_padding else None,
        )
        yield separator


def _tokens(shown: Shown, run: TokenRun, *, tokens: bool) -> Markup:
    separator = "" if shown.has_texts else " "
    if run.kind == TokenKind.text:
        texts = list(shown.texts[run.start : run.stop])
    else:
        texts = [text_of_special(shown, index) for index in range(run.start, run.stop)]
    if not tokens:
        return _marked(separator.join(texts))
    ids = shown.ids[run.start : run.stop].tolist()
    return joined((_token(text, number) for text, number in zip(texts, ids, strict=True)), separator)


def _token(text: str, number: int) -> Markup:
    """Returns a token, in as few bytes as HTML takes: there are thousands on a page."""
    if not text:
        return Markup(f'<span class="token partial" data-id={number}>{PARTIAL}</span>')
    return Markup(f"<span class=token data-id={number}>{_marked(text)}</span>")


def _marked(text: str) -> Markup:
    """Returns a text in which all without a glyph is marked, so that it differs from text that spells it."""
    if printable(text, keep="") == text:
        return escaped(text)
    return joined(_character(char) for char in text)


def _character(char: str) -> Markup:
    if char == "\n":
        return joined([_mark(NEWLINE), escaped(char)])
    if char == "\t":
        return joined([_mark(TAB), escaped(char)])
    shown = printable(char)
    return escaped(char) if shown == char else _mark(shown)


def _mark(sign: str) -> Markup:
    return element("span", sign, class_="mark")
