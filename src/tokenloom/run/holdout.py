"""What a run holds out: the documents that training never reads, as samples, once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tokenloom.errors import ConfigError
from tokenloom.numbers import quoted
from tokenloom.run.lock import LockedDenial, LockedSegment, LockedSource, RunLock
from tokenloom.run.sample_settings import CONVERSATIONS
from tokenloom.run.walk_sizes import WalkSizes

STAGE = "holdout"


def holdout_lock(lock: RunLock, *, names: Sequence[str], sequence_length: int) -> RunLock:
    """Returns what is held out as a run of its own: each window once, sources in proportion to what each holds out.

    Args:
        lock: the run.
        names: sources; empty for all that hold out a window or more.
        sequence_length: tokens of a sample.

    Raises:
        ConfigError: there is no such source, or it holds out less than a sample.
    """
    if lock.dataset in CONVERSATIONS:
        message = f"expected documents of which some are held out, found conversations (dataset = {lock.dataset!r})"
        raise ConfigError(message, hint="make a source of its own for those that validate, and give it no weight")
    by_name = {source.name: number for number, source in enumerate(lock.sources)}
    if unknown := [name for name in names if name not in by_name]:
        message = f"expected sources of the run, found {quoted(unknown[0])}"
        raise ConfigError(message, hint=f"it has {', '.join(by_name)}")
    held = dataclasses.replace(
        lock,
        documents="file",
        windows="concat",
        sources=tuple(_held(source) for source in lock.sources),
        denials=tuple(LockedDenial(start=0, documents=denial.documents) for denial in lock.denials),
        segments=(),
        consumed=0,
    )
    sizes = WalkSizes(held.sources, held)
    windows = {
        number: sizes.windows(number, 0, len(source.pairs), sequence_length)
        for number, source in enumerate(held.sources)
        if not names or source.name in names
    }
    chosen = {number: count for number, count in windows.items() if count > 0}
    if not chosen or (names and len(chosen) < len(windows)):
        empty = next((number for number, count in windows.items() if not count), None)
        found = "no source" if empty is None else f"source {held.sources[empty].name!r}"
        tokens = 0 if empty is None else sum(pair.num_tokens for pair in held.sources[empty].pairs)
        message = (
            f"expected sources that hold out a sample of {sequence_length} tokens or more, found {found} with {tokens}"
        )
        raise ConfigError(message, hint='give sources a `holdout` in run.toml, such as "0.1%", before they are locked')
    segment = LockedSegment(
        stage=STAGE,
        start=0,
        num_samples=sum(chosen.values()),
        sequence_length=sequence_length,
        weights=tuple(sorted(chosen.items())),
    )
    return dataclasses.replace(held, segments=(segment,))


def _held(source: LockedSource) -> LockedSource:
    pairs = tuple(
        dataclasses.replace(pair, num_tokens=pair.held_tokens, held_tokens=0, held_blocks=0, held_documents=0, since=0)
        for pair in source.pairs
    )
    return dataclasses.replace(source, pairs=pairs, max_passes=None)
