"""All views at once: none of them writes anything."""

from __future__ import annotations

from tests.explorer.asking import serving, state_of
from tests.explorer.conftest import RUN

from tokenloom.explorer.looking import Looking, without_traces
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
    for name in views_of(corpora.looking("ids")):
        status, _ = ask_run.error(name, document=0, position=0, value=1, unknown=1)
        assert status == 400


def test_a_run_in_the_order_of_the_reference_is_built_elsewhere(corpora, tmp_path):
    path = corpora.folder / "reference.toml"
    path.write_text(RUN.replace("order = 1", 'order = "megatron"').replace("mixing_block = 8\n", ""))
    Run.open(path)
    before = state_of(corpora.folder)
    target = without_traces(open_target([str(path)]), str(tmp_path))
    with serving(views_of(Looking(target=target))) as ask:
        assert "order of this run is the reference's" in ask("target")["notes"][-1]
        assert ask("positions", first=0, count=2)["total"] >= 60
        assert ask("position", position=3)["num_tokens"] == 33
        assert ask("occurrences", source=0, document=7)["total"] > 0
    assert state_of(corpora.folder) == before
    assert list(tmp_path.iterdir()) != []
