"""Digests of a run: one of its order before a position, and one of its identity, which amendments do not change.

The digest of the order omits all that has no effect on samples before the position: paths, names of stages,
`max_passes`, the size of a stage beyond the last mixing block read, and data that are not read before the position.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.run.lock import LockedPair, LockedSegment, LockedSource, RunLock
from tokenloom.run.source_progress import are_packs, mixed_size, planned_size


def order_digest(lock: RunLock, position: int) -> str:
    """Returns the SHA-256 in hex of all that determines the samples before `position`.

    The cost grows with the number of sources, pairs and segments that begin before `position`, not with `position`.
    """
    check_position(lock, position)
    segments = [segment for segment in lock.segments if segment.start < position]
    hashed = hashlib.sha256()
    fixed = [lock.order, lock.seed, lock.documents, lock.windows, lock.mixing_block, lock.dataset]
    _add(hashed, [[*fixed, dict(lock.samples), _ids(lock)], position])
    for segment in segments:
        _add(hashed, [*_clipped(lock, segment, position), lock.ratio_of(segment)])
    lengths = {segment.sequence_length for segment in segments} if are_packs(lock) else set()
    starts: dict[int, list[int]] = {}
    for segment in segments:
        for source, _ in segment.weights:
            starts.setdefault(source, []).append(segment.start)
    for source, read_from in sorted(starts.items()):
        _add(hashed, _source(lock.sources[source], read_from, lengths))
    names = [source.name for source in lock.sources]
    denials = [(denial.start, denial.documents) for denial in lock.denials if denial.start < position]
    for denial in sorted((start, sorted((names[source], named) for source, named in each)) for start, each in denials):
        _add(hashed, denial)
    return hashed.hexdigest()


def run_identity(lock: RunLock) -> str:
    """Returns the SHA-256 in hex of order version, seed, and the first segment's sources with their initial pairs.

    Other stages, sample settings and later data do not change the identity; `order_digest` covers them.
    """
    hashed = hashlib.sha256()
    _add(hashed, ["run", lock.order, lock.seed])
    for source, _ in lock.segments[0].weights:
        _add(hashed, _source(lock.sources[source], [0], set()))
    return hashed.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOrder:
    """The identity and the order of a run, which loader states store and resumed loaders check.

    `digest_at` returns the digest of the order before a position. `why` is appended to the error if digests differ.
    """

    run: str
    num_samples: int
    digest_at: Callable[[int], str]
    why: str = ""

    def order_state(self, position: int) -> dict[str, Any]:
        return {"run": self.run, "position": position, "digest": self.digest_at(position)}

    def position_of_state(self, state: Mapping[str, Any]) -> int:
        """Returns the position of a loader state; raises an error if the run, or its order so far, differs."""
        position: int = state["position"]
        if state["run"] != self.run:
            message = f"state is of another run: expected run {self.run[:16]}…, found {state['run'][:16]}…"
            raise ConfigError(
                message, hint="open the run of this state; the two runs differ in seed, order or first data"
            )
        if position > self.num_samples:
            message = f"position {position} out of range: the run has {self.num_samples} samples"
            raise ConfigError(message, hint="the run was made shorter: lengthen its last stage, or add a stage")
        if (found := self.digest_at(position)) != (expected := state["digest"]):
            digests = f"expected digest {expected[:16]}…, found {found[:16]}…"
            message = f"the order before position {position} changed after it was read: {digests}{self.why}"
            raise ConfigError(message, hint="restore `run.lock` and the consumed data")
        return position


def check_position(lock: RunLock, position: int) -> None:
    """Raises an error unless `position` is in [0, end of the run]."""
    if not 0 <= position <= lock.end:
        raise ConfigError(f"position {position} out of range: the run has {lock.end} samples", hint="add a stage")


def _add(hashed: Any, facts: object) -> None:
    hashed.update(json.dumps(facts, separators=(",", ":"), sort_keys=True).encode() + b"\n")


def _ids(lock: RunLock) -> list[object]:
    if lock.tokenizer is None:
        return []
    if lock.dataset == "fim":
        return [lock.tokenizer.fingerprint]
    needs_eod = any(lock.samples.get(name) for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"))
    return [lock.tokenizer.pad, lock.tokenizer.eod if needs_eod else None]


def _clipped(lock: RunLock, segment: LockedSegment, position: int) -> tuple[int, ...]:
    """Returns the numbers, besides weights, that determine a segment's samples before `position`."""
    stop = min(position, segment.stop or position) - segment.start
    block = (stop - 1) // lock.mixing_block * lock.mixing_block
    length = min(lock.mixing_block, mixed_size(segment) - block)
    shared = () if segment.stretch_length is None else (segment.stretch_length, planned_size(segment))
    return segment.start, segment.sequence_length, length, *shared


def _source(source: LockedSource, starts: list[int], lengths: set[int]) -> list[object]:
    """Returns the name of a source and its pairs, each with the start of the segment that first reads the pair."""
    pairs: list[object] = []
    for pair in source.pairs:
        start = next((start for start in starts if start >= pair.since), None)
        if start is not None:
            pairs.append([start, *content_of(pair), [packs for packs in pair.packs if packs[0] in lengths]])
    return [source.name, pairs]


def content_of(pair: LockedPair) -> list[object]:
    counts = [pair.num_documents, pair.num_tokens, pair.dtype, pair.idx_bytes]
    return [*counts, pair.index_start_crc32, pair.tokens_crc32, pair.held_blocks, pair.held_documents, pair.held_tokens]
