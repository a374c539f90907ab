"""`tokenloom explain`."""

from __future__ import annotations

import json

import pytest
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


@pytest.mark.parametrize("words", [(), ("ConfigError",)])
def test_json_is_one_object(words, capsys):
    status, out, _ = run(capsys, "explain", *words, "--json")
    assert status == 0
    found = json.loads(out)
    found = found if words else found["ConfigError"]
    assert found["name"] == "ConfigError"
    assert found["bases"] == ["ValueError", "AssertionError"]
    assert found["remedy"].startswith("the message names the setting")


def test_an_unknown_name_is_refused(capsys):
    status, _, err = run(capsys, "explain", "ConfgError")
    assert status == 1
    assert "hint: did you mean `ConfigError`?" in err
