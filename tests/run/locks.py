"""Locks in a few lines."""

from __future__ import annotations

from typing import Any

from tokenloom.run.lock import LockedPair, LockedSegment, LockedSource, RunLock


def make_pair(prefix: str, **changes: Any) -> LockedPair:
    """Returns a pair of ten documents of ten tokens each."""
    facts: dict[str, Any] = {"num_documents": 10, "num_tokens": 100, "dtype": "uint16", "idx_bytes": 242}
    return LockedPair(**{"prefix": prefix, "index_start_crc32": 0xDEADBEEF, **facts, **changes})


def make_lock(*sources: LockedSource, **changes: Any) -> RunLock:
    """Returns a lock of sources of equal weight, with windows of four tokens, endless."""
    weights = tuple((number, 1) for number in range(len(sources)))
    segment = LockedSegment(stage="main", start=0, num_samples=None, sequence_length=4, weights=weights)
    members: dict[str, Any] = {"order": 1, "seed": 1234, "documents": "shuffled", "windows": "concat"}
    members |= {"mixing_block": 1024, "dataset": "gpt", "settings_sha256": "0" * 64}
    members |= {"sources": sources, "segments": (segment,) if sources else ()}
    return RunLock(**(members | changes))


def source_of(name: str, *prefixes: str, max_passes: int | None = None, **changes: Any) -> LockedSource:
    """Returns a source of such pairs."""
    pairs = tuple(make_pair(prefix, **changes) for prefix in prefixes)
    return LockedSource(name=name, pairs=pairs, max_passes=max_passes)
