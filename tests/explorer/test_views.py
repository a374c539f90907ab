"""All views at once: none of them writes anything."""

from __future__ import annotations

from tests.explorer.asking import serving, state_of

from tokenloom.explorer.views import views_of
from tokenloom.inspect.target import open_target

ASKED = {
    "target": {},
    "documents": {"count": 3},
    "document": {"document": 1},
    "positions": {"count": 3},
    "position": {"position": 2},
    "jump": {"value": "3"},
    "search": {"text": "return"},
    "section": {"id": "documents"},
}


COMPARED = {"compare": {}, "compare/positions": {"count": 3}}


def test_looking_changes_nothing(corpora):
    before = state_of(corpora.folder)
    for word, more in (
        ("web_text_document", {}),
        ("run.toml", {"occurrences": {"document": 1}}),
        ("run.toml", COMPARED),
    ):
        compared = open_target([corpora.path("other.toml")]) if more is COMPARED else None
        with serving(views_of(corpora.looking(word, compared=compared))) as ask:
            for name, values in (ASKED | more).items():
                ask(name, **values)
    assert state_of(corpora.folder) == before


def test_every_view_refuses_what_it_does_not_know(ask_run):
    for name in views_of.__globals__["_ASKED"]:
        status, _ = ask_run.error(name, document=0, position=0, value=1, unknown=1)
        assert status == 400
