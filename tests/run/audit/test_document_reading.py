"""Where a document is read, from stand-ins for all other lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.run.small_runs import lock, pair, segment

from tokenloom import ConfigError
from tokenloom.order.computed_keys import source_key
from tokenloom.run.audit.document_reading import own_pair, reading_of, stand_in
from tokenloom.run.held_out import held_numbers
from tokenloom.run.lock import LockedSource


def pair_of(lengths, **held):
    return replace(pair(int(np.sum(lengths, dtype=np.int64))), num_documents=len(lengths), **held)


def run_of(locked, num_samples=None):
    return lock([LockedSource(name="web", pairs=(locked,))], [segment(0, num_samples, [1])])


def stood_in(locked, sums, own, block=0):
    run = run_of(locked)
    return stand_in(locked, sums, np.array(own, dtype=np.int32), lock=run, source="web", number=0, block=block)


def test_other_blocks_have_any_lengths_of_the_right_sums():
    lengths = stood_in(pair_of([1] * 600), [256, 256, 88], [1] * 88, block=2)
    assert lengths.sum() == 600
    assert np.add.reduceat(lengths, [0, 256, 512]).tolist() == [256, 256, 88]
    assert lengths[512:].tolist() == [1] * 88


def test_blocks_of_more_tokens_than_a_document_may_have():
    most = 2**31 - 1
    locked = pair_of([1] * 300)
    lengths = stood_in(locked, [2 * most + 5, 44], [1] * 44, block=1)
    assert lengths[:4].tolist() == [most, most, 5, 0]
    with pytest.raises(ConfigError, match="block 0 of pair 0 has other lengths than its sum says"):
        stood_in(locked, [256 * most + 1, 44], [1] * 44, block=1)


def test_sums_of_what_is_held_out():
    with pytest.raises(ConfigError, match="block 0 of pair 0 has other lengths than its sum says"):
        stood_in(pair_of([1] * 300), [255, 44], [1] * 256)
    by_block = pair_of([1] * 600, held_blocks=1)
    [held] = held_numbers(by_block, key=source_key(1, "web"), number=0).tolist()
    sums = [0 if block == held else size for block, size in enumerate([256, 256, 88])]
    other = (held + 1) % 2
    assert stood_in(by_block, sums, [1] * 256, block=other).sum() == sum(sums)
    wrong = list(sums)
    wrong[held] = 1
    with pytest.raises(ConfigError, match=f"block {held} of pair 0"):
        stood_in(by_block, wrong, [1] * 256, block=other)
    by_document = pair_of([1] * 300, held_documents=7)
    out = held_numbers(by_document, key=source_key(1, "web"), number=0)
    sums = [256 - int((out < 256).sum()), 44 - int((out >= 256).sum())]
    lengths = stood_in(by_document, sums, [1] * 44, block=1)
    assert lengths[out[out < 256]].tolist() == [0] * int((out < 256).sum())


def test_which_pair_a_document_lies_in():
    source = LockedSource(name="web", pairs=(pair_of([1] * 3), pair_of([]), pair_of([1] * 5)))
    assert [own_pair(source, document) for document in (0, 2, 3, 7)] == [(0, 0), (0, 2), (2, 0), (2, 4)]
    with pytest.raises(ConfigError, match=r"in \[0, 8\), found 8"):
        own_pair(source, 8)


def test_too_much_is_refused_before_it_takes_long():
    lengths = np.full(300, 10, dtype=np.int32)
    lengths[5] = 110
    run = run_of(pair_of(lengths))
    assert reading_of(run, 0, 5, lengths, start=0, stop=299).read
    with pytest.raises(ConfigError, match=r"expected at most 2\*\*22 walks through source 'web'"):
        reading_of(run, 0, 5, lengths, start=0, stop=1 << 55)
    with pytest.raises(ConfigError, match="expected fewer passes through source 'web' to look at, found"):
        reading_of(run, 0, 5, lengths, start=0, stop=309 * 4_000_000)
    with pytest.raises(ConfigError, match="expected segments times positions of a mixing block up to"):
        reading_of(replace(run, mixing_block=1 << 50), 0, 5, lengths, start=0, stop=1)
    with pytest.raises(ConfigError, match="expected documents of 3100 tokens, found 3101"):
        reading_of(run, 0, 5, lengths + np.eye(1, 300, 3, dtype=np.int32)[0], start=0, stop=1)
