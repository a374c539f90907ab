"""What all views look at."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.explorer.answers import NotThereError
from tokenloom.explorer.looking import preview
from tokenloom.explorer.queries import Query


def test_sources_and_documents_are_those_that_are_there(corpora):
    looking = corpora.looking("run.toml")
    assert (looking.source(Query({})), looking.source(Query({"source": "1"}))) == (0, 1)
    assert looking.document(Query({"document": "19"}), 1) == 19
    with pytest.raises(NotThereError, match=r"expected a source in \[0, 2\), found 2"):
        looking.source(Query({"source": "2"}))
    with pytest.raises(NotThereError, match=r"expected a document of code in \[0, 20\), found 20"):
        looking.document(Query({"document": "20"}), 1)


def test_samples_are_opened_once_and_by_those_who_have_any(corpora):
    looking = corpora.looking("ids")
    assert looking.samples() is looking.samples()
    blend = corpora.looking("ids", "web_text_document")
    assert not blend.has_positions
    with pytest.raises(ConfigError, match="expected something with samples, found the blend"):
        blend.samples()


def test_a_preview_is_a_line_that_drives_nothing(corpora):
    tokenizer = corpora.looking("web_text_document").target.tokenizer
    assert preview(tokenizer.tokenize("a \n\t b\x1b[0m"), tokenizer) == "a b\\x1b[0m"
    assert len(preview(tokenizer.tokenize("word " * 500), tokenizer)) == 200
    assert preview([1, 2], None) == "1 2"
