"""Documents and samples as HTML: what the pages of report and explorer insert, and no script or style of its own."""

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
    """Returns a section with a heading per span and its tokens; colours are also said in words.

    Runs of like tokens have the class `run` and their `ShownToken.styles`; `data-slot` numbers their first token.

    Args:
        shown: a document or sample.
        ids: whether to show ids below tokens: the class `ids` on the whole.
        tokens: whether each token is an element, with its id as `data-id`; else only runs are.
        level: level of the headings, 1 to 6.
    """
    html = [element("p", note, class_="note") for note in shown.notes]
    slot, said = shown.first, ""
    for section in shown.sections():
        runs: list[Markup] = []
        for run in section.runs:
            runs += _run(run, slot, said, tokens=tokens)
            slot, said = slot + len(run), run[0].teaching or said
        html.append(_section(section, runs, level))
    losses = {token.loss for token in shown.tokens[1:] if token.kind not in PADDING}  # the first token is no label
    classes = ["shown", *(["ids"] if ids and tokens else []), *(["mixed"] if losses == {True, False} else [])]
    return element("div", *html, class_=" ".join(classes))


def legend_html(shown: Shown) -> Markup:
    """Returns a list of the marks in what is shown, or ""."""
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


def _run(run: TokenRun, slot: int, said: str, *, tokens: bool) -> Sequence[Markup]:
    """Returns a run, behind words for its colours."""
    first = run[0]
    is_padding = first.kind in PADDING
    words = [first.teaching] if first.teaching not in ("", said) else []
    words += [] if is_padding or first.kind == "text" else [LEGEND[first.kind]]
    if is_padding:
        inner: Markup | str = padding_words(run)
    else:
        inner = joined(map(_token, run)) if tokens else _marked("".join(token.words for token in run))
    count = len(run) if is_padding else None
    html = element("span", inner, class_=" ".join(("run", *first.styles)), data_slot=slot, data_count=count)
    return [*([element("span", f"[{', '.join(words)}] ", class_="visually-hidden")] if words else []), html]


def _token(token: ShownToken) -> Markup:
    """Returns a token in few bytes: a page has thousands."""
    if not token.words:
        return Markup(f'<span class="token partial" data-id={token.id}>{PARTIAL}</span>')
    return Markup(f"<span class=token data-id={token.id}>{_marked(token.words)}</span>")


def _marked(text: str) -> Markup:
    """Returns a text with its invisible characters marked."""
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
