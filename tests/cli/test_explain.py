"""`tokenloom explain`."""

from __future__ import annotations

from tests.cli.runs import run

from tokenloom.explanations import explanations


def test_an_error_is_explained_in_the_width_of_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    status, out, err = run(capsys, "explain", "OutputExistsError")
    assert (status, err) == (0, "")
    assert out.startswith("OutputExistsError (also FileExistsError)\n\nAn output is there already, ")
    assert "\n\nUsual causes: " in out
    assert "\n\nWhat to do: choose another output; " in out
    assert max(map(len, out.splitlines())) <= 60


def test_without_a_name_all_are_listed(capsys):
    status, out, _ = run(capsys, "explain")
    assert status == 0
    listed = [line.partition(":")[0] for line in out.splitlines() if not line.startswith(" ")]
    assert listed == list(explanations())
