"""Ids and texts that are looked for in all documents of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.run.audit.greedy import Greedy
from tests.support import write_corpus

from tokenloom.errors import ConfigError
from tokenloom.run.audit import token_search
from tokenloom.run.audit.token_search import Match, find_ids, find_text
from tokenloom.run.locking import lock_run


def lock_of(folder: Path, web: list[list[int]], code: list[list[int]], more: list[list[int]] | None = None):
    for name, documents, dtype in (
        ("web0", web, np.uint16),
        ("web1", more or [[1]], np.uint16),
        ("code", code, np.int32),
    ):
        write_corpus(folder / name, documents, dtype=dtype)
    (folder / "run.toml").write_text(
        'order = 1\nseed = 1\n[sources]\nweb = "web*"\ncode = "code"\n[[stages]]\nsequence_length = 2\nsamples = 9\n'
        "weights = { web = 1, code = 1 }\n"
    )
    return lock_run(folder / "run.toml").lock


def matches(found: list[Match]) -> list[tuple[int, int, int, int]]:
    return [(match.source, match.document, match.start, match.length) for match in found]


def test_ids_stand_within_one_document(tmp_path):
    lock = lock_of(tmp_path, [[5, 1, 2], [3, 1, 2, 3, 1, 2, 3], []], [[1, 2, 70000, 3]], [[9, 1, 2, 3, 9]])
    assert matches(find_ids(lock, [1, 2, 3])) == [(0, 1, 1, 3), (0, 1, 4, 3), (0, 3, 1, 3)]  # not over its end
    assert matches(find_ids(lock, [2])) == [(0, 0, 2, 1), (0, 1, 2, 1), (0, 1, 5, 1), (0, 3, 2, 1), (1, 0, 1, 1)]
    assert matches(find_ids(lock, [70000])) == [(1, 0, 2, 1)]  # which 16 bits do not hold
    assert matches(find_ids(lock, [4])) == []


def test_what_cannot_be_looked_for(tmp_path, monkeypatch):
    lock = lock_of(tmp_path, [[1, 1, 1, 1]], [[1, 2, 3]])
    with pytest.raises(ConfigError, match="expected ids of tokens to look for, found none"):
        find_ids(lock, [])
    with pytest.raises(ConfigError, match="from 0 on, found -1"):
        find_ids(lock, [3, -1])
    monkeypatch.setattr(token_search, "_MOST_FOUND", 2)
    with pytest.raises(ConfigError, match="at 2 places or fewer, found more"):
        find_ids(lock, [1])


def test_a_text_is_found_whatever_stands_around_it(tmp_path):
    tokenizer = Greedy()
    text = "the cats sat on the mat"
    around = ["{}", "in {}", "{}ing", "ha{}. ha", "the {} the", "breathe cats sat on the matter {}", "中{}é"]
    documents = [tokenizer.tokenize(each.format(text)) for each in around]
    documents += [tokenizer.tokenize("the cat sat on the mat"), tokenizer.tokenize("nothing")]
    lock = lock_of(tmp_path, documents, [[0] * 9])
    found = find_text(lock, text, tokenizer)
    assert [match.document for match in found] == [0, 1, 2, 3, 4, 5, 5, 6]
    for match in found:
        tokens = documents[match.document][match.start : match.start + match.length]
        assert text in tokenizer.detokenize(tokens)
        assert text not in tokenizer.detokenize(tokens[1:])
        assert text not in tokenizer.detokenize(tokens[:-1])


def test_a_text_that_overlaps_itself(tmp_path):
    tokenizer = Greedy()
    lock = lock_of(tmp_path, [tokenizer.tokenize("ha" + " ha" * 9 + ".")], [[0] * 9])
    found = find_text(lock, " ha ha ha ha ha ha ha", tokenizer)
    assert matches(found) == [(0, 0, 1, 7), (0, 0, 2, 7), (0, 0, 3, 7)]
