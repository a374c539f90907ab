"""The first `run.toml`."""

from __future__ import annotations

from fractions import Fraction

import pytest
from tests.run.data import write_source

from tokenloom.errors import ConfigError
from tokenloom.run.amend import draft_text, weighted_entries
from tokenloom.run.settings import parse_run


def stage_of(text: str):
    return parse_run(text, path="run.toml").stages[0]


def test_data_without_weights_are_read_once():
    stage = stage_of(draft_text(("data/web/*", "code"), sequence_length=8, path="run.toml"))
    assert stage.passes == (("web", Fraction(1)), ("code", Fraction(1)))


def test_data_without_weights_share_a_size_by_their_tokens(tmp_path):
    data = (write_source(str(tmp_path / "a"), 30, 30), write_source(str(tmp_path / "b"), 20))
    stage = stage_of(draft_text(data, sequence_length=8, samples=5, path=str(tmp_path / "run.toml")))
    assert stage.weights == (("a", Fraction(3)), ("b", Fraction(1)))


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("data/web_text_document", "web"),
        ("data/web/*_document", "web"),
        ("data/web_*", "web"),
        ("web.bin", "web"),
        ("data/books/", "books"),
        ("*", "data"),
        ("a b", "a b"),
    ],
)
def test_sources_are_named_by_what_their_paths_say(entry, name):
    text = draft_text((entry,), sequence_length=8, path="run.toml")
    assert [source.name for source in parse_run(text, path="run.toml").sources] == [name]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["0.8", "web", "code"], r"weights and prefixes by turns, or prefixes alone, found entry 1 '0.8'"),
        (["web", "0.2"], r"found entry 2 '0.2'"),
        (["0", "web"], r"expected a finite weight above 0 for `web` in the blend, found 0"),
        (["-1", "web"], r"expected a finite weight above 0 for `web` in the blend, found -1"),
    ],
)
def test_blends_that_are_none(entries, message):
    with pytest.raises(ConfigError, match=message):
        weighted_entries(entries)
