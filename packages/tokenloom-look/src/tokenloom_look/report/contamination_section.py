"""The section "Benchmarks in the data": shows a result of `tokenloom contamination --json`."""

from __future__ import annotations

import json
import os
from typing import Any

from tokenloom.errors import InputError
from tokenloom_look.html import Markup, element, joined, table
from tokenloom_look.report.section import ReportOptions, Section, share
from tokenloom_look.target import Target

_MOST_ITEMS = 20
_MOST_CHARACTERS = 400


def contamination_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns counts by benchmark and by source, and the items that were found most completely; None without a file."""
    if options.contamination is None:
        return None
    try:
        with open(options.contamination, encoding="utf-8") as stream:
            found = json.load(stream)
        benchmarks, items = found["benchmarks"], found["items"]
        columns = ["benchmark", "items", "too short", "found", "n-grams", "documents", "first step"]
        rows = [_benchmark(row) for row in benchmarks]
        sources = [(each["source"], each["items"], each["documents"]) for each in found["sources"]]
        worst = sorted(items, key=lambda item: -item["coverage"])[:_MOST_ITEMS]
        words = f"{found['num_tokens']:,} tokens, searched for n-grams of {found['words']} words"
        html = [
            table(columns, rows, note=words),
            table(["source", "items", "documents"], sources),
            *(element("div", *_item(item)) for item in worst),
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        message = f"`{options.contamination}`: cannot read it: {getattr(error, 'strerror', None) or repr(error)}"
        raise InputError(message, hint="write the file with `tokenloom contamination --json`") from error
    if len(items) > len(worst):
        html.append(element("p", f"{len(items) - len(worst):,} more items are not shown.", class_="note"))
    findings = [
        f"{row['found']:,} of {row['items']:,} items of {os.path.basename(row['benchmark'])} were found in the data."
        for row in benchmarks
        if row["found"]
    ]
    return Section(id="contamination", title="Benchmarks in the data", html=joined(html), findings=findings)


def _benchmark(row: dict[str, Any]) -> tuple[str | int | None, ...]:
    counts = (row["items"], row["too_short"], row["found"], share(row["coverage"], 1), row["documents"])
    return (os.path.basename(row["benchmark"]), *counts, row.get("first_step"))


def _item(item: dict[str, Any]) -> tuple[Markup, Markup]:
    passage = item["passages"][0]
    name = f"{os.path.basename(item['benchmark'])}:{item['record']}"
    rows = [(name, passage["of_item"]), (f"{passage['source']}:{passage['document']}", passage["of_document"])]
    heading = f"{name}: {share(item['coverage'], 1)} of its n-grams, in {len(item['passages']):,} documents"
    return element("h3", heading), table(["where", "text"], [(where, text[:_MOST_CHARACTERS]) for where, text in rows])
