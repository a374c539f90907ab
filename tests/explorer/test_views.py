"""All views at once: none of them writes anything."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explorer.asking import serving, state_of
from tests.explorer.conftest import RUN

from tokenloom.errors import TokenloomError
from tokenloom.explorer.answers import encoded, error_answer
from tokenloom.explorer.looking import Looking
from tokenloom.explorer.queries import Query
from tokenloom.explorer.views import views_of
from tokenloom.inspect.target import open_target
from tokenloom.run.run import Run

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


NAMED = {
    "target": (),
    "section": ("id",),
    "documents": ("source", "first", "count"),
    "document": ("source", "document", "first", "count"),
    "positions": ("first", "count"),
    "position": ("position",),
    "occurrences": ("source", "document", "first", "count", "stop"),
    "jump": ("what", "value"),
    "search": ("text", "ids", "source", "cursor"),
    "compare": (),
    "compare/positions": ("first", "count"),
    "watch": (),
}
"""What each view is asked."""

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


def test_every_view_refuses_what_it_does_not_know(ask_run, corpora):
    assert views_of(corpora.looking("ids")).keys() == NAMED.keys()
    for name in NAMED:
        status, _ = ask_run.error(name, document=0, position=0, value=1, unknown=1)
        assert status == 400


def test_a_run_in_the_order_of_the_reference_is_built_elsewhere(corpora):
    path = corpora.folder / "reference.toml"
    path.write_text(RUN.replace("order = 1", 'order = "megatron"').replace("mixing_block = 8\n", ""))
    Run.open(path)
    before = state_of(corpora.folder)
    target = open_target([str(path)])
    with serving(views_of(Looking(target=target))) as ask:
        assert "order of this run is the reference's" in ask("target")["notes"][-1]
        assert ask("positions", first=0, count=2)["total"] >= 60
        assert ask("position", position=3)["num_tokens"] == 33
        assert ask("occurrences", source=0, document=7)["total"] > 0
    assert state_of(corpora.folder) == before


NAMES = ("source", "document", "first", "count", "position", "stop", "what", "value", "text", "ids", "cursor", "id")
VALUES = st.one_of(
    st.integers(-2, 2**65).map(str),
    st.integers(0, 70).map(str),
    st.text(max_size=20),
    st.sampled_from(
        ["", "nan", "inf", "1e9", "auto", "step", "record", "web:3", "0.0.0.0", "1.2.3.4", "documents", "٣", "\0"]
    ),
    st.tuples(*[st.integers(0, 60).map(str)] * 4).map(".".join),
)


@pytest.fixture(scope="module")
def both(corpora):
    compared = open_target([corpora.path("other.toml")])
    return [views_of(corpora.looking("run.toml", compared=compared)), views_of(corpora.looking("ids"))]


@given(
    name=st.sampled_from(sorted(NAMED)), which=st.integers(0, 1), values=st.dictionaries(st.sampled_from(NAMES), VALUES)
)
@settings(max_examples=400, deadline=None)
def test_whatever_is_asked_is_answered_or_refused(both, name, which, values):
    known = {key: value for key, value in values.items() if key in NAMED[name]}
    status = 200
    try:
        encoded(both[which][name](Query(known)))
    except TokenloomError as error:
        status = error_answer(error)[0]
    assert status in (200, 400, 404)
