"""The rank and host of this process, and the timeout after which a silent rank counts as lost. Never imports torch."""

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
"""Environment variable that overrides the host name, for tests and for hosts with equal names."""

SILENCE_VARIABLE = "TOKENLOOM_RANK_SILENCE_SECONDS"
_DEFAULT_SILENCE_SECONDS = 60.0
_SHORTEST_SILENCE_SECONDS = 1.0
"""On a busy machine, the heartbeat of a healthy rank may be late by several tenths of a second."""

_silence_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The rank of this process; `host` identifies the machine: all ranks on one machine have the same `host`."""

    rank: int
    world_size: int
    host: str


def current_ranks() -> Ranks | None:
    """Returns the rank of this process in `torch.distributed`; None if `torch.distributed` is not initialized."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    host = socket.gethostname()
    with suppress(OSError):  # not Linux
        host += f"/{boot_id()}"
    host = os.environ.get(HOST_VARIABLE) or host
    return Ranks(rank=dist.get_rank(), world_size=dist.get_world_size(), host=host)


def name_rank(rank: int, host: str) -> str:
    return f"rank {rank} on `{host.split('/')[0]}`"


def name_ranks(ranks: Sequence[int]) -> str:
    """Formats ranks as text, such as `rank 3` or `ranks 0-2, 5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    text = ", ".join("-".join(map(str, run)) for run in runs[:16]) + (", …" if len(runs) > 16 else "")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def set_rank_silence_seconds(seconds: float | None) -> None:
    """Sets the heartbeat timeout: the time without a heartbeat after which a rank counts as lost.

    If a rank is lost, all other ranks of `torch.distributed` raise an error that names the lost rank. A thread of each
    rank sends heartbeats while the rank works, so a long build does not time out. A rank sends no heartbeats before its
    first collective call of tokenloom, or while the rank is frozen, swapped out, powered off or stuck in a call that
    holds the GIL. Set the timeout before the first collective call, to the same value on all ranks.

    Args:
        seconds: the timeout, at least 1; None for the environment variable `TOKENLOOM_RANK_SILENCE_SECONDS`, or 60.

    Raises:
        ConfigError: `seconds` is not a number, or is below 1.

    Example:
        >>> set_rank_silence_seconds(300)
        >>> set_rank_silence_seconds(None)
    """
    global _silence_seconds
    if seconds is not None:
        seconds = checked_number("seconds", seconds, at_least=_SHORTEST_SILENCE_SECONDS)
    _silence_seconds = seconds


def rank_silence_seconds() -> float:
    """Returns the heartbeat timeout; raises `ConfigError` if the environment variable is invalid."""
    if _silence_seconds is not None:
        return _silence_seconds
    value: str | float = os.environ.get(SILENCE_VARIABLE, _DEFAULT_SILENCE_SECONDS)
    with suppress(ValueError):
        value = float(value)
    return checked_number(f"`{SILENCE_VARIABLE}`", value, at_least=_SHORTEST_SILENCE_SECONDS)
