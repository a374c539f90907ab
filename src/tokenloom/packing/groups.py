"""The process groups of a run: this process's place in them, and collectives that count bytes and name ranks."""

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
from tokenloom.packing.plan import Int64s

_BREAK_TAG = 7_410_003  # nobody sends it

_sent: Counter[str] = Counter()  # bytes that this process sent to other ranks, by purpose


@contextmanager
def measure_traffic() -> Iterator[Counter[str]]:
    """Counts the bytes that this rank sends in the collectives of packing, by purpose.

    Example:
        >>> with measure_traffic() as sent_bytes:  # filled when the `with` statement ends
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
    """A process group and its collectives; `None` is a group of this process alone.

    All ranks of the group must call the same methods in the same order.

    Raises:
        ConnectionLostError: a collective failed, as connections to dead ranks do.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.size: int = 1 if group is None else group.size()
        self.rank: int = 0 if group is None else group.rank()
        self._torch: Any = sys.modules.get("torch")
        self._dist: Any = sys.modules.get("torch.distributed")

    @property
    def device(self) -> Any:
        """The device of the group's tensors: the current CUDA device with NCCL, else the CPU."""
        torch = require("torch", extra="torch")
        if self.group is not None and "cuda:nccl" in self._dist.get_backend_config(self.group).split(","):
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    @property
    def global_ranks(self) -> list[int]:
        """The group's ranks as ranks of the run, by rank in the group."""
        ranks: list[int] = [0] if self.group is None else self._dist.get_process_group_ranks(self.group)
        return ranks

    def all_gather_rows(self, rows: Int64s, purpose: str) -> list[Int64s]:
        """Returns the rows int64[n, columns] of each rank; n may differ between ranks."""
        if self.size == 1:
            return [rows]
        torch, columns = self._torch, rows.shape[1]
        counts = self._all_gather(torch.tensor([len(rows)]), purpose).tolist()
        mine = torch.zeros((max(counts), columns), dtype=torch.int64)
        mine[: len(rows)] = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        gathered = self._all_gather(mine.flatten(), purpose).view(self.size, max(counts), columns).numpy()
        return [gathered[rank, :count] for rank, count in enumerate(counts)]

    def all_to_all(self, chunks: Sequence[Any], received_bytes: Sequence[int], purpose: str) -> list[Any]:
        """Sends the uint8 tensor `chunks[r]` to rank r; returns those received, by rank."""
        if self.size == 1:
            return list(chunks)
        torch, sizes = self._torch, [len(chunk) for chunk in chunks]
        outgoing = torch.cat([chunk.to(self.device) for chunk in chunks])
        incoming = torch.empty(sum(received_bytes), dtype=torch.uint8, device=self.device)
        _sent[purpose] += sum(sizes) - sizes[self.rank]
        self._try(self._dist.all_to_all_single, incoming, outgoing, list(received_bytes), sizes, group=self.group)
        return list(torch.split(incoming, list(received_bytes)))

    def broadcast(self, tensor: Any, source: int, purpose: str) -> Any:
        """Returns `tensor` of rank `source` of the group; shape and dtype must be the same on all ranks."""
        if self.size == 1:
            return tensor
        moved = tensor.to(self.device).contiguous()
        if self.rank == source:
            _sent[purpose] += moved.numel() * moved.element_size() * (self.size - 1)
        self._try(self._dist.broadcast, moved, self.global_ranks[source], group=self.group)
        return moved

    def broadcast_integers(self, values: Sequence[int] | None, source: int, purpose: str) -> list[int]:
        """Returns the integers, of 64 bits, of rank `source`; others give None."""
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
        """Closes the connections of the group, so that no rank waits for this one. Not collective.

        gloo closes a connection on which a receive times out; NCCL aborts.
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
            message = f"one of {name_ranks(self.global_ranks)} died, ended or failed: {str(error).splitlines()[0]}"
            raise ConnectionLostError(message, hint="see the logs of these ranks") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroups:
    """The process groups of `torch.distributed` for packing; None is this process alone, the default.

    Megatron's `ProcessGroupCollection` has the same attributes, and may be passed instead.

    Attributes:
        dp: ranks that differ in data only (not in context).
        cp: ranks that share packs.
        dp_cp: both; rank = dp rank * cp size + cp rank. May be None if dp or cp has one rank.
        tp: tensor parallel.
        pp: stages of the pipeline, in order.
        cp_of_size: this rank's group of each size, for plans with context-parallel groups of several sizes.
    """

    dp: Any = None
    cp: Any = None
    dp_cp: Any = None
    tp: Any = None
    pp: Any = None
    cp_of_size: Mapping[int, Any] = field(default_factory=dict)

    @classmethod
    def from_mesh(cls, mesh: Any, *, cp_sizes: Sequence[int] = ()) -> ProcessGroups:
        """Returns the groups of this process in a mesh; all ranks of the mesh must call this together.

        Args:
            mesh: a `torch.distributed.device_mesh.DeviceMesh` with dimensions named among "dp", "cp", "tp" and "pp", in
                any order, such as `init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "cp"))`; missing ones have
                size 1.
            cp_sizes: sizes of further context-parallel groups, for schedulers with several: blocks of consecutive ranks
                of dp_cp, a power of two that divides them, or all.

        Raises:
            ConfigError: a dimension has another name, or a size does not divide dp × cp.
        """
        names = tuple(mesh.mesh_dim_names or ())
        if not names or set(names) - {"dp", "cp", "tp", "pp"}:
            message = f"dimensions of the mesh must be named 'dp', 'cp', 'tp' or 'pp', got {names}"
            raise ConfigError(message, hint="name them with `mesh_dim_names` of `init_device_mesh`")
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
                message = f"a context-parallel group of {size} ranks is no power of two that divides {num_ranks}"
                raise ConfigError(message)
        cp_of_size = {
            size: _own_group([row[first : first + size] for row in rows for first in range(0, num_ranks, size)])
            for size in cp_sizes
            if size > 1
        }
        return cls(**own, dp_cp=dp_cp, cp_of_size=cp_of_size)


def _own_group(all_ranks: Sequence[Sequence[int]]) -> Any:
    """Makes a group of each list of ranks, in their order; returns that of this process."""
    dist = require("torch.distributed", extra="torch")
    made = [dist.new_group(ranks, sort_ranks=False) for ranks in all_ranks]
    return next(group for ranks, group in zip(all_ranks, made, strict=True) if dist.get_rank() in ranks)


@dataclass(frozen=True, slots=True)
class Standing:
    """The size of a group, and this process's rank in it, without a process group."""

    size: int
    rank: int


