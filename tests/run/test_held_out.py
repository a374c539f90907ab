"""A holdout is as large as its share, and what was held out once stays so."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.locks import make_pair

from tokenloom.kernels.walks import make_source_documents
from tokenloom.order.walk_order import source_key
from tokenloom.run.held_out import held_numbers, held_tokens, holds_blocks, num_blocks, with_holdout
from tokenloom.run.lock import BLOCK_DOCUMENTS

KEY = source_key(7, "web")


def pairs_of(*num_documents):
    return [make_pair(f"web-{number}", num_documents=count) for number, count in enumerate(num_documents)]


def test_blocks_are_held_out_where_they_are_many():
    assert not holds_blocks(pairs_of(31 * 10 * BLOCK_DOCUMENTS + 9 * BLOCK_DOCUMENTS), Fraction(1, 10))
    assert holds_blocks(pairs_of(31 * 10 * BLOCK_DOCUMENTS + 9 * BLOCK_DOCUMENTS + 1), Fraction(1, 10))


def test_numbers_are_rounded_over_all_pairs():
    chosen = with_holdout(pairs_of(3, 3, 3, 3), Fraction(1, 10), by_blocks=False)
    assert [pair.held_documents for pair in chosen] == [0, 1, 0, 0]
    chosen = with_holdout(
        pairs_of(BLOCK_DOCUMENTS, BLOCK_DOCUMENTS + 1, 5 * BLOCK_DOCUMENTS - 3), Fraction(1, 2), by_blocks=True
    )
    assert [(pair.held_blocks, pair.held_documents) for pair in chosen] == [(1, 0), (1, 0), (2, 0)]


def test_what_is_held_out_depends_on_seed_source_and_place():
    (pair,) = with_holdout(pairs_of(10_000), Fraction(1, 10), by_blocks=False)
    first = held_numbers(pair, key=KEY, number=0).tolist()
    for key, number in ((source_key(8, "web"), 0), (source_key(7, "code"), 0), (KEY, 1)):
        assert held_numbers(pair, key=key, number=number).tolist() != first
    assert held_numbers(pair, key=KEY, number=0).tolist() == first == sorted(set(first))


SHARES = st.fractions(0, Fraction(1, 2), max_denominator=10_000).filter(bool)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=6), SHARES, st.booleans(), st.data())
def test_totals_are_right_and_growth_moves_nothing(counts, share, by_blocks, data):
    pairs = pairs_of(*counts)
    chosen = with_holdout(pairs, share, by_blocks=by_blocks)
    held = [pair.held_blocks if by_blocks else pair.held_documents for pair in chosen]
    units = [num_blocks(pair) if by_blocks else pair.num_documents for pair in pairs]
    assert abs(sum(held) - sum(units) * share) <= Fraction(1, 2)
    assert all(0 <= number <= unit for number, unit in zip(held, units, strict=True))
    cut = data.draw(st.integers(0, len(pairs)))
    before = with_holdout(pairs[:cut], share, by_blocks=by_blocks)
    assert before + with_holdout(pairs[cut:], share, by_blocks=by_blocks, after=before) == chosen
    number = data.draw(st.integers(0, len(pairs) - 1))
    found = held_numbers(chosen[number], key=KEY, number=number)
    assert len(np.unique(found)) == held[number]
    assert not len(found) or found[-1] < units[number]


@given(st.lists(st.integers(0, 9), max_size=3000), SHARES, st.booleans())
def test_readers_hold_out_the_same_documents(lengths, share, by_blocks):
    (pair,) = with_holdout(pairs_of(len(lengths)), share, by_blocks=by_blocks)
    held = held_tokens(pair, np.array(lengths, np.int32), key=KEY, number=0)
    for num_tokens, reads_held in ((sum(lengths) - held, False), (held, True)):
        section = (len(lengths), num_tokens, pair.held_blocks, pair.held_documents)
        make_source_documents([section], key=KEY, reads_held=reads_held).open(0, np.array(lengths, np.int32))
        if num_tokens:
            wrong = (len(lengths), num_tokens + 1, pair.held_blocks, pair.held_documents)
            documents = make_source_documents([wrong], key=KEY, reads_held=reads_held)
            with pytest.raises(IndexError):
                documents.open(0, np.array(lengths, np.int32))
