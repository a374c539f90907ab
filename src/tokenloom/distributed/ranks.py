"""Ranks as values, and the limit of their silence. Nothing here imports torch."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tokenloom.machine import boot_id
from tokenloom.numbers import checked_number

HOST_VARIABLE = "TOKENLOOM_HOST_IDENTITY"
"""Environment variable that replaces the identity of this host, for tests and for hosts that look alike."""

SILENCE_VARIABLE = "TOKENLOOM_RANK_SILENCE_SECONDS"
_DEFAULT_SILENCE_SECONDS = 60.0
_SHORTEST_SILENCE_SECONDS = 1.0
"""On a busy machine a thread that lives may be late by several tenths of a second."""

_silence_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those of the run; `host` is equal for ranks on one host."""

    rank: int
    world_size: int
    host: str


def current_ranks() -> Ranks | None:
    """Returns this process's place in `torch.distributed`, or None without it."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    host = socket.gethostname()
    with suppress(OSError):  # only Linux has it
        host += f"/{boot_id()}"
    host = os.environ.get(HOST_VARIABLE) or host
    return Ranks(rank=dist.get_rank(), world_size=dist.get_world_size(), host=host)


def name_rank(rank: int, host: str) -> str:
    return f"rank {rank} on `{host.split('/')[0]}`"


def name_ranks(ranks: Sequence[int]) -> str:
    """Returns for example "rank 3" or "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    text = ", ".join("-".join(map(str, run)) for run in runs[:16]) + (", …" if len(runs) > 16 else "")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def set_rank_silence_seconds(seconds: float | None) -> None:
    """Sets the time without a heartbeat after which all other ranks of `torch.distributed` fail and name a rank.

    A thread of each rank sends heartbeats however long the rank works, so this is no limit on building. A rank that is
    frozen, swapped out, powered off, holds the interpreter lock in one call, or has not come to its first meeting sends
    none. Call this on all ranks alike, before they first meet: the shortest limit counts.

    Args:
        seconds: the limit, at least 1; None for `TOKENLOOM_RANK_SILENCE_SECONDS`, without which it is 60.

    Raises:
        ConfigError: it is no number, or too small.

    Example:
        >>> set_rank_silence_seconds(300)
        >>> set_rank_silence_seconds(None)
    """
    global _silence_seconds
    if seconds is not None:
        seconds = checked_number("the seconds of silence", seconds, at_least=_SHORTEST_SILENCE_SECONDS)
    _silence_seconds = seconds


def rank_silence_seconds() -> float:
    """Returns the limit of a rank's silence; `ConfigError` if the environment variable is wrong."""
    if _silence_seconds is not None:
        return _silence_seconds
    value: str | float = os.environ.get(SILENCE_VARIABLE, _DEFAULT_SILENCE_SECONDS)
    with suppress(ValueError):
        value = float(value)
    return checked_number(f"`{SILENCE_VARIABLE}`", value, at_least=_SHORTEST_SILENCE_SECONDS)
