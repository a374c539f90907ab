"""A chart as a piece of a page, which `charts.js` finds and draws."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def figure_html(chart: Mapping[str, Any]) -> str:
    r"""Returns the element that `charts.js` draws a chart into, with the chart's data in it.

    Args:
        chart: the chart as JSON, as README.md of this package describes it. No text of it can end the element.

    Example:
        >>> figure_html({"title": "</script>"})
        '<figure class="chart"><script type="application/json">{"title":"\\u003c/script>"}</script></figure>'
    """
    data = json.dumps(chart, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<figure class="chart"><script type="application/json">{data}</script></figure>'