@dataclass(frozen=True, slots=True)
class Place:
    """The channels of this process. `cp_of_size` is None if unknown; `given_device` overrides that of the groups."""

    dp: Channel
    cp: Channel | Standing
    tp: Channel
    pp: Channel
    dp_cp_group: Any
    cp_of_size: Mapping[int, Any] | None
    given_device: Any = None

    def break_off(self) -> None:
        """Closes the connections of all groups whose collectives packing uses."""
        for channel in (self.dp, self.tp, self.pp):
            channel.break_off()

    @property
    def num_ranks(self) -> int:
        """dp × cp."""
        return self.dp.size * self.cp.size

    @property
    def rank(self) -> int:
        """This process's rank among dp × cp."""
        return self.dp.rank * self.cp.size + self.cp.rank

    def rank_among(self, cp_size: int) -> int:
        """Returns this process's rank among the `cp_size` ranks that share a pack."""
        group = None if self.cp_of_size is None else self.cp_of_size.get(cp_size)
        found: int = self.rank % cp_size if group is None else group.rank()
        return found

    @property
    def device(self) -> Any:
        """The device of this process's tensors."""
        if self.given_device is not None:
            return self.given_device
        channels = [one for one in (self.dp, self.cp, self.tp, self.pp) if isinstance(one, Channel)]
        return next((one for one in channels if one.group is not None), self.dp).device


def place_of(pg_collection: Any) -> Place:
    """Returns the place of this process in groups with the attributes of `ProcessGroups`."""
    if pg_collection is None:
        pg_collection = ProcessGroups()
        if (ranks := current_ranks()) is not None and ranks.world_size > 1:
            message = f"no process groups given, in a run of {ranks.world_size} ranks"
            raise ConfigError(message, hint="pass `ProcessGroups.from_mesh(mesh)`, or groups made otherwise")
    try:
        dp, cp, tp, pp = (Channel(getattr(pg_collection, name)) for name in ("dp", "cp", "tp", "pp"))
        dp_cp = pg_collection.dp_cp
    except AttributeError as error:
        raise ConfigError(f"process groups need the attributes dp, cp, dp_cp, tp and pp: {error}") from error
    whole = next((group for group in (dp_cp, dp.group, cp.group) if group is not None), None)
    place = Place(dp, cp, tp, pp, whole, getattr(pg_collection, "cp_of_size", None) or {})
    if dp_cp is not None and (dp_cp.size(), dp_cp.rank()) != (place.num_ranks, place.rank):
        found = f"{dp_cp.rank()} of {dp_cp.size()}"
        message = f"rank in dp_cp: expected dp * {cp.size} + cp = {place.rank} of {place.num_ranks}, found {found}"
        raise ConfigError(message, hint="make the group with context parallelism inside data parallelism")
    return place


def place_in(dp_group: Any, tp_group: Any, pp_group: Any, dp_cp_group: Any, dev: Any = None) -> Place:
    """Returns the place of this process in single groups; None is this process alone. dp_cp and dp give cp."""
    dp, dp_cp = Channel(dp_group), Channel(dp_group if dp_cp_group is None else dp_cp_group)
    if dp_cp.size % dp.size:
        raise ConfigError(f"{dp_cp.size} ranks of dp_cp are no multiple of the {dp.size} ranks of dp")
    cp_size = dp_cp.size // dp.size
    cp = Standing(cp_size, dp_cp.rank % cp_size)
    return Place(dp, cp, Channel(tp_group), Channel(pp_group), dp_cp.group, None, dev)
