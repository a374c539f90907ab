"""How many windows a walk has: of which pairs, at which sequence length."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.run.lock import LockedPair, LockedSource
from tokenloom.run.sample_settings import CONVERSATIONS
from tokenloom.run.take_maps import Int64s


class OrderSettings(Protocol):
    """What decides windows and mixing, beside sources and segments; `RunLock` and `RunSettings` have it."""

    @property
    def seed(self) -> int: ...
    @property
    def windows(self) -> str: ...
    @property
    def mixing_block(self) -> int: ...
    @property
    def dataset(self) -> str: ...
    @property
    def samples(self) -> Mapping[str, Any]: ...


def extra_tokens(settings: OrderSettings) -> int:
    """Returns how many tokens a sample reads beyond its sequence length."""
    return 0 if settings.samples.get("add_extra_token_to_sequence", True) is False else 1


def are_packs(settings: OrderSettings) -> bool:
    """Whether a window is a pack of documents or conversations, and no cut of their stream."""
    return settings.windows == "best_fit" or settings.dataset in CONVERSATIONS


class WalkSizes:
    """Windows of walks over the pairs of sources; a few numbers per source."""

    def __init__(self, sources: Sequence[LockedSource], settings: OrderSettings) -> None:
        """Adds up tokens.

        Raises:
            ConfigError: pairs of a source do not stand in the order in which it got them.
        """
        self._sources = sources
        self._extra = extra_tokens(settings)
        self._packs = are_packs(settings)
        self._sinces = [tuple(pair.since for pair in source.pairs) for source in sources]
        for source, sinces in zip(sources, self._sinces, strict=True):
            if len(sinces) > 1 and list(sinces) != sorted(sinces):
                message = f"expected the pairs of source {source.name!r} by `since`, found {list(sinces)}"
                raise ConfigError(message)
        self._totals = np.array([sum(map(tokens_of, source.pairs)) for source in sources], dtype=np.int64)
        self._num_pairs = np.array([len(sinces) for sinces in self._sinces], dtype=np.int64)
        self._latest = np.array([sinces[-1] if sinces else 0 for sinces in self._sinces], dtype=np.int64)

    def num_pairs(self, sources: Int64s, position: int) -> Int64s:
        """Returns how many pairs sources have at a position."""
        found = self._num_pairs[sources]
        for place in np.flatnonzero(self._latest[sources] > position).tolist():
            found[place] = bisect_right(self._sinces[sources[place]], position)
        return found

    def next_growth(self, sources: Int64s, position: int) -> int | None:
        """Returns the first position, from this one on, at which one of the sources gets pairs; None if none does."""
        later = sources[self._latest[sources] >= position].tolist()
        return min((since for source in later for since in self._sinces[source] if since >= position), default=None)

    def of_sources(self, sources: Int64s, num_pairs: Int64s, sequence_length: int) -> Int64s:
        """Returns the windows of a walk over the first pairs of each source."""
        if self._packs:
            both = zip(sources.tolist(), num_pairs.tolist(), strict=True)
            return np.array([self.windows(source, 0, last, sequence_length) for source, last in both], dtype=np.int64)
        found: Int64s = np.maximum(self._totals[sources] - self._extra, 0) // sequence_length
        for place in np.flatnonzero(self._num_pairs[sources] != num_pairs).tolist():
            found[place] = self.windows(int(sources[place]), 0, int(num_pairs[place]), sequence_length)
        return found

    def windows(self, source: int, first_pair: int, last_pair: int, sequence_length: int) -> int:
        """Returns the windows of a walk over pairs [first_pair, last_pair) of a source.

        Raises:
            ConfigError: the lock does not say how many packs there are.
        """
        pairs = self._sources[source].pairs[first_pair:last_pair]
        if not self._packs:
            return max(0, sum(map(tokens_of, pairs)) - self._extra) // sequence_length
        num_packs = [dict(pair.packs).get(sequence_length) for pair in pairs]
        for pair, number in zip(pairs, num_packs, strict=True):
            if number is None:
                message = (
                    f"expected the number of packs of {sequence_length} tokens of {pair.prefix!r} "
                    f"(source {self._sources[source].name!r}), found {list(pair.packs)}"
                )
                raise ConfigError(message, hint="make the lock anew with `tokenloom run lock`")
        return sum(number for number in num_packs if number is not None)

    def tokens(self, source: int, first_pair: int, last_pair: int) -> int:
        """Returns the tokens of pairs [first_pair, last_pair) of a source that are not held out."""
        return sum(map(tokens_of, self._sources[source].pairs[first_pair:last_pair]))


def tokens_of(pair: LockedPair) -> int:
    """Returns the tokens of a pair that are not held out."""
    return pair.num_tokens - pair.held_tokens
