"""Loads the static files of pages, with their content types and security policy."""

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
"""Scripts that draw charts, in the order that a page must load them in."""

STYLES = ("uplot/uPlot.min.css", "style.css")
"""Style sheets, in the order that a page must load them in."""

_CONTENT_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A static file of a page."""

    name: str
    text: str

    @property
    def content_type(self) -> str:
        return _CONTENT_TYPES[self.name[self.name.rindex(".") :]]

    @property
    def source(self) -> str:
        """Returns the hash with which a Content-Security-Policy allows this text as an inline script or style."""
        return f"'sha256-{b64encode(hashlib.sha256(self.text.encode()).digest()).decode()}'"


@cache
def asset(name: str) -> Asset:
    """Loads a file of `SCRIPTS` or `STYLES`.

    Example:
        >>> asset("charts.js").content_type
        'text/javascript; charset=utf-8'
    """
    if name not in (*SCRIPTS, *STYLES):
        raise KeyError(name)
    return Asset(name=name, text=files("tokenloom_look.web").joinpath(name).read_text(encoding="utf-8"))


def policy_of_file(*, scripts: Sequence[Asset], styles: Sequence[Asset]) -> str:
    """Returns a Content-Security-Policy that allows only these inline scripts and styles."""
    script_sources = " ".join(script.source for script in scripts) or "'none'"
    style_sources = " ".join(style.source for style in styles) or "'none'"
    return (
        f"default-src 'none'; script-src {script_sources}; style-src {style_sources}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
