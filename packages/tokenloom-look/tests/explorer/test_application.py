"""Static files, queries, and answers of views."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from explorer_requests import Asker, serving

from tokenloom.errors import ConfigError, UnavailableError
from tokenloom_look.explorer.queries import NotThereError, Query


def echo(query: Query) -> object:
    found = {"text": query.text("text"), "number": query.number("number", 2**60)}
    query.check_read()
    return found


def fails(query: Query) -> object:
    kind = query.text("kind")
    if kind == "bug":
        raise ZeroDivisionError
    classes = {"config": ConfigError, "there": NotThereError, "store": UnavailableError}
    message = "http://me:word@host/key was refused"
    raise classes[kind](message, hint="look elsewhere")


@pytest.fixture(scope="module")
def ask() -> Iterator[Asker]:
    with serving({"echo": echo, "fails": fails}) as asker:
        yield asker


def test_an_answer_is_json_that_a_browser_reads_exactly(ask):
    reply = ask.send("/api/echo?text=%E4%B8%AD%3Cb%3E")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json() == {"text": "中<b>", "number": "1152921504606846976"}
    assert ask("echo", text="", number=7) == {"text": "", "number": 7}


@pytest.mark.parametrize(("kind", "status"), [("config", 400), ("there", 404), ("store", 503)])
def test_error_responses_have_no_secrets(ask, kind, status):
    reply = ask.send(f"/api/fails?kind={kind}")
    assert reply.status == status
    assert reply.json() == {"error": "http://…@host/key was refused", "hint": "look elsewhere"}


def test_an_unexpected_error_is_logged_and_the_server_continues(ask, caplog):
    reply = ask.send("/api/fails?kind=bug")
    assert (reply.status, reply.json()["error"]) == (500, "the explorer failed")
    assert "nosniff" in reply.headers.values()
    assert ask("echo", text="a")["text"] == "a"
    assert "ZeroDivisionError" in caplog.text
    assert ask.server.access.token not in caplog.text


WRONG_QUERIES = """
text=a&text=b text text=%ff text=a&other=1 text=a&number=-1 text=a&number=1e3 text=a&number=
text=a&number=99999999999999999999999 text=a&number=%EF%BC%91
"""


@pytest.mark.parametrize("query", ["", *WRONG_QUERIES.split(), "&".join(f"name{number}=1" for number in range(99))])
def test_invalid_queries_are_errors(ask, query):
    assert ask.send(f"/api/echo?{query}").status == 400


PATHS = r"/api/ /api/echo/ /API/echo /api/../page/index.html /..%2f..%2fetc%2fpasswd /page/index.html //explorer.js /%"


@pytest.mark.parametrize("path", PATHS.split())
def test_unknown_paths_are_not_found(ask, path):
    reply = ask.send(path)
    assert (reply.status, reply.json()["error"]) == (404, "unknown path")
