"""What decides the positions before a given one, as a hash; and the name of a run that stays while it changes.

What comes later is left out, and so is what decides nothing: where files lie, names of stages, caps, the size of a
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
    """Returns the digest of what decides the positions before one: 64 hexadecimal digits.

    Takes time with sources, pairs and segments that begin before the position, not with positions.
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
    """Returns what names a run for ever: 64 hexadecimal digits, from its seed and the data that it began with.

    Those are the sources that position 0 may come from, with the pairs that they had then. Stages, settings of samples
    and later data may change under one name; `order_digest` tells how far they have not.
    """
    hashed = hashlib.sha256()
    _add(hashed, ["run", lock.order, lock.seed])
    for source, _ in lock.segments[0].weights:
        _add(hashed, _source(lock.sources[source], [0], set()))
    return hashed.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOrder:
    """What tells the order of a run from others, for the states of loaders.

    `digest_at` returns the digest of what decides the positions before one, `why` says why it may be another one.
    """

    run: str
    num_samples: int
    digest_at: Callable[[int], str]
    why: str = ""

    def order_state(self, position: int) -> dict[str, Any]:
        """Returns what to keep of a run that has consumed the samples before a position."""
        return {"run": self.run, "position": position, "digest": self.digest_at(position)}

    def position_of_state(self, state: Mapping[str, Any]) -> int:
        """Returns the position that a state is of."""
        position: int = state["position"]
        if state["run"] != self.run:
            message = f"expected a state of this run, {self.run[:16]}…, found one of {state['run'][:16]}…"
            hint = "another seed, another order or other data at its beginning make another run; use its lock"
            raise ConfigError(message, hint=hint)
        if position > self.num_samples:
            message = f"expected one of the {self.num_samples} positions of this run, found position {position}"
            raise ConfigError(message, hint="the run was made shorter since; add a stage to go on")
        if state["digest"] != (found := self.digest_at(position)):
            message = f"expected the order that was read before position {position}, of digest "
            message += f"{state['digest'][:16]}…, found {found[:16]}…{self.why}"
            hint = "the lock was edited, or data were replaced, in the part that is consumed; restore `run.lock`"
            raise ConfigError(message, hint=hint)
        return position


def check_position(lock: RunLock, position: int) -> None:
    """Checks that a position is in a run, or just behind it."""
    if not 0 <= position <= lock.end:
        message = f"expected a position in [0, {lock.end}] of the run, found {position}"
        raise ConfigError(message, hint="the run has no more samples; lengthen its last stage, or add one")


def _add(hashed: Any, facts: object) -> None:
    hashed.update(json.dumps(facts, separators=(",", ":"), sort_keys=True).encode() + b"\n")


def _ids(lock: RunLock) -> list[object]:
    """Returns what samples have of the tokenizer; nothing where they ask it nothing."""
    if lock.tokenizer is None:
        return []
    if lock.dataset == "fim":
        return [lock.tokenizer.fingerprint]
    asked = any(lock.samples.get(name) for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"))
    return [lock.tokenizer.pad, lock.tokenizer.eod if asked else None]


def _clipped(lock: RunLock, segment: LockedSegment, position: int) -> tuple[int, ...]:
    """Returns what decides the positions of a segment before one, but for weights.

    Beside its start and sequence length that is the length of the mixing block of its last position there: the blocks
    before are whole. Of passes that several lengths share also their stretches, and how far it was planned.
    """
    stop = min(position, segment.stop or position) - segment.start
    block = (stop - 1) // lock.mixing_block * lock.mixing_block
    length = min(lock.mixing_block, mixed_size(segment) - block)
    shared = () if segment.stretch_length is None else (segment.stretch_length, planned_size(segment))
    return segment.start, segment.sequence_length, length, *shared


def _source(source: LockedSource, starts: list[int], lengths: set[int]) -> list[object]:
    """Returns what decides the windows of a source: its name, and its pairs with the segment that first reads each."""
    pairs: list[object] = []
    for pair in source.pairs:
        start = next((start for start in starts if start >= pair.since), None)
        if start is not None:
            pairs.append([start, *content_of(pair), [packs for packs in pair.packs if packs[0] in lengths]])
    return [source.name, pairs]


def content_of(pair: LockedPair) -> list[object]:
    """Returns what tells the content of a pair from that of others, as far as it decides samples."""
    counts = [pair.num_documents, pair.num_tokens, pair.dtype, pair.idx_bytes]
    return [*counts, pair.index_start_crc32, pair.tokens_crc32, pair.held_blocks, pair.held_documents, pair.held_tokens]
