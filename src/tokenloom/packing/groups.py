"""Where this process stands among the ranks of a run: its process groups as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenloom.distributed.ranks import current_ranks
from tokenloom.errors import ConfigError
from tokenloom.optional import require
from tokenloom.packing.channels import Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroups:
    """The process groups of `torch.distributed` that packing works with; None is this process alone.

    Without arguments, a run of one process. Megatron's `ProcessGroupCollection` has the same attributes, and is taken
    wherever this is.

    Attributes:
        dp: the ranks that differ in data only (not in context).
        cp: the ranks that work on the same packs, each on its part.
        dp_cp: both; rank = dp rank * cp size + cp rank. May be None where dp or cp is alone.
        tp: tensor parallel.
        pp: the stages of the pipeline, in order.
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
        """Returns the groups of this process in a mesh; all ranks of the mesh must call this at the same time.

        Args:
            mesh: a `torch.distributed.device_mesh.DeviceMesh` with dimensions named among "dp", "cp", "tp" and "pp", in
                any order; a dimension that is missing has size 1.
            cp_sizes: the sizes of further context-parallel groups, for schedulers that choose among sizes: blocks of
                consecutive ranks of dp_cp, a power of two that divides them, or all.

        Raises:
            ConfigError: a dimension has another name, or a size does not divide dp × cp.

        Example:
            mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "cp"))
            groups = ProcessGroups.from_mesh(mesh)
        """
        names = tuple(mesh.mesh_dim_names or ())
        if not names or set(names) - {"dp", "cp", "tp", "pp"}:
            message = f"expected dimensions of the mesh named 'dp', 'cp', 'tp' or 'pp', found {names}"
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
                message = f"expected context-parallel groups of 2**k ranks that divide {num_ranks}, found {size}"
                raise ConfigError(message)
        cp_of_size = {
            size: _own_group([row[first : first + size] for row in rows for first in range(0, num_ranks, size)])
            for size in cp_sizes
            if size > 1
        }
        return cls(**own, dp_cp=dp_cp, cp_of_size=cp_of_size)


def _own_group(all_ranks: Sequence[Sequence[int]]) -> Any:
    """Makes a group of each list of ranks, in their order; returns the one that this process is in."""
    dist = require("torch.distributed", extra="torch")
    made = [dist.new_group(ranks, sort_ranks=False) for ranks in all_ranks]
    return next(group for ranks, group in zip(all_ranks, made, strict=True) if dist.get_rank() in ranks)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where this process stands in a group of which there is no process group at hand."""

    size: int
    rank: int


@dataclass(frozen=True, slots=True)
class Place:
    """The channels of this process, and what follows from its ranks.

    `cp_of_size` is None where it is not known which groups there are. `given_device` is where tensors belong, if that
    does not follow from the groups.
    """

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
        """This process's rank among dp × cp, as plans count it."""
        return self.dp.rank * self.cp.size + self.cp.rank

    def rank_among(self, cp_size: int) -> int:
        """Returns this process's rank among those that share a pack, so many."""
        group = None if self.cp_of_size is None else self.cp_of_size.get(cp_size)
        found: int = self.rank % cp_size if group is None else group.rank()
        return found

    @property
    def device(self) -> Any:
        """Where tensors of this process belong."""
        if self.given_device is not None:
            return self.given_device
        channels = [one for one in (self.dp, self.cp, self.tp, self.pp) if isinstance(one, Channel)]
        return next((one for one in channels if one.group is not None), self.dp).device


def place_of(pg_collection: Any) -> Place:
    """Returns the place of this process in groups with the attributes of `ProcessGroups`."""
    if pg_collection is None:
        pg_collection = ProcessGroups()
        if (ranks := current_ranks()) is not None and ranks.world_size > 1:
            message = f"expected the process groups of a run of {ranks.world_size} ranks, found None"
            raise ConfigError(message, hint="pass `ProcessGroups.from_mesh(mesh)`, or groups made otherwise")
    try:
        dp, cp, tp, pp = (Channel(getattr(pg_collection, name)) for name in ("dp", "cp", "tp", "pp"))
        dp_cp = pg_collection.dp_cp
    except AttributeError as error:
        message = f"expected process groups with the attributes dp, cp, dp_cp, tp and pp: {error}"
        raise ConfigError(message) from error
    whole = next((group for group in (dp_cp, dp.group, cp.group) if group is not None), None)
    place = Place(dp, cp, tp, pp, whole, getattr(pg_collection, "cp_of_size", None) or {})
    if dp_cp is not None and (dp_cp.size(), dp_cp.rank()) != (place.num_ranks, place.rank):
        message = (
            f"expected rank dp * {cp.size} + cp = {place.rank} of {place.num_ranks} in the group dp_cp, "
            f"found rank {dp_cp.rank()} of {dp_cp.size()}"
        )
        raise ConfigError(message, hint="make the group with context parallelism inside data parallelism")
    return place


def place_in(dp_group: Any, tp_group: Any, pp_group: Any, dp_cp_group: Any, dev: Any = None) -> Place:
    """Returns the place of this process in groups that are given one by one; None is this process alone.

    Context-parallel ranks are those of dp_cp that are not told apart by dp.
    """
    dp, dp_cp = Channel(dp_group), Channel(dp_group if dp_cp_group is None else dp_cp_group)
    if dp_cp.size % dp.size:
        message = f"expected the group dp_cp to have a multiple of the {dp.size} ranks of dp, found {dp_cp.size}"
        raise ConfigError(message)
    cp_size = dp_cp.size // dp.size
    cp = Standing(cp_size, dp_cp.rank % cp_size)
    return Place(dp, cp, Channel(tp_group), Channel(pp_group), dp_cp.group, None, dev)
