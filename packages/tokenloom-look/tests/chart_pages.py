"""Pages with charts, for tests in a browser."""

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
    """Writes a self-contained page with the security policy of reports."""
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
    """Returns a chart as JSON; other arguments are axis settings such as `x_scale`, or members of the chart."""
    axes = {
        "x": {"label": "position", "scale": "linear"},
        "y": {"label": "value", "scale": "linear", "format": "number"},
    }
    for name in [name for name in others if name[:2] in ("x_", "y_")]:
        axes[name[0]][name[2:]] = others.pop(name)
    axes["x"]["values"] = listed(x)
    texts = {"id": kind, "title": f"A chart of {kind}", "summary": "A summary."}
    lines = [{"name": name, "values": listed(values)} for name, values in series.items()]
    return {"kind": kind, **texts, **axes, "series": lines, "marks": [], **others}


def listed(values: Any) -> list[Any]:
    return [None if isinstance(value, float) and math.isnan(value) else value for value in np.asarray(values).tolist()]


def gallery() -> list[dict[str, Any]]:
    """Returns charts of all kinds, like those of a report."""
    rng = np.random.default_rng(5)
    steps = np.arange(0, 2_400_000, 12_000)
    shares = np.abs(np.cumsum(rng.normal(size=(3, len(steps))), axis=1) * 0.05 + np.array([[5], [3], [2]]))
    blend = dict(zip(("fineweb-edu", "the-stack-v2", "arxiv"), shares / shares.sum(axis=0), strict=True))
    edges = [0, *(2**power for power in range(20))]
    lengths = [0, *(round(4e6 * math.exp(-((power - 9.5) ** 2) / 9)) for power in range(19))]
    loss = 2.1 + 8 * np.exp(-np.linspace(0, 6, 600)) + rng.normal(size=600) * 0.03
    loss[412:418] += [0.8, 2.1, 1.6, 1.0, 0.6, 0.2]
    loss[100:130] = math.nan
    stages = [{"x": 0, "label": "warm-up"}, {"x": 600_000, "label": "main"}, {"x": 1_900_000, "label": "anneal"}]
    waits = {"wait for data": np.geomspace(1e-5, 4e3, 40), "step": np.full(40, 0.8)}
    logarithmic = {"x_scale": "log", "y_scale": "log", "y_format": "seconds"}
    return [
        chart("stacked", x=steps, series=blend, y_format="share", marks=stages, title="Blend"),
        chart("bars", x=edges, series={"documents": lengths}, x_scale="log", y_format="count", note="Some are empty."),
        chart("lines", x=np.arange(600) * 50, series={"loss": loss}, title="Loss", x_label="step"),
        chart("lines", x=np.geomspace(1e-3, 1e3, 40), series=waits, id="waits", title="Waits", **logarithmic),
        chart("lines", x=[], series={"nothing": []}, id="empty", title="Nothing"),
    ]
