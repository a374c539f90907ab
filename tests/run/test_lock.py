"""What a start knows of a run."""

from __future__ import annotations

import dataclasses

import pytest

from tokenloom.run.lock import LockedPair, LockedSegment, LockedSource, RunLock


def test_a_run_needs_no_more_than_its_order_sources_and_segments():
    pair = LockedPair(
        prefix="data/web", num_documents=2, num_tokens=9, dtype="uint16", idx_bytes=82, index_start_crc32=7
    )
    segment = LockedSegment(stage="main", start=0, num_samples=None, sequence_length=4, weights=((0, 1),))
    lock = RunLock(
        order=1,
        seed=1234,
        documents="shuffled",
        windows="concat",
        mixing_block=1024,
        dataset="gpt",
        sources=(LockedSource(name="web", pairs=(pair,)),),
        segments=(segment,),
        settings_sha256="0" * 64,
    )
    assert (lock.version, lock.consumed, lock.denials, lock.samples) == (1, 0, (), {})
    assert (pair.held_tokens, pair.since, segment.mixed_as, lock.sources[0].max_passes) == (0, 0, None, None)


def test_a_lock_is_not_changed():
    source = LockedSource(name="web", pairs=())
    with pytest.raises(dataclasses.FrozenInstanceError):
        source.name = "code"
