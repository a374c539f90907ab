"""Renders a report as one self-contained HTML file.

Text, tables and samples need no scripts; without scripts a chart shows its summary. The bytes depend only on the
target, the sections and the given time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tokenloom.rendering.words import counted
from tokenloom_look.html import Markup, element, joined
from tokenloom_look.report.section import Chart, Section
from tokenloom_look.target import Target, TargetKind
from tokenloom_look.web.assets import SCRIPTS, STYLES, Asset, asset, policy_of_file

_KINDS = {
    TargetKind.pair: "a dataset",
    TargetKind.catalogue: "a catalogue of datasets",
    TargetKind.blend: "a blend of datasets",
    TargetKind.run: "a run",
    TargetKind.job: "a preprocessing job",
}

_STYLE = Asset(
    name="report.css",
    text="""
.kicker { color: var(--text-soft); margin: 0; }
.report > .findings { background: var(--ground-soft); border: 1px solid var(--line);
  border-left: 4px solid var(--warning);
  border-radius: 6px; padding: 1rem 1.25rem; margin-top: 1.25rem; }
.report > .findings.none { border-left-color: var(--good); }
.findings h2 { font-size: 1.05rem; margin-bottom: .4rem; }
.findings ul { margin: 0; padding-left: 1.2rem; }
.findings li { margin: .3rem 0; max-width: 90ch; overflow-wrap: anywhere; }
.findings p { margin: 0; }
.contents { margin-top: 1.25rem; }
.contents h2 { font-size: 1rem; margin: 0 0 .25rem; }
.contents ol { columns: 16rem auto; margin: 0; padding-left: 1.5rem; }
.report article { margin: 1.5rem 0 2rem; }
.report article > .note { margin: 0 0 .5rem; }
.side-by-side { display: flex; flex-wrap: wrap; gap: 0 4rem; align-items: start; }
.report td .note { font-size: .8125rem; }
.report td code { white-space: pre-wrap; }
.report summary > h2 { display: inline; }
.report summary { margin-bottom: .75rem; }
noscript h3 { margin-top: 1rem; }
@media print {
  .findings .where { display: none; }
  .report > section { break-inside: auto; }
  details::details-content { content-visibility: visible; block-size: auto; }
  .report article { break-inside: auto; }
}
""",
)
"""Styles used only in reports; `web/style.css` has all other styles."""


def page(target: Target, sections: Sequence[Section], *, when: float | None) -> bytes:
    """Renders the page as HTML in UTF-8. `when` is the time of creation to show, in seconds since 1970."""
    scripts, styles = [asset(name) for name in SCRIPTS], [*(asset(name) for name in STYLES), _STYLE]
    head = [
        Markup('<meta charset="utf-8">'),
        Markup(
            f'<meta http-equiv="Content-Security-Policy" content="{policy_of_file(scripts=scripts, styles=styles)}">'
        ),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="referrer" content="no-referrer">'),
        element("title", f"{target.name} - tokenloom report"),
        *(Markup(f"<style>{style.text}</style>") for style in styles),
    ]
    body = [
        _header(target, when),
        _findings(target, sections),
        _contents(sections),
        *(_section(section) for section in sections),
    ]
    main = element("main", joined(body, Markup("\n")), class_="report")
    code = [Markup(f"<script>{script.text}</script>") for script in scripts]
    whole = joined([element("head", joined(head, Markup("\n"))), element("body", joined([main, *code], Markup("\n")))])
    return f'<!doctype html>\n<html lang="en">{whole}</html>\n'.encode()


def section_html(section: Section, *, level: int = 2) -> Markup:
    """Renders a section without its heading: charts, then text and tables, which are folded if there are charts."""
    if not section.charts:
        return Markup(section.html)
    charts = element("div", *(_chart(chart, level=level + 1) for chart in section.charts), class_="charts")
    return joined([charts, element("details", element("summary", "Numbers"), Markup(section.html))])


def _header(target: Target, when: float | None) -> Markup:
    made = None if when is None else datetime.fromtimestamp(when, UTC)
    return element(
        "header",
        element("p", f"tokenloom report on {_KINDS[target.kind]}", class_="kicker"),
        element("h1", target.name),
        *([element("p", words)] if (words := _sizes(target)) else []),
        *([] if made is None else [_time(made)]),
    )


def _sizes(target: Target) -> str:
    """Returns a sentence with the size of the data; "" for a job."""
    if not target.sources:
        return ""
    words = counted(sum(source.num_tokens for source in target.sources), "token")
    if target.run is None:  # sources of a run count sequences instead of documents
        words = f"{counted(sum(source.num_documents for source in target.sources), 'document')} of {words}"
    if len(target.sources) > 1:
        words += f" in {counted(len(target.sources), 'source')}"
    if target.run is not None:
        samples = target.run.num_samples
        words += "; the run has no end" if samples is None else f"; the run has {counted(samples, 'sample')}"
    return f"{words}."


def _time(made: datetime) -> Markup:
    words = element("time", f"{made:%Y-%m-%d %H:%M} UTC", datetime=f"{made:%Y-%m-%dT%H:%M:%SZ}")
    return element("p", "Created ", words, class_="note")


def _findings(target: Target, sections: Sequence[Section]) -> Markup:
    """Returns notes of the target and findings of all sections, with links."""
    rows = [element("li", note) for note in target.notes]
    for section in sections:
        rows += [
            element("li", finding, " ", element("a", section.title, href=f"#{section.id}", class_="where"))
            for finding in section.findings
        ]
    heading = element("h2", "Findings", id="findings")
    body = element("ul", *rows) if rows else element("p", "No anomalies were found.")
    return element("section", heading, body, class_="findings" if rows else "findings none", aria_labelledby="findings")


def _contents(sections: Sequence[Section]) -> Markup:
    rows = [element("li", element("a", section.title, href=f"#{section.id}")) for section in sections]
    return element("nav", element("h2", "Contents"), element("ol", *rows), class_="contents", aria_label="Contents")


def _section(section: Section) -> Markup:
    heading, body = element("h2", section.title, id=section.id), section_html(section)
    if section.charts:
        return element("section", heading, body, aria_labelledby=section.id)
    folded = element("details", element("summary", heading), body, open=section.id == "job" or bool(section.findings))
    return element("section", folded, aria_labelledby=section.id)


def _chart(chart: Chart, *, level: int) -> Markup:
    """Returns a chart, with text for browsers without scripts."""
    words = joined(_words(chart, level))
    return joined([Markup(figure_html(chart.as_json())), element("noscript", words)])


def figure_html(chart: Mapping[str, Any]) -> str:
    r"""Returns an HTML element with the data of a chart; `charts.js` draws the chart into this element.

    Example:
        >>> figure_html({"title": "</script>"})
        '<figure class="chart"><script type="application/json">{"title":"\\u003c/script>"}</script></figure>'
    """
    data = json.dumps(chart, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<figure class="chart"><script type="application/json">{data}</script></figure>'


def _words(chart: Chart, level: int) -> Iterator[Markup]:
    yield element(f"h{level}", chart.title)
    yield element("p", chart.summary)
    if chart.note:
        yield element("p", chart.note, class_="note")
