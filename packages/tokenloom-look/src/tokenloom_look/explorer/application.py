"""The ASGI application of the explorer: static files, and views below `/api/` that run in threads."""

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
from tokenloom_look.explorer.overview import section, target
from tokenloom_look.explorer.positions import occurrences, position, positions
from tokenloom_look.explorer.queries import Query, encoded, error_answer
from tokenloom_look.explorer.searches import search
from tokenloom_look.explorer.session import Session
from tokenloom_look.explorer.watching import watch
from tokenloom_look.web.assets import SCRIPTS, STYLES, asset

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

View = Callable[[Query], Any]
"""A function that answers one kind of request with a JSON value; several threads may call it at the same time."""

_MAX_PARALLEL_VIEWS = 4  # a scrolling page sends requests faster than a disk answers
_SLOW_VIEWS = ("section",)  # these run one at a time, in parallel to the other views


def application(views: Mapping[str, View], access: Access) -> Application:
    """Returns the application that serves views and static files behind access control."""
    applications = require("starlette.applications", extra="look")
    routing = require("starlette.routing", extra="look")
    anyio = require("anyio", extra="look")
    many, one = anyio.CapacityLimiter(_MAX_PARALLEL_VIEWS), anyio.CapacityLimiter(1)
    routes = [
        *(routing.Route(path, partial(_file, served, access)) for path, served in served_files().items()),
        *(
            routing.Route(f"/api/{name}", partial(_answer, view, one if name in _SLOW_VIEWS else many))
            for name, view in views.items()
        ),
    ]
    starlette = applications.Starlette(routes=routes, exception_handlers={404: _not_found, Exception: _failed})
    starlette.router.redirect_slashes = False
    return access.guard(starlette)


async def _file(served: ServedFile, access: Access, request: Request) -> Response:
    """Answers with a static file; puts the token into the page if the address has the token or a ticket."""
    from starlette.responses import Response

    content = served.content
    if request.url.path == "/" and access.opens(request.scope):
        content = content.replace(b'name="token" content=""', f'name="token" content="{access.token}"'.encode())
    return Response(content, media_type=served.content_type)


async def _answer(view: View, limiter: Any, request: Request) -> Response:
    import anyio.to_thread

    status, body = await anyio.to_thread.run_sync(partial(_call, view, request.scope["query_string"]), limiter=limiter)
    return _json(status, body)


def _call(view: View, query_string: bytes) -> tuple[int, bytes]:
    """Calls a view; returns the HTTP status, and the answer or the error as JSON."""
    try:
        query = Query.parse(query_string)
        return 200, encoded(view(query))
    except TokenloomError as error:
        status, answer = error_answer(error)
        return status, encoded(answer)


async def _not_found(*_: Any) -> Response:
    return _json(404, encoded({"error": "unknown path", "hint": None}))


async def _failed(*_: Any) -> Response:
    answer = {"error": "the explorer failed", "hint": "see the terminal of `tokenloom explore`, and report the error"}
    return _json(500, encoded(answer))


def _json(status: int, body: bytes) -> Response:
    from starlette.responses import Response

    return Response(body, status_code=status, media_type="application/json")


_ASSETS_MARK = b"<!-- the styles and scripts of web/, and the modules -->"  # replaced in index.html

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFile:
    """A static file of the page, as bytes to send."""

    content: bytes
    content_type: str


def served_files() -> dict[str, ServedFile]:
    """Returns the static files by URL path; files of the package `web` have paths below `/web/`."""
    table = {}
    for file in files("tokenloom_look.explorer").joinpath("page").iterdir():
        if (content_type := _TYPES.get(file.name.rpartition(".")[2])) is not None:
            table[f"/{file.name}"] = ServedFile(content=file.read_bytes(), content_type=content_type)
    for name in (*SCRIPTS, *STYLES):
        found = asset(name)
        table[f"/web/{name}"] = ServedFile(content=found.text.encode(), content_type=found.content_type)
    page = table.pop("/index.html")
    modules = sorted(path[1:] for path in table if path.endswith(".js") and not path.startswith("/web/"))
    table["/"] = replace(page, content=page.content.replace(_ASSETS_MARK, _asset_elements(modules)))
    return table


def _asset_elements(modules: Sequence[str]) -> bytes:
    """Returns the HTML that loads the files of the package `web` and preloads the page's JavaScript modules."""
    styles = (f'<link rel="stylesheet" href="web/{name}">' for name in STYLES)
    scripts = (f'<script src="web/{name}" defer></script>' for name in SCRIPTS)
    preloads = (f'<link rel="modulepreload" href="{name}">' for name in modules)
    return "\n".join([*styles, *scripts, *preloads]).encode()


_VIEWS = {
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


def views_of(session: Session) -> dict[str, View]:
    return {name: partial(view, session) for name, view in _VIEWS.items()}
