"""Searches for texts and ids in all documents."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.inspect.greedy import Greedy
from tests.support import write_corpus, write_sentences

from tokenloom_look.explorer.queries import Query
from tokenloom_look.explorer.searches import search
from tokenloom_look.explorer.session import Session
from tokenloom_look.target import Target, open_target


def session_of(*prefixes: str, tokenizer=None) -> Session:
    target = open_target(prefixes)
    sources = target.sources
    settings = {"kind": target.kind, "name": target.name, "sources": sources, "blend": target.blend}
    return Session(target=Target(**settings, tokenizer=tokenizer))


def found_all(session: Session, *, seconds: float = 0, **asked: str) -> list[tuple[int, int, int, int]]:
    """Returns all matches, following cursors; a request without time runs one stage."""
    matches, cursor, before = [], "", 0
    while cursor is not None:
        answer = search(session, Query({**asked, "cursor": cursor}), seconds=seconds)
        assert before <= (before := answer["searched_tokens"])
        matches += answer["matches"]
        cursor = answer["cursor"]
    assert answer["searched_tokens"] == answer["total_tokens"]
    return [(match["source"], match["document"], match["start"], match["length"]) for match in matches]


def test_ids_are_found_in_all_pairs_and_sequences(tmp_path):
    one = write_sentences(tmp_path / "a", [[[1, 2], [3, 1, 2]], [[2, 1]], [], [[9, 9, 1, 2]]])
    other = write_corpus(tmp_path / "b", [[1, 2, 1, 2]])
    session = session_of(one, other)
    assert found_all(session, ids="1 2") == [(0, 0, 0, 2), (0, 0, 3, 2), (0, 3, 2, 2), (1, 0, 0, 2), (1, 0, 2, 2)]
    assert found_all(session, ids="1,2", source="1") == [(1, 0, 0, 2), (1, 0, 2, 2)]
    assert found_all(session, ids="2 3") == []  # not over the end of a sequence
    assert found_all(session, ids="70000") == []


def asked_on(ask, **asked: object) -> dict[str, Any]:
    """Returns the last answer of a server with all matches, following cursors like the page."""
    matches, answer = [], {"cursor": ""}
    while answer["cursor"] is not None:
        answer = ask("search", **asked, cursor=answer["cursor"])
        matches += answer["matches"]
    return answer | {"matches": matches}


TEXTS = ["the cat sat on the mat", "breathe cats sat", "nothing", "ha ha ha", "", "x" * 3000 + " cat" + "a" * 60]


@pytest.mark.parametrize("text", ["the cat sat on the mat", " cat", "ha", "é"])
def test_texts_are_found_across_token_boundaries(tmp_path, text):
    tokenizer = Greedy()
    session = session_of(write_corpus(tmp_path / "a", map(tokenizer.tokenize, TEXTS)), tokenizer=tokenizer)
    found = found_all(session, text=text)
    counts = {number: whole.count(text) for number, whole in enumerate(TEXTS) if text in whole}
    assert {match[1] for match in found} == counts.keys()
    for _, document, start, length in found:
        tokens = tokenizer.tokenize(TEXTS[document])[start : start + length]
        assert text in tokenizer.detokenize(tokens)
        assert text not in tokenizer.detokenize(tokens[1:])
    per_document = [sum(match[1] == number for match in found) for number in counts]
    assert per_document == list(counts.values())


def test_search_results_have_method_and_context(ask_pair):
    found = asked_on(ask_pair, text="alert(1)")
    [match] = found["matches"]
    assert match["document"] == 3
    assert "<script" not in match["context_html"]
    assert "alert(1)" in re.search("<mark>(.*)</mark>", match["context_html"])[1]
    assert (found["cursor"], found["searched_tokens"]) == (None, found["total_tokens"])
    assert asked_on(ask_pair, text="strip() + 17\n")["matches"][0]["document"] == 17
    assert {ask_pair("search", text=text)["method"] for text in ("a", "return text.strip() + 17")} == {
        "text by decoding",
        "text by ids",
    }


def test_context_without_a_tokenizer_is_ids(ask_ids):
    [match] = asked_on(ask_ids, ids="2 3")["matches"][:1]
    assert match["context_html"] == "1 <mark>2 3</mark> "
    assert ask_ids.error("search", text="a") == (400, "searching for text needs a tokenizer")


@pytest.mark.parametrize("asked", [{}, {"text": "a", "ids": "1"}, {"ids": "one"}, {"ids": "1", "cursor": "9.0.0.0"}])
def test_invalid_searches_are_errors(ask_pair, asked):
    assert ask_pair.error("search", **asked)[0] == 400
