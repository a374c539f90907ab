"""The files of the page, by the path they are asked for: a table, so that no path of a request reaches the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from tokenloom_look.web.assets import SCRIPTS, STYLES, asset

_PLACE = b"<!-- the styles and scripts of web/, and the modules -->"
"""Stands in the page where its shared files are named."""

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
    for file in files("tokenloom_look.explorer").joinpath("page").iterdir():
        if (content_type := _TYPES.get(file.name.rpartition(".")[2])) is not None:
            table[f"/{file.name}"] = ServedFile(content=file.read_bytes(), content_type=content_type)
    for name in (*SCRIPTS, *STYLES):
        found = asset(name)
        table[f"/web/{name}"] = ServedFile(content=found.text.encode(), content_type=found.content_type)
    page = table.pop("/index.html")
    modules = sorted(path[1:] for path in table if path.endswith(".js") and not path.startswith("/web/"))
    table["/"] = replace(page, content=page.content.replace(_PLACE, _named(modules)))
    return table


def _named(modules: Sequence[str]) -> bytes:
    """Returns the elements that name the files of `web/`, and all modules of the page, to be fetched at once."""
    styles = (f'<link rel="stylesheet" href="web/{name}">' for name in STYLES)
    scripts = (f'<script src="web/{name}" defer></script>' for name in SCRIPTS)
    preloads = (f'<link rel="modulepreload" href="{name}">' for name in modules)
    return "\n".join([*styles, *scripts, *preloads]).encode()
