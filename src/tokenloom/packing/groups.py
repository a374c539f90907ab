"""Process groups of packing, this process's ranks in them, and collectives that count bytes and name failed ranks."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np

from tokenloom.distributed.meeting import ConnectionLostError
from tokenloom.distributed.ranks import current_ranks, name_ranks
from tokenloom.errors import ConfigError
from tokenloom.optional import require
from tokenloom.packing.pack_plan import Int64s

_BREAK_TAG = 7_410_003  # a tag that no message has

_sent: Counter[str] = Counter()  # bytes that this process sent to other ranks, by purpose


@contextmanager
def measure_traffic() -> Iterator[Counter[str]]:
    """Counts the bytes that this rank sends in collectives of packing inside a `with` block, per purpose.

    Example:
        >>> with measure_traffic() as sent_bytes:  # filled at the end of the block
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
    """The collectives of a process group; if `group` is None, of this process alone.

    All ranks must call the same methods in the same order. A failed collective raises a ConnectionLostError.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.size: int = 1 if group is None else group.size()
        self.rank: int = 0 if group is None else group.rank()
        self._torch: Any = sys.modules.get("torch")
        self._dist: Any = sys.modules.get("torch.distributed")

    @property
    def device(self) -> Any:
        """The device of tensors in collectives: the current CUDA device with NCCL, else the CPU."""
        torch = require("torch", extra="torch")
        if self.group is not None and "cuda:nccl" in self._dist.get_backend_config(self.group).split(","):
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    @property
    def global_ranks(self) -> list[int]:
        """The global rank of each rank of the group."""
        ranks: list[int] = [0] if self.group is None else self._dist.get_process_group_ranks(self.group)
        return ranks

    def all_gather_rows(self, rows: Int64s, purpose: str) -> list[Int64s]:
        """Returns the `rows` of each rank, int64[n, columns], in rank order; n may differ between ranks."""
        if self.size == 1:
            return [rows]
        torch, columns = self._torch, rows.shape[1]
        counts = self._all_gather(torch.tensor([len(rows)]), purpose).tolist()
        mine = torch.zeros((max(counts), columns), dtype=torch.int64)
        mine[: len(rows)] = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        gathered = self._all_gather(mine.flatten(), purpose).view(self.size, max(counts), columns).numpy()
        return [gathered[rank, :count] for rank, count in enumerate(counts)]

    def all_to_all(self, chunks: Sequence[Any], received_bytes: Sequence[int], purpose: str) -> list[Any]:
        """Sends `chunks[r]`, uint8, to each rank r; returns one tensor, uint8[received_bytes[r]], from each rank r."""
        if self.size == 1:
            return list(chunks)
        torch, sizes = self._torch, [len(chunk) for chunk in chunks]
        outgoing = torch.cat([chunk.to(self.device) for chunk in chunks])
        incoming = torch.empty(sum(received_bytes), dtype=torch.uint8, device=self.device)
        _sent[purpose] += sum(sizes) - sizes[self.rank]
        self._try(self._dist.all_to_all_single, incoming, outgoing, list(received_bytes), sizes, group=self.group)
        return list(torch.split(incoming, list(received_bytes)))

    def broadcast(self, tensor: Any, source: int, purpose: str) -> Any:
        """Returns the `tensor` that rank `source` passes; all ranks must pass tensors of the same shape and dtype."""
        if self.size == 1:
            return tensor
        moved = tensor.to(self.device).contiguous()
        if self.rank == source:
            _sent[purpose] += moved.numel() * moved.element_size() * (self.size - 1)
        self._try(self._dist.broadcast, moved, self.global_ranks[source], group=self.group)
        return moved

    def broadcast_integers(self, values: Sequence[int] | None, source: int, purpose: str) -> list[int]:
        """Returns, on every rank, the 64-bit integers `values` that rank `source` passes; other ranks pass None."""
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
        """Closes the connections of the group, so that no rank waits for this rank; a rank may call this alone.

        With gloo, a receive that times out closes a connection; with NCCL, the group is aborted.
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
        _sent[purpose] += mine.numel() * mine.element_size() * (self.size - 1)
        moved = mine.to(self.device)
        gathered = [self._torch.empty_like(moved) for _ in range(self.size)]
        self._try(self._dist.all_gather, gathered, moved, group=self.group)
        return self._torch.cat(gathered).cpu()

    def _try(self, collective: Any, *arguments: Any, group: Any) -> None:
        try:
            collective(*arguments, group=group)
        except RuntimeError as error:
            message = f"one of {name_ranks(self.global_ranks)} died, exited or failed: {str(error).splitlines()[0]}"
            raise ConnectionLostError(message, hint="see the logs of these ranks") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroups:
    """The process groups of `torch.distributed` for packing; None stands for a group of this process only.

    Megatron's `ProcessGroupCollection` has the same attributes and may be passed instead.

    Attributes:
        dp: the data-parallel ranks that have the same context-parallel rank as this process.
        cp: context-parallel ranks, which share packs.
        dp_cp: data × context-parallel ranks, rank = dp rank * cp size + cp rank. May be None if dp or cp has one rank.
        tp: tensor-parallel ranks.
        pp: pipeline stages, in order.
        cp_of_size: {size: this rank's context-parallel group of this size}, for schedulers with several group sizes.
    """

    dp: Any = None
    cp: Any = None
    dp_cp: Any = None
    tp: Any = None
    pp: Any = None
    cp_of_size: Mapping[int, Any] = field(default_factory=dict)

    @classmethod
    def from_mesh(cls, mesh: Any, *, cp_sizes: Sequence[int] = ()) -> ProcessGroups:
        """Creates the groups of this process from a device mesh; all ranks of the mesh must call this together.

        Args:
            mesh: a `torch.distributed.device_mesh.DeviceMesh` whose dimensions are named "dp", "cp", "tp" or "pp", in
                any order, such as `init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "cp"))`; missing dimensions
                have size 1.
            cp_sizes: sizes of the groups in `cp_of_size`: powers of two that divide dp × cp, or dp × cp itself. A group
                has consecutive ranks of dp_cp.

        Raises:
            ConfigError: a dimension has a name that is not listed above, or a size in `cp_sizes` is not allowed.
        """
        names = tuple(mesh.mesh_dim_names or ())
        if not names or set(names) - {"dp", "cp", "tp", "pp"}:
            message = f"dimensions of the mesh must be named 'dp', 'cp', 'tp' or 'pp', got {names}"
            raise ConfigError(message, hint="pass `mesh_dim_names` to `init_device_mesh`")
        own = {name: mesh.get_group(name) for name in names if mesh.size(names.index(name)) > 1}
        last = [names.index(name) for name in ("dp", "cp") if name in names]
        blocks = mesh.mesh.permute(*(i for i in range(len(names)) if i not in last), *last)
        num_ranks = int(blocks[(0,) * (len(names) - len(last))].numel())
        rows = blocks.reshape(-1, num_ranks).tolist()
        dp_cp = own.get("dp") or own.get("cp")
        if "dp" in own and "cp" in own:
            dp_cp = _own_group(rows)
        for size in cp_sizes:
            if size < 1 or num_ranks % size or (size & (size - 1) and size != num_ranks):
                raise ConfigError(f"`cp_sizes`: must be powers of two that divide {num_ranks} ranks, got {size}")
        cp_of_size = {
            size: _own_group([row[first : first + size] for row in rows for first in range(0, num_ranks, size)])
            for size in cp_sizes
            if size > 1
        }
        return cls(**own, dp_cp=dp_cp, cp_of_size=cp_of_size)


