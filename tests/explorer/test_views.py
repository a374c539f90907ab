"""All views at once: none of them writes anything."""

from __future__ import annotations

import os

from tests.explorer.asking import serving

from tokenloom.explorer.views import views_of

ASKED = {
    "target": {},
    "documents": {"count": 3},
    "document": {"document": 1},
    "positions": {"count": 3},
    "position": {"position": 2},
    "jump": {"value": "3"},
}


def state_of(folder) -> dict[str, tuple[int, int]]:
    """Returns size and time of change of all that lies in a folder."""
    found = {}
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            status = os.lstat(os.path.join(root, name))
            found[os.path.join(root, name)] = (status.st_size, status.st_mtime_ns)
    return found


def test_looking_changes_nothing(corpora):
    before = state_of(corpora.folder)
    for word, more in (("web_text_document", {}), ("run.toml", {"occurrences": {"document": 1}})):
        with serving(views_of(corpora.looking(word))) as ask:
            for name, values in (ASKED | more).items():
                ask(name, **values)
    assert state_of(corpora.folder) == before


def test_every_view_refuses_what_it_does_not_know(ask_run):
    for name in views_of.__globals__["_ASKED"]:
        status, _ = ask_run.error(name, document=0, position=0, value=1, unknown=1)
        assert status == 400
