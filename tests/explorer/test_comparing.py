"""Two runs beside each other."""

from __future__ import annotations

import pytest

from tokenloom.run.audit.differences import differences
from tokenloom.run.run import Run


def test_what_differs_is_said_in_words(ask_run, corpora):
    found = ask_run("compare")
    runs = [Run.open(corpora.path(name)) for name in ("run.toml", "other.toml")]
    expected = differences(runs[0].lock, runs[1].lock)
    assert found["first_difference"]["position"] == expected.position
    assert found["first_difference"]["left"]["source"] == expected.before.source
    assert found["summary"][0] == f"The runs differ from position {expected.position} on" + (
        "." if expected.position else ": no position is the same from the first on."
    )
    assert [each["name"] for each in found["settings"]] == [each.name for each in expected.settings]
    assert "<table" in found["html"]
    assert {chart["id"].partition("-")[0] for chart in found["charts"]} == {"left", "right"}
    assert ask_run("compare") == found


def test_positions_of_both_stand_side_by_side(ask_run, corpora):
    found = ask_run("compare/positions", first=0, count=200)
    rows = found["rows"]
    assert (found["total"], len(rows)) == (60, 60)
    runs = [Run.open(corpora.path(name)) for name in ("run.toml", "other.toml")]
    for row in rows:
        assert row["left"]["source"] == runs[0].place(row["position"]).source
        if row["position"] >= 50:
            assert (row["right"], row["same"]) == (None, False)
        else:
            spans = [[tuple(span.values())[4:9] for span in run.trace([row["position"]]).rows()] for run in runs]
            assert row["same"] == (spans[0] == spans[1])
            assert row["right"]["preview"]
    assert ask_run("compare/positions", first=2**60)["rows"] == []


def test_a_run_is_the_same_as_itself(corpora):
    from tests.explorer.asking import serving

    from tokenloom.explorer.views import views_of
    from tokenloom.inspect.target import open_target

    looking = corpora.looking("run.toml", compared=open_target([corpora.path("run.toml")]))
    with serving(views_of(looking)) as ask:
        assert ask("compare")["summary"] == ["All positions are the same in both runs."]
        assert ask("compare")["first_difference"] is None
        assert all(row["same"] for row in ask("compare/positions", count=60)["rows"])


@pytest.mark.parametrize("view", ["compare", "compare/positions"])
def test_nothing_is_compared_with_nothing(ask_pair, view):
    assert ask_pair.error(view) == (400, "expected a second run to compare with, found none")
