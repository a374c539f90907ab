"""Renders documents and samples as HTML for report and explorer, without inline scripts or styles."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.inspect.shown import (
    LEGEND,
    NEWLINE,
    PADDING,
    PARTIAL,
    SIGNS,
    TAB,
    Shown,
    ShownSection,
    ShownToken,
    TokenRun,
    padding_words,
)
from tokenloom.rendering.words import printable
from tokenloom_look.html import Markup, element, escaped, joined


def shown_html(shown: Shown, *, ids: bool = False, tokens: bool = True, level: int = 3) -> Markup:
    """Renders a document or sample as HTML: per span, a heading, tokens, and hidden words for screen readers.

    Consecutive tokens with equal styles share an element of class `run`; `data-slot` is the slot of the first token.

    Args:
        shown: the document or sample to render.
        ids: show the id below each token; has no effect if `tokens` is False.
        tokens: make each token an element with its id as `data-id`; otherwise there are only `run` elements.
        level: HTML level of the headings, 1 to 6.
    """
    html = [element("p", note, class_="note") for note in shown.notes]
    slot, announced = shown.first, ""
    for section in shown.sections():
        runs: list[Markup] = []
        for run in section.runs:
            runs += _run(run, slot, announced, tokens=tokens)
            slot, announced = slot + len(run), run[0].teaching or announced
        html.append(_section(section, runs, level))
    losses = {token.loss for token in shown.tokens[1:] if token.kind not in PADDING}  # the first token is no label
    classes = ["shown", *(["ids"] if ids and tokens else []), *(["mixed"] if losses == {True, False} else [])]
    return element("div", *html, class_=" ".join(classes))


def legend_html(shown: Shown) -> Markup:
    """Returns an HTML list that explains the marks and styles in a document or sample; "" if there are none."""
    entries = [element("li", *_entry(each)) for each in shown.legend()]
    return element("ul", *entries, class_="legend") if entries else Markup("")


def _entry(mark: str) -> Sequence[Markup | str]:
    if mark in SIGNS:
        return _mark(mark), f" {SIGNS[mark]}"
    name, colon, meaning = LEGEND[mark].partition(":")
    return element("span", element("span", name, class_="token"), class_=f"run {mark}"), f"{colon}{meaning}"


def _section(section: ShownSection, runs: Sequence[Markup], level: int) -> Markup:
    span = section.span
    return element(
        "section",
        element(f"h{level}", section.heading) if section.heading else None,
        None if span is None or span.origin is None else element("p", f"made from {span.origin}", class_="origin"),
        element("div", *runs, class_="tokens", dir="auto") if runs else None,
        class_="between" if span is None else "document",
        data_source=None if span is None else span.source,
        data_document=None if span is None else span.document,
        data_start=None if span is None else span.start,
    )


def _run(run: TokenRun, slot: int, announced: str, *, tokens: bool) -> Sequence[Markup]:
    """Renders tokens of equal style, preceded by hidden words for screen readers; the words `announced` are omitted."""
    first = run[0]
    is_padding = first.kind in PADDING
    words = [first.teaching] if first.teaching not in ("", announced) else []
    words += [] if is_padding or first.kind == "text" else [LEGEND[first.kind]]
    if is_padding:
        inner: Markup | str = padding_words(run)
    else:
        inner = joined(map(_token, run)) if tokens else _marked("".join(token.words for token in run))
    count = len(run) if is_padding else None
    html = element("span", inner, class_=" ".join(("run", *first.styles)), data_slot=slot, data_count=count)
    return [*([element("span", f"[{', '.join(words)}] ", class_="visually-hidden")] if words else []), html]


def _token(token: ShownToken) -> Markup:
    """Renders a token as short HTML, without quotes around attributes: a page has thousands of tokens."""
    if not token.words:
        return Markup(f'<span class="token partial" data-id={token.id}>{PARTIAL}</span>')
    return Markup(f"<span class=token data-id={token.id}>{_marked(token.words)}</span>")


def _marked(text: str) -> Markup:
    """Escapes a text and marks its invisible characters."""
    if printable(text, keep="") == text:
        return escaped(text)
    return joined(_character(char) for char in text)


def _character(char: str) -> Markup:
    if char in "\n\t":
        return joined([_mark(NEWLINE if char == "\n" else TAB), escaped(char)])
    shown = printable(char)
    return escaped(char) if shown == char else _mark(shown)


def _mark(sign: str) -> Markup:
    return element("span", sign, class_="mark")
