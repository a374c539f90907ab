"""How long a rank may be silent before the others go on without it."""

from __future__ import annotations

import math
import os

from tokenloom.errors import ConfigError

SILENCE_VARIABLE = "TOKENLOOM_RANK_SILENCE_SECONDS"

DEFAULT_SILENCE_SECONDS = 60.0

SHORTEST_SILENCE_SECONDS = 1.0
"""On a busy machine a thread that lives may be late by several tenths of a second."""

BEATS_PER_SILENCE = 6
"""So that a rank that misses four signs of life in a row is not taken for dead."""

LONGEST_BEAT_SECONDS = 5.0

_set: float | None = None


def set_rank_silence_seconds(seconds: float | None) -> None:
    """Sets how long a rank of `torch.distributed` may give no sign of life before all others fail and name it.

    Each rank gives signs of life from a thread, however long it works, so this is no limit on building. A rank that is
    frozen, swapped out or powered off gives none, nor does one that holds the interpreter lock in one call, nor one
    that has not come to its first meeting yet. Call this on all ranks alike, before they first meet; without it, the
    environment variable `TOKENLOOM_RANK_SILENCE_SECONDS` counts, and without that, 60 seconds.

    Args:
        seconds: the limit, at least 1; None for the environment variable or the default.

    Raises:
        ConfigError: it is no number, or too small.

    Example:
        >>> set_rank_silence_seconds(300)
        >>> set_rank_silence_seconds(None)
    """
    global _set
    _set = None if seconds is None else _checked(seconds, "the seconds of silence")


def rank_silence_seconds() -> float:
    """Returns how long a rank may be silent.

    Raises:
        ConfigError: the environment variable holds no number, or one that is too small.
    """
    if _set is not None:
        return _set
    text = os.environ.get(SILENCE_VARIABLE)
    if text is None:
        return DEFAULT_SILENCE_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        message = f"expected a number of seconds in `{SILENCE_VARIABLE}`, found {text!r}"
        raise ConfigError(message) from None
    return _checked(seconds, f"`{SILENCE_VARIABLE}`")


def beat_seconds(silence_seconds: float) -> float:
    """Returns how often a rank gives a sign of life."""
    return min(LONGEST_BEAT_SECONDS, silence_seconds / BEATS_PER_SILENCE)


def _checked(seconds: float, name: str) -> float:
    if not SHORTEST_SILENCE_SECONDS <= seconds < math.inf:
        message = f"expected {name} to be finite and at least {SHORTEST_SILENCE_SECONDS}, found {seconds!r}"
        raise ConfigError(message, hint="ranks that live are silent for shorter times too")
    return float(seconds)
