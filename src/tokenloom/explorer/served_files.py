"""The files of the page, by the path they are asked for: a table, so that no path of a request reaches the disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file that is served.

    Attributes:
        path: where it lies.
    """

    path: Path

    @property
    def content_type(self) -> str:
        """What it is, for the browser."""
        return _TYPES[self.path.suffix]

    def read(self) -> bytes:
        """Returns what it holds, read anew: a page that somebody works on shows at once."""
        return self.path.read_bytes()


def served_files() -> dict[str, ServedFile]:
    """Returns the files by the path of their address."""
    own = {f"/{name}": ServedFile(_PAGE / name) for name in ("explorer.js", "explorer.css")}
    return {"/": ServedFile(_PAGE / "index.html"), **own}
