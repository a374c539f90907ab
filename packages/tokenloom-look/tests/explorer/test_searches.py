"""Texts and ids that are looked for in all documents."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.inspect.greedy import Greedy
from tests.support import write_corpus, write_sentences

from tokenloom_look.explorer.looking import Looking
from tokenloom_look.explorer.queries import Query
from tokenloom_look.explorer.searches import search
from tokenloom_look.target import Target, open_target


def looking_at(*prefixes: str, tokenizer=None) -> Looking:
    target = open_target(prefixes)
    sources = target.sources
    settings = {"kind": target.kind, "name": target.name, "sources": sources, "blend": target.blend}
    return Looking(target=Target(**settings, tokenizer=tokenizer))


def found_all(looking: Looking, *, seconds: float = 0, **asked: str) -> list[tuple[int, int, int, int]]:
    """Returns all matches, asked on with the cursor; a request without time looks through one stretch."""
    matches, cursor, before = [], "", 0
    while cursor is not None:
        answer = search(looking, Query({**asked, "cursor": cursor}), seconds=seconds)
        assert before <= (before := answer["searched_tokens"])
        matches += answer["matches"]
        cursor = answer["cursor"]
    assert answer["searched_tokens"] == answer["total_tokens"]
    return [(match["source"], match["document"], match["start"], match["length"]) for match in matches]


def test_ids_are_found_in_all_pairs_and_sequences(tmp_path):
    one = write_sentences(tmp_path / "a", [[[1, 2], [3, 1, 2]], [[2, 1]], [], [[9, 9, 1, 2]]])
    other = write_corpus(tmp_path / "b", [[1, 2, 1, 2]])
    looking = looking_at(one, other)
    assert found_all(looking, ids="1 2") == [(0, 0, 0, 2), (0, 0, 3, 2), (0, 3, 2, 2), (1, 0, 0, 2), (1, 0, 2, 2)]
    assert found_all(looking, ids="1,2", source="1") == [(1, 0, 0, 2), (1, 0, 2, 2)]
    assert found_all(looking, ids="2 3") == []  # not over the end of a sequence
    assert found_all(looking, ids="70000") == []


def asked_on(ask, **asked: object) -> dict[str, Any]:
    """Returns the last answer of a server, with all matches, asked on as the page does: a busy one takes several."""
    matches, answer = [], {"cursor": ""}
    while answer["cursor"] is not None:
        answer = ask("search", **asked, cursor=answer["cursor"])
        matches += answer["matches"]
    return answer | {"matches": matches}


TEXTS = ["the cat sat on the mat", "breathe cats sat", "nothing", "ha ha ha", "", "x" * 3000 + " cat" + "a" * 60]


@pytest.mark.parametrize("text", ["the cat sat on the mat", " cat", "ha", "é"])
def test_a_text_is_found_where_documents_have_it_however_they_are_cut(tmp_path, text):
    tokenizer = Greedy()
    looking = looking_at(write_corpus(tmp_path / "a", map(tokenizer.tokenize, TEXTS)), tokenizer=tokenizer)
    found = found_all(looking, text=text)
    counts = {number: whole.count(text) for number, whole in enumerate(TEXTS) if text in whole}
    assert {match[1] for match in found} == counts.keys()
    for _, document, start, length in found:
        tokens = tokenizer.tokenize(TEXTS[document])[start : start + length]
        assert text in tokenizer.detokenize(tokens)
        assert text not in tokenizer.detokenize(tokens[1:])
    per_document = [sum(match[1] == number for match in found) for number in counts]
    assert per_document == list(counts.values())


def test_the_answer_says_how_it_looked_and_shows_the_match_as_text(ask_pair):
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
    assert ask_ids.error("search", text="a") == (400, "no tokenizer to search for text")


@pytest.mark.parametrize(
    "asked",
    [{}, {"text": "a", "ids": "1"}, {"ids": "one"}, {"ids": "1", "cursor": "9.0.0.0"}, {"ids": "1", "source": "7"}],
)
def test_what_cannot_be_looked_for_is_refused(ask_pair, asked):
    status, message = ask_pair.error("search", **asked)
    assert (status in (400, 404), bool(message)) == (True, True)
