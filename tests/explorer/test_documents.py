"""Documents by number."""

from __future__ import annotations

import html
import re

import pytest
from tests.explorer.conftest import HOSTILE
from tests.support import write_sentences

from tokenloom.explorer.documents import MOST_TOKENS, documents
from tokenloom.explorer.looking import Looking
from tokenloom.explorer.queries import Query
from tokenloom.inspect.target import open_target


def test_a_page_has_lengths_origins_and_beginnings(ask_pair, corpora):
    page = ask_pair("documents", first=38, count=10)
    assert (page["total"], page["first"], len(page["rows"])) == (40, 38, 2)
    row = page["rows"][1]
    assert row["preview"].startswith("def page_39(text): return text.strip() + 39 def page_39")
    assert (row["document"], row["num_sequences"], row["record"]) == (39, 1, 40)
    assert row["file"] == corpora.path("web.jsonl")
    assert row["num_tokens"] == ask_pair("document", document=39)["num_tokens"]


def test_a_page_behind_the_end_is_empty_and_a_page_has_a_most(ask_pair):
    assert ask_pair("documents", first=2**62)["rows"] == []
    assert len(ask_pair("documents", count=2**62)["rows"]) == 40
    assert ask_pair.error("documents", first=-1)[0] == 400
    assert ask_pair.error("documents", first=2**64) == (400, "`first`, '18446744073709551616', does not fit 64 bits")


def test_hostile_text_is_text(ask_pair):
    preview = ask_pair("documents", first=3, count=1)["rows"][0]["preview"]
    assert preview.startswith("<script>alert(1)</script>\\x1b[31m \\u202e txt.exe &amp; café 中文")
    drawn = ask_pair("document", document=3)
    assert "<script" not in drawn["html"]
    assert "\x1b" not in drawn["html"]
    assert "\u202e" not in drawn["html"]
    text = html.unescape(re.sub("<[^>]*>", "", drawn["html"]))
    assert "<script>alert(1)</script>" in text.replace("\n", "")
    assert HOSTILE.isprintable() is False


def test_a_document_by_tokens_joins_to_the_whole(ask_pair):
    whole = ask_pair("document", document=0)
    parts = [ask_pair("document", document=0, first=first, count=10) for first in range(0, whole["num_tokens"], 10)]
    assert [part["count"] for part in parts[:-1]] == [10] * (len(parts) - 1)
    ids = [number for part in parts for number in re.findall("data-id=([0-9]+)", part["html"])]
    assert ids == re.findall("data-id=([0-9]+)", whole["html"])
    assert len(ids) == whole["num_tokens"]
    assert whole["heading"].startswith("document 0 of ")
    assert ask_pair("document", document=0, first=2**62)["count"] == 0


def test_documents_that_are_not_there_are_refused(ask_pair, corpora):
    message = f"expected a document of {corpora.path('web_text_document')} in [0, 40), found 40"
    assert ask_pair.error("document", document=40) == (404, message)
    assert ask_pair.error("document", document=0, source=1) == (404, "expected a source in [0, 1), found 1")
    assert ask_pair.error("document") == (400, "expected `document` in the query, found none")
    assert ask_pair.error("document", document="../../etc/passwd")[0] == 400


def test_without_a_tokenizer_ids_are_shown(ask_ids):
    rows = ask_ids("documents")["rows"]
    assert [row["preview"] for row in rows[:2]] == ["1 2 3", ""]
    assert [row["num_tokens"] for row in rows] == [3, 0, 100]
    assert [row["file"] for row in rows] == [None] * 3
    assert ask_ids("document", document=1)["num_tokens"] == 0


def test_documents_of_a_run_are_those_of_its_sources(ask_run):
    rows = ask_run("documents", source=1, first=2, count=1)["rows"]
    assert rows[0]["preview"].startswith("class Code2: value = 2")
    assert rows[0]["record"] == 3
    assert ask_run("document", source=1, document=2)["heading"] == "document 2 of code"


def test_documents_of_several_sequences_are_added_up(tmp_path):
    prefix = write_sentences(tmp_path / "books", [[[1, 2], [3]], [], [[4, 5, 6]]])
    found = documents(Looking(target=open_target([prefix])), Query({}))["rows"]
    assert [(row["num_tokens"], row["num_sequences"], row["preview"]) for row in found] == [
        (3, 2, "1 2"),
        (0, 0, ""),
        (3, 1, "4 5 6"),
    ]


@pytest.mark.parametrize("count", [MOST_TOKENS + 1, 2**62])
def test_no_request_draws_more_than_it_may(tmp_path, count):
    prefix = write_sentences(tmp_path / "long", [[[1] * (MOST_TOKENS + 100)]])
    from tokenloom.explorer.documents import document

    found = document(Looking(target=open_target([prefix])), Query({"document": "0", "count": str(count)}))
    assert found["count"] == MOST_TOKENS
