"""The files that pages are made of, with what a server and a page must say of them."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

SCRIPTS = (
    *("uplot/uPlot.iife.min.js", "chart-numbers.js", "chart-data.js", "chart-ink.js", "chart-words.js"),
    *("chart-drawn.js", "charts.js"),
)
"""What draws charts, in the order in which a page must name it."""

STYLES = ("uplot/uPlot.min.css", "style.css")
"""How pages look, in the order in which a page must name it."""

_CONTENT_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file that pages are made of."""

    name: str
    text: str

    @property
    def content_type(self) -> str:
        return _CONTENT_TYPES[self.name[self.name.rindex(".") :]]

    @property
    def source(self) -> str:
        """The Content-Security-Policy source of this inline text."""
        return f"'sha256-{b64encode(hashlib.sha256(self.text.encode()).digest()).decode()}'"


@cache
def asset(name: str) -> Asset:
    """Returns a file of `SCRIPTS` or `STYLES`.

    Example:
        >>> asset("charts.js").content_type
        'text/javascript; charset=utf-8'
    """
    if name not in (*SCRIPTS, *STYLES):
        raise KeyError(name)
    return Asset(name=name, text=files("tokenloom_look.web").joinpath(name).read_text(encoding="utf-8"))


def policy_of_file(*, scripts: Sequence[Asset], styles: Sequence[Asset]) -> str:
    """Returns the Content-Security-Policy of a page with these inline scripts and styles alone."""
    script_sources = " ".join(script.source for script in scripts) or "'none'"
    style_sources = " ".join(style.source for style in styles) or "'none'"
    return (
        f"default-src 'none'; script-src {script_sources}; style-src {style_sources}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
