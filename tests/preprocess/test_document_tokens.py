from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import MissingTokenError
from tokenloom.preprocess.blocks import DocumentTokens
from tokenloom.tokenizers.plain import ByteTokenizer, NullTokenizer

BOS, EOD = 90, 91
POLICIES = [DocumentTokens(), DocumentTokens(eod=EOD), DocumentTokens(bos=BOS), DocumentTokens(bos=BOS, eod=EOD)]


def add(policy: DocumentTokens, documents: list[list[list[int]]]) -> tuple[list[list[list[int]]], int]:
    """Adds the tokens to documents, which are lists of sequences that are not empty, by the arrays of a block."""
    rows = [row for document in documents for row in document]
    tokens = np.array([token for row in rows for token in row], dtype=np.uint16)
    ends = np.cumsum([len(document) for document in documents], dtype=np.int64)
    lengths = np.array([len(row) for row in rows], dtype=np.int32)
    before = (tokens.copy(), lengths.copy())
    made, new_lengths, num_doubled = policy.add(tokens, lengths, ends)
    assert (tokens == before[0]).all()
    assert (lengths == before[1]).all()
    assert (made.dtype, new_lengths.dtype) == (np.uint16, np.int32)
    cut = [row.tolist() for row in np.split(made, np.cumsum(new_lengths)[:-1])] if len(new_lengths) else []
    return [cut[stop - len(document) : stop] for document, stop in zip(documents, ends, strict=True)], num_doubled


def test_doubled_tokens_are_counted_and_kept():
    documents = [[[BOS, 1]], [[2, EOD]], [[BOS], [EOD]], [[EOD, 3, BOS]], [[4]]]
    made, num_doubled = add(POLICIES[3], documents)
    assert num_doubled == 3
    assert made[:2] == [[[BOS, BOS, 1, EOD]], [[BOS, 2, EOD, EOD]]]
    assert add(POLICIES[1], documents)[1] == 2
    assert add(POLICIES[0], documents)[1] == 0


@given(
    policy=st.sampled_from(POLICIES),
    documents=st.lists(st.lists(st.lists(st.sampled_from([1, 2, BOS, EOD]), min_size=1, max_size=4), max_size=3)),
)
def test_documents_are_those_made_one_by_one(policy: DocumentTokens, documents: list[list[list[int]]]):
    expected, num_doubled = [], 0
    for document in documents:
        rows = [list(row) for row in document]
        doubled = bool(rows) and (rows[0][0] == policy.bos or rows[-1][-1] == policy.eod)
        if rows and policy.bos is not None:
            rows[0].insert(0, policy.bos)
        if rows and policy.eod is not None:
            rows[-1].append(policy.eod)
        expected.append(rows)
        num_doubled += doubled
    assert add(policy, documents) == (expected, num_doubled)


def test_ids_come_from_the_tokenizer():
    assert DocumentTokens.of(ByteTokenizer()) == DocumentTokens()
    assert DocumentTokens.of(ByteTokenizer(), prepend_bos=True, append_eod=True) == DocumentTokens(bos=257, eod=256)
    with pytest.raises(MissingTokenError, match="tokenizer `null:5` has no token for `bos`"):
        DocumentTokens.of(NullTokenizer(5), prepend_bos=True)
