"""Ranks as values.

torch counts as there only where the program has initialised `torch.distributed`; nothing here imports it.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tokenloom.machine import boot_id

HOST_VARIABLE = "TOKENLOOM_HOST_IDENTITY"
"""The environment variable that replaces the identity of this host, for tests and for hosts that look alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those of the run."""

    rank: int
    world_size: int
    host: str
    """The same for two ranks where they run on the same host."""


def current_ranks() -> Ranks | None:
    """Returns this process's place in `torch.distributed`, or None where the program does not use that."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return Ranks(rank=dist.get_rank(), world_size=dist.get_world_size(), host=_host_identity())


def _host_identity() -> str:
    if named := os.environ.get(HOST_VARIABLE):
        return named
    boot = ""
    with suppress(OSError):  # only Linux has it
        boot = boot_id()
    return f"{socket.gethostname()}/{boot}"


def name_rank(rank: int, host: str) -> str:
    """Returns the likes of "rank 3 on `node7`"."""
    return f"rank {rank} on `{host.split('/')[0]}`"


def name_ranks(ranks: Sequence[int]) -> str:
    """Returns the likes of "rank 3" and "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    text = ", ".join("-".join(map(str, run)) for run in runs[:16]) + (", …" if len(runs) > 16 else "")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
