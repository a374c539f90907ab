"""A hash of all that decides the positions before a given one; and the identity of a run, which stays while it changes.

Later parts are left out, and so are facts that decide nothing: where files lie, names of stages, caps, the size of a
stage beyond the last mixing block that was touched, sources and data that were not read yet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.run.lock import LockedPair, LockedSegment, LockedSource, RunLock
from tokenloom.run.progress import are_packs, mixed_size, planned_size


def order_digest(lock: RunLock, position: int) -> str:
    """Returns a SHA-256 in hex of all that decides the positions before one.

    Costs as much as the sources, pairs and segments that begin before it, whatever the position.
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
    """Returns the identity of a run: a SHA-256 in hex of its seed and its first data.

    These are the sources of the first segment, with their first pairs. Stages, settings of samples and later data may
    change under one identity; `order_digest` shows how far they did not.
    """
    hashed = hashlib.sha256()
    _add(hashed, ["run", lock.order, lock.seed])
    for source, _ in lock.segments[0].weights:
        _add(hashed, _source(lock.sources[source], [0], set()))
    return hashed.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOrder:
    """The order of a run in states of loaders; `digest_at` is `order_digest`, `why` an explanation of other digests."""

    run: str
    num_samples: int
    digest_at: Callable[[int], str]
    why: str = ""

    def order_state(self, position: int) -> dict[str, Any]:
        """Returns the state of a run that has consumed the samples before a position."""
        return {"run": self.run, "position": position, "digest": self.digest_at(position)}

    def position_of_state(self, state: Mapping[str, Any]) -> int:
        """Returns the position of a state of this run."""
        position: int = state["position"]
        if state["run"] != self.run:
            message = f"expected a state of this run, {self.run[:16]}…, found one of {state['run'][:16]}…"
            raise ConfigError(message, hint="seed, order or the first data differ; use the lock of that run")
        if position > self.num_samples:
            message = f"position {position} is behind the end of the run, {self.num_samples}"
            raise ConfigError(message, hint="the run was made shorter since; add a stage to go on")
        if (found := self.digest_at(position)) != (expected := state["digest"]):
            digests = f"expected digest {expected[:16]}…, found {found[:16]}…"
            message = f"the order before position {position} is not the one that was read: {digests}{self.why}"
            raise ConfigError(message, hint="the lock was edited, or consumed data were replaced; restore `run.lock`")
        return position


def check_position(lock: RunLock, position: int) -> None:
    """Checks that a position is in a run, or just behind it."""
    if not 0 <= position <= lock.end:
        message = f"position {position} out of range: the run has {lock.end} samples"
        raise ConfigError(message, hint="lengthen its last stage, or add one")


def _add(hashed: Any, facts: object) -> None:
    hashed.update(json.dumps(facts, separators=(",", ":"), sort_keys=True).encode() + b"\n")


def _ids(lock: RunLock) -> list[object]:
    """Returns the ids of the tokenizer that samples depend on."""
    if lock.tokenizer is None:
        return []
    if lock.dataset == "fim":
        return [lock.tokenizer.fingerprint]
    asked = any(lock.samples.get(name) for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"))
    return [lock.tokenizer.pad, lock.tokenizer.eod if asked else None]


def _clipped(lock: RunLock, segment: LockedSegment, position: int) -> tuple[int, ...]:
    """Returns all but weights that decides the positions of a segment before one.

    Besides start and sequence length that is the length of the last mixing block, since earlier ones are whole; and for
    passes that several lengths share their stretches, and the planned size.
    """
    stop = min(position, segment.stop or position) - segment.start
    block = (stop - 1) // lock.mixing_block * lock.mixing_block
    length = min(lock.mixing_block, mixed_size(segment) - block)
    shared = () if segment.stretch_length is None else (segment.stretch_length, planned_size(segment))
    return segment.start, segment.sequence_length, length, *shared


def _source(source: LockedSource, starts: list[int], lengths: set[int]) -> list[object]:
    """Returns the name of a source, and its pairs with the start of the segment that first reads each."""
    pairs: list[object] = []
    for pair in source.pairs:
        start = next((start for start in starts if start >= pair.since), None)
        if start is not None:
            pairs.append([start, *content_of(pair), [packs for packs in pair.packs if packs[0] in lengths]])
    return [source.name, pairs]


def content_of(pair: LockedPair) -> list[object]:
    """Returns the facts of a pair by which its content is compared."""
    counts = [pair.num_documents, pair.num_tokens, pair.dtype, pair.idx_bytes]
    return [*counts, pair.index_start_crc32, pair.tokens_crc32, pair.held_blocks, pair.held_documents, pair.held_tokens]
