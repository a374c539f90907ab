"""The application: files of the page, and answers of views under `/api/`, made in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tokenloom.errors import TokenloomError
from tokenloom.optional import require
from tokenloom_look.explorer.access import Access, Application
from tokenloom_look.explorer.documents import document, documents
from tokenloom_look.explorer.jumps import jump
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.explorer.overview import section, target
from tokenloom_look.explorer.positions import occurrences, position, positions
from tokenloom_look.explorer.queries import Query, encoded, error_answer
from tokenloom_look.explorer.searches import search
from tokenloom_look.explorer.watching import watch
from tokenloom_look.web.assets import SCRIPTS, STYLES, asset

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

View = Callable[[Query], Any]
"""What answers one kind of request: from a query to what JSON can say. Called from several threads at once."""

_MOST_AT_ONCE = 4
"""Views that work at a time: a page that scrolls asks faster than a disk answers."""

_ALONE = ("section",)
"""Views that may take long, and wait for each other: one of them works at a time, and keeps no other view waiting."""


def application(views: Mapping[str, View], access: Access) -> Application:
    """Returns the application that serves views behind access control."""
    applications = require("starlette.applications", extra="look")
    routing = require("starlette.routing", extra="look")
    anyio = require("anyio", extra="look")
    many, one = anyio.CapacityLimiter(_MOST_AT_ONCE), anyio.CapacityLimiter(1)
    routes = [
        *(routing.Route(path, partial(_file, served, access)) for path, served in served_files().items()),
        *(
            routing.Route(f"/api/{name}", partial(_answer, view, one if name in _ALONE else many))
            for name, view in views.items()
        ),
    ]
    starlette = applications.Starlette(routes=routes, exception_handlers={404: _nothing_there, Exception: _failed})
    starlette.router.redirect_slashes = False
    return access.guard(starlette)


async def _file(served: ServedFile, access: Access, request: Request) -> Response:
    """Answers with a file; the page gets the token if its address has it."""
    from starlette.responses import Response

    content = served.content
    if request.url.path == "/" and access.opens(request.scope):
        content = content.replace(b'name="token" content=""', f'name="token" content="{access.token}"'.encode())
    return Response(content, media_type=served.content_type)


async def _answer(view: View, limiter: Any, request: Request) -> Response:
    import anyio.to_thread

    status, body = await anyio.to_thread.run_sync(partial(_ask, view, request.scope["query_string"]), limiter=limiter)
    return _json(status, body)


def _ask(view: View, query_string: bytes) -> tuple[int, bytes]:
    """Returns status and JSON of a view."""
    try:
        query = Query.parse(query_string)
        return 200, encoded(view(query))
    except TokenloomError as error:
        status, answer = error_answer(error)
        return status, encoded(answer)


async def _nothing_there(*_: Any) -> Response:
    return _json(404, encoded({"error": "there is nothing under this path", "hint": None}))


async def _failed(*_: Any) -> Response:
    answer = {"error": "the explorer failed", "hint": "the terminal that it runs in says more; please report it"}
    return _json(500, encoded(answer))


def _json(status: int, body: bytes) -> Response:
    from starlette.responses import Response

    return Response(body, status_code=status, media_type="application/json")


_PLACE = b"<!-- the styles and scripts of web/, and the modules -->"
"""Stands in the page where its shared files are named."""

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFile:
    """A file that is served."""

    content: bytes
    content_type: str


def served_files() -> dict[str, ServedFile]:
    """Returns the files by path; those of `web/` below `/web/`."""
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
    """Returns the elements that load the files of `web/`, and preload the modules."""
    styles = (f'<link rel="stylesheet" href="web/{name}">' for name in STYLES)
    scripts = (f'<script src="web/{name}" defer></script>' for name in SCRIPTS)
    preloads = (f'<link rel="modulepreload" href="{name}">' for name in modules)
    return "\n".join([*styles, *scripts, *preloads]).encode()


_ASKED = {
    "target": target,
    "section": section,
    "documents": documents,
    "document": document,
    "positions": positions,
    "position": position,
    "occurrences": occurrences,
    "jump": jump,
    "search": search,
    "watch": watch,
}


def views_of(looking: Looking) -> dict[str, View]:
    return {name: partial(view, looking) for name, view in _ASKED.items()}
