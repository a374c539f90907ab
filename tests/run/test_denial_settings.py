"""Documents that are denied, as they are written in files and in `run.toml`."""

from __future__ import annotations

import pytest
from tests.run.texts import SMALL, error_of

from tokenloom.errors import ConfigError
from tokenloom.run.denial_settings import parse_denied
from tokenloom.run.settings import parse_run


@pytest.mark.parametrize(
    ("text", "document"),
    [("web:0", ("web", 0)), (" web:12345\n", ("web", 12345)), ("a:b:7", ("a:b", 7)), ("web:007", ("web", 7))],
)
def test_documents(text, document):
    assert parse_denied(text, ["web", "a:b"]) == document


@pytest.mark.parametrize(
    "text", ["", "web", "web:", ":1", "web:-1", "web:1.0", "web:1_0", "web:\u0661", f"web:{9**40}"]
)
def test_what_is_no_document(text):
    with pytest.raises(ConfigError, match="expected a document such as `web:12345`, found"):
        parse_denied(text, ["web"])


def test_a_document_of_an_unknown_source():
    with pytest.raises(ConfigError, match=r"(?s)of a source of this run, found 'wbe:1'.*did you mean `web`"):
        parse_denied("wbe:1", ["web"])


def test_a_document_that_is_named_twice_is_denied_once():
    text = SMALL + '[[denied]]\ndocuments = ["web:2", "web:1", "web:2"]\n'
    assert parse_run(text, path="run.toml").denied[0].documents == (("web", 1), ("web", 2))
    assert "run.toml:9: expected documents" in error_of(text.replace('"web:1"', "[]")).message