def _own_group(all_ranks: Sequence[Sequence[int]]) -> Any:
    """Creates a process group for each list of ranks, in the order of the list; returns the group of this process."""
    dist = require("torch.distributed", extra="torch")
    made = [dist.new_group(ranks, sort_ranks=False) for ranks in all_ranks]
    return next(group for ranks, group in zip(all_ranks, made, strict=True) if dist.get_rank() in ranks)


@dataclass(frozen=True, slots=True)
class GroupRank:
    """The size of a process group that is not available itself, and the rank of this process in that group."""

    size: int
    rank: int


@dataclass(frozen=True, slots=True)
class Place:
    """This process's process groups. `cp_of_size` is None if any size is allowed. `given_device` overrides `device`."""

    dp: Channel
    cp: Channel | GroupRank
    tp: Channel
    pp: Channel
    dp_cp_group: Any
    cp_of_size: Mapping[int, Any] | None
    given_device: Any = None

    def break_off(self) -> None:
        for channel in (self.dp, self.tp, self.pp):
            channel.break_off()

    @property
    def num_ranks(self) -> int:
        return self.dp.size * self.cp.size

    @property
    def rank(self) -> int:
        return self.dp.rank * self.cp.size + self.cp.rank

    def rank_among(self, cp_size: int) -> int:
        """Returns the rank of this process in its context-parallel group of `cp_size` ranks."""
        group = None if self.cp_of_size is None else self.cp_of_size.get(cp_size)
        found: int = self.rank % cp_size if group is None else group.rank()
        return found

    @property
    def device(self) -> Any:
        if self.given_device is not None:
            return self.given_device
        channels = [one for one in (self.dp, self.cp, self.tp, self.pp) if isinstance(one, Channel)]
        return next((one for one in channels if one.group is not None), self.dp).device


