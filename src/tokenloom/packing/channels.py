"""Collectives of one process group, on its device; they count bytes and name the ranks that may have failed.

Who made the group has imported torch. A group of None is this process alone: nothing is sent.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np

from tokenloom.distributed.meeting import ConnectionLostError
from tokenloom.distributed.ranks import name_ranks
from tokenloom.optional import require
from tokenloom.packing.plan import Int64s

_BREAK_TAG = 7_410_003  # nobody sends it

_sent: Counter[str] = Counter()
"""Bytes that this process sent to other ranks, by purpose."""


@contextmanager
def measure_traffic() -> Iterator[Counter[str]]:
    """Counts the bytes that this rank sends to others in the collectives of packing, by purpose.

    The counts are there when the `with` statement ends.

    Example:
        >>> with measure_traffic() as sent_bytes:
        ...     pass  # wrap_data_iterator(...)
        >>> sent_bytes.total()
        0
    """
    before, sent = _sent.copy(), Counter[str]()
    try:
        yield sent
    finally:
        sent.update(_sent - before)


class Channel:
    """A process group and what moves through it; `None` is a group of this process alone.

    Every method is collective: all ranks of the group call it, in the same order.

    Raises:
        ConnectionLostError: a collective failed, which connections to dead ranks do.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.size: int = 1 if group is None else group.size()
        self.rank: int = 0 if group is None else group.rank()
        self._torch: Any = sys.modules.get("torch")
        self._dist: Any = sys.modules.get("torch.distributed")

    @property
    def device(self) -> Any:
        """The device whose tensors the group carries: the current CUDA device with NCCL, else the CPU."""
        torch = require("torch", extra="torch")
        if self.group is not None and "cuda:nccl" in self._dist.get_backend_config(self.group).split(","):
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    @property
    def global_ranks(self) -> list[int]:
        """The ranks of the whole run that are in the group, by their rank in the group."""
        ranks: list[int] = [0] if self.group is None else self._dist.get_process_group_ranks(self.group)
        return ranks

    def all_gather_rows(self, rows: Int64s, purpose: str) -> list[Int64s]:
        """Returns the rows int64[n, columns] of each rank, by rank; n differs between ranks, the columns do not."""
        if self.size == 1:
            return [rows]
        torch, columns = self._torch, rows.shape[1]
        counts = self._all_gather(torch.tensor([len(rows)]), purpose).tolist()
        mine = torch.zeros((max(counts), columns), dtype=torch.int64)
        mine[: len(rows)] = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        gathered = self._all_gather(mine.flatten(), purpose).view(self.size, max(counts), columns).numpy()
        return [gathered[rank, :count] for rank, count in enumerate(counts)]

    def all_to_all(self, chunks: Sequence[Any], received_bytes: Sequence[int], purpose: str) -> list[Any]:
        """Sends `chunks[r]` to rank r; returns what each rank sent to this one, by rank.

        Args:
            chunks: uint8 tensors by rank, of any lengths.
            received_bytes: how much comes from each rank.
            purpose: what the bytes are counted under.
        """
        if self.size == 1:
            return list(chunks)
        torch, sizes = self._torch, [len(chunk) for chunk in chunks]
        outgoing = torch.cat([chunk.to(self.device) for chunk in chunks])
        incoming = torch.empty(sum(received_bytes), dtype=torch.uint8, device=self.device)
        _sent[purpose] += sum(sizes) - sizes[self.rank]
        self._try(self._dist.all_to_all_single, incoming, outgoing, list(received_bytes), sizes, group=self.group)
        return list(torch.split(incoming, list(received_bytes)))

    def broadcast(self, tensor: Any, source: int, purpose: str) -> Any:
        """Returns `tensor` of the rank `source` of the group; it must have the same shape and dtype on all others."""
        if self.size == 1:
            return tensor
        moved = tensor.to(self.device).contiguous()
        if self.rank == source:
            _sent[purpose] += moved.numel() * moved.element_size() * (self.size - 1)
        self._try(self._dist.broadcast, moved, self.global_ranks[source], group=self.group)
        return moved

    def broadcast_integers(self, values: Sequence[int] | None, source: int, purpose: str) -> list[int]:
        """Returns the integers of rank `source`, of whatever number; others give None. They must fit 64 bits."""
        if self.size == 1:
            assert values is not None
            return list(values)
        torch = self._torch
        mine = torch.tensor(values if values is not None else [], dtype=torch.int64)
        count = int(self.broadcast(torch.tensor([len(mine)]), source, purpose))
        body = mine if self.rank == source else torch.zeros(count, dtype=torch.int64)
        received: list[int] = self.broadcast(body, source, purpose).tolist() if count else []
        return received

    def break_off(self) -> None:
        """Closes the connections of the group, so that no rank waits for this one in a collective. Not collective.

        A group over gloo closes a connection on which a receive times out; NCCL is told to abort.
        """
        if self.size == 1:
            return
        if self.device.type == "cuda":
            self.group.abort()
            return
        nothing = self._torch.zeros(1, dtype=self._torch.uint8, device="cpu")
        for rank in self.global_ranks:
            if rank != self._dist.get_rank():
                with suppress(RuntimeError):
                    work = self._dist.irecv(nothing, rank, group=self.group, tag=_BREAK_TAG)
                    work.wait(timedelta(milliseconds=1))

    def _all_gather(self, mine: Any, purpose: str) -> Any:
        """Returns the concatenation of equally long int64 vectors, on the CPU."""
        _sent[purpose] += mine.numel() * mine.element_size() * (self.size - 1)
        moved = mine.to(self.device)
        gathered = [self._torch.empty_like(moved) for _ in range(self.size)]
        self._try(self._dist.all_gather, gathered, moved, group=self.group)
        return self._torch.cat(gathered).cpu()

    def _try(self, collective: Any, *arguments: Any, group: Any) -> None:
        try:
            collective(*arguments, group=group)
        except RuntimeError as error:
            message = f"one of {name_ranks(self.global_ranks)} died, ended or failed: {str(error).splitlines()[0]}"
            raise ConnectionLostError(message, hint="look at the logs of these ranks") from error
