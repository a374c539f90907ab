"""The files of the page, by the path they are asked for: a table, so that no path of a request reaches the disk."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from tokenloom.web.assets import SCRIPTS, STYLES, asset

_OWN = {"/": "index.html", "/explorer.js": "explorer.js", "/explorer.css": "explorer.css"}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFile:
    """A file that is served.

    Attributes:
        content: what it holds.
        content_type: what it is, for the browser.
    """

    content: bytes
    content_type: str


def served_files() -> dict[str, ServedFile]:
    """Returns the files by the path of their address: those of `web/` below `/web/`."""
    table = {}
    for path, name in _OWN.items():
        content = files("tokenloom.explorer").joinpath("page", name).read_bytes()
        table[path] = ServedFile(content=content, content_type=_TYPES[name.rpartition(".")[2]])
    for name in (*SCRIPTS, *STYLES):
        found = asset(name)
        table[f"/web/{name}"] = ServedFile(content=found.text.encode(), content_type=found.content_type)
    return table