def place_of(pg_collection: Any) -> Place:
    """Returns the `Place` of this process, from a `ProcessGroups` or an object with the same attributes."""
    if pg_collection is None:
        pg_collection = ProcessGroups()
        if (ranks := current_ranks()) is not None and ranks.world_size > 1:
            message = f"no process groups given, but `torch.distributed` has {ranks.world_size} ranks"
            raise ConfigError(message, hint="pass `ProcessGroups.from_mesh(mesh)`, or a `ProcessGroups` of your groups")
    try:
        dp, cp, tp, pp = (Channel(getattr(pg_collection, name)) for name in ("dp", "cp", "tp", "pp"))
        dp_cp = pg_collection.dp_cp
    except AttributeError as error:
        raise ConfigError(f"process groups need the attributes dp, cp, dp_cp, tp and pp: {error}") from error
    whole = next((group for group in (dp_cp, dp.group, cp.group) if group is not None), None)
    place = Place(dp, cp, tp, pp, whole, getattr(pg_collection, "cp_of_size", None) or {})
    if dp_cp is not None and (dp_cp.size(), dp_cp.rank()) != (place.num_ranks, place.rank):
        found = f"{dp_cp.rank()} of {dp_cp.size()}"
        message = f"dp_cp rank: expected dp rank * {cp.size} + cp rank = {place.rank} of {place.num_ranks}, got {found}"
        raise ConfigError(message, hint="order the ranks of the group by data-parallel, then context-parallel rank")
    return place


def place_in(dp_group: Any, tp_group: Any, pp_group: Any, dp_cp_group: Any, dev: Any = None) -> Place:
    """Returns the `Place` of this process, from its groups; size of cp = size of dp_cp / size of dp."""
    dp, dp_cp = Channel(dp_group), Channel(dp_group if dp_cp_group is None else dp_cp_group)
    if dp_cp.size % dp.size:
        raise ConfigError(f"dp_cp has {dp_cp.size} ranks, not a multiple of the {dp.size} ranks of dp")
    cp_size = dp_cp.size // dp.size
    cp = GroupRank(cp_size, dp_cp.rank % cp_size)
    return Place(dp, cp, Channel(tp_group), Channel(pp_group), dp_cp.group, None, dev)
