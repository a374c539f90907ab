"""Pages with charts, as files: what tests of charts draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom_look.html import escaped
from tokenloom_look.report.page import figure_html
from tokenloom_look.web.assets import SCRIPTS, STYLES, asset, policy_of_file


def page_of(charts: Sequence[dict[str, Any]], path: Path, *, body: str = "") -> Path:
    """Writes a page that holds all it needs, with the policy that reports have."""
    scripts, styles = [asset(name) for name in SCRIPTS], [asset(name) for name in STYLES]
    policy = escaped(policy_of_file(scripts=scripts, styles=styles))
    path.write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Charts</title>'
        '<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"{''.join(f'<style>{style.text}</style>' for style in styles)}</head><body><main><h1>Charts</h1>{body}"
        f'<div class="charts">{"".join(map(figure_html, charts))}</div></main>'
        f"{''.join(f'<script>{script.text}</script>' for script in scripts)}</body></html>",
        encoding="utf-8",
    )
    return path


def chart(kind: str = "lines", *, x: Any, series: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Returns a chart as JSON; other arguments are `x_scale` and the like, or members of the chart."""
    axes = {name: others.pop(name) for name in [*others] if name[:2] in ("x_", "y_")}
    return {
        "id": others.pop("id", kind),
        "kind": kind,
        "title": f"A chart of {kind}",
        "summary": "It says what there is to see.",
        "x": {"label": axes.get("x_label", "position"), "scale": axes.get("x_scale", "linear"), "values": listed(x)},
        "y": {
            "label": axes.get("y_label", "value"),
            "scale": axes.get("y_scale", "linear"),
            "format": axes.get("y_format", "number"),
        },
        "series": [{"name": name, "values": listed(values)} for name, values in series.items()],
        "marks": [],
        **others,
    }


def listed(values: Any) -> list[Any]:
    return [None if isinstance(value, float) and math.isnan(value) else value for value in np.asarray(values).tolist()]


def gallery() -> list[dict[str, Any]]:
    """Returns charts of all kinds, as a report has them."""
    rng = np.random.default_rng(5)
    steps = np.arange(0, 2_400_000, 12_000)
    shares = np.abs(
        np.cumsum(rng.normal(size=(5, len(steps))), axis=1) * 0.05 + np.array([[5], [3], [2], [1.2], [0.6]])
    )
    shares /= shares.sum(axis=0)
    names = ["fineweb-edu", "the-stack-v2", "wikipedia (all languages)", "arxiv", "stack-exchange"]
    edges = [0, *(2**power for power in range(21))]
    lengths = [0, *(round(4e6 * math.exp(-((power - 9.5) ** 2) / 9)) for power in range(20))]
    loss = 2.1 + 8 * np.exp(-np.linspace(0, 6, 600)) + rng.normal(size=600) * 0.03
    loss[412:418] += [0.8, 2.1, 1.6, 1.0, 0.6, 0.2]
    loss[100:130] = math.nan
    stages = [{"x": 0, "label": "warm-up"}, {"x": 600_000, "label": "main"}, {"x": 1_900_000, "label": "anneal"}]
    return [
        chart(
            "stacked",
            x=steps,
            series=dict(zip(names, shares, strict=True)),
            title="Blend over positions",
            y_format="share",
            y_label="share of samples",
            marks=stages,
            summary="The web falls from 46% to 35%, code takes its place from the second stage on.",
        ),
        chart(
            "bars",
            x=edges[:-1],
            series={"documents": lengths[:-1]},
            x_scale="log",
            x_label="length in tokens",
            title="Lengths of documents",
            y_label="documents",
            y_format="count",
            note="Documents of no token stand below 1.",
            summary="Half of 31 million documents are between 300 and 1,600 tokens long.",
        ),
        chart(
            "lines",
            x=np.arange(600) * 50,
            series={"loss": loss},
            title="Loss",
            y_label="loss",
            x_label="step",
            summary="A spike at step 20,650; 1,500 steps are missing.",
        ),
        chart(
            "lines",
            x=np.geomspace(1e-3, 1e3, 40),
            series={"wait for data": np.geomspace(1e-5, 4e3, 40), "step": np.full(40, 0.8)},
            x_scale="log",
            y_scale="log",
            y_format="seconds",
            x_label="requests a second",
            y_label="time",
            id="waits",
            title="Waits",
            summary="Waits grow with requests.",
        ),
        chart("lines", x=[], series={"nothing": []}, id="empty", title="Nothing", summary="There is no data."),
    ]
