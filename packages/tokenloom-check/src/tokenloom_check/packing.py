"""`tokenloom pack-report`: measures the fill, padding and load imbalance of packing plans of one global batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from tokenloom.cli.options import JsonOption, Written, arguments_of, refuse
from tokenloom.cli.output import Answer, facts_lines
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.packing import BasePackingScheduler, DpBalancedScheduler, PackPlan, scheduler_map
from tokenloom.packing.cost import CostModel, Float64s, PolynomialCost, costliest_packs, least_slowest_cost, num_alone
from tokenloom.packing.pack_plan import Int64s, padded_lengths
from tokenloom.rendering.card import HasFacts
from tokenloom.setting_types import Count, Number

PADDED = "padded"  # name of the row without packing
_PERCENTS = (0, 1, 10, 25, 50, 75, 90, 99, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingQuality:
    """The quality of one plan of a global batch."""

    scheduler: str  # name of the scheduler; "padded" for no packing: each sub-sample is padded to a whole pack
    refused: str | None = None  # why the scheduler made no plan, in which case all numbers are zero; else None
    num_microbatches: int = 0  # number of microbatches of each rank
    fill: float = 0.0  # tokens divided by the capacity of all microbatches, in [0, 1]
    num_padding_tokens: int = 0  # number of computed tokens that belong to no sub-sample
    # cost of the slowest rank divided by the mean cost, per microbatch; at least 1
    step_imbalance: tuple[float, ...] = ()
    relative_time: float = 0.0  # total cost of the slowest ranks divided by a perfectly even share; at least 1

    @property
    def worst_imbalance(self) -> float:
        return max(self.step_imbalance, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport(HasFacts):
    """The quality of several plans of one global batch."""

    lengths: Int64s  # int64[num_subsamples], tokens of each sub-sample, in descending order
    num_ranks: int  # data-parallel size times context-parallel size
    max_tokens: int  # capacity of a pack in tokens
    least_microbatches: int  # lower bound for all plans with groups of one size
    least_imbalance: float  # lower bound of the imbalance of the worst microbatch, for the same plans
    least_relative_time: float  # lower bound of the relative time, for the same plans
    rows: tuple[PackingQuality, ...]  # one row without packing, then one per scheduler

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum())

    def as_json(self) -> dict[str, Any]:
        """Returns JSON values; all lengths and imbalances are summarized as percentiles."""
        rows = [asdict(row) for row in self.rows]
        for row in rows:
            row["imbalance_percentiles"] = _percentiles(row.pop("step_imbalance"))
        own = {field.name: getattr(self, field.name) for field in fields(self)[1:-1]}
        counts = {"num_subsamples": len(self.lengths), "num_tokens": self.num_tokens}
        return {**counts, "length_percentiles": _percentiles(self.lengths), **own, "rows": rows}

    def facts(self) -> dict[str, Any]:
        columns = ("scheduler", "microbatches", "fill", "padding tokens", "worst imbalance", "relative time")
        rows: list[tuple[Any, ...]] = []
        for row in self.rows:
            times = [f"{each:.3f}" for each in (row.worst_imbalance, row.relative_time)]
            if row.refused is None:
                rows.append((row.scheduler, row.num_microbatches, f"{row.fill:.2%}", row.num_padding_tokens, *times))
        least = (f"{self.least_imbalance:.3f}", f"{self.least_relative_time:.3f}")
        rows.append(("lower bound", self.least_microbatches, "", "", *least))
        return {
            "problems": [f"{row.scheduler}: {row.refused}" for row in self.rows if row.refused is not None],
            "sub-samples": len(self.lengths),
            "tokens": self.num_tokens,
            "longest": int(self.lengths[0]) if len(self.lengths) else None,
            "ranks": self.num_ranks,
            "capacity of a pack": self.max_tokens,
            "plans": [dict(zip(columns, row, strict=True)) for row in rows],
        }


def _percentiles(values: Int64s | Sequence[float]) -> list[tuple[int, float]]:
    """Returns (percent, value) for percentiles, each a value that occurs; empty for no values."""
    found = np.percentile(values, _PERCENTS, method="lower").tolist() if len(values) else []
    return list(zip(_PERCENTS, found, strict=False))


def pack_report(
    lengths: ArrayLike,
    *,
    max_seqlen_per_dp_cp_rank: int,
    dp_size: int,
    cp_size: int = 1,
    microbatch_group_size_per_vp_stage: int | None = None,
    schedulers: Sequence[str] = ("dp_balanced", "cost_balanced"),
    cost_model: CostModel | None = None,
) -> PackReport:
    """Measures fill, padding and imbalance of a global batch, without packing and packed by each scheduler.

    For context parallelism, lengths are rounded up to multiples of 2 * cp_size; the added tokens count as padding.

    Example:
        >>> report = pack_report([3, 8, 3, 2, 8, 1, 4, 3], max_seqlen_per_dp_cp_rank=8, dp_size=2)
        >>> [(row.scheduler, row.num_microbatches, row.fill) for row in report.rows]
        [('padded', 4, 0.5), ('dp_balanced', 3, 0.6666666666666666), ('cost_balanced', 2, 1.0)]

    Args:
        lengths: integers[num_subsamples], tokens of each sub-sample.
        max_seqlen_per_dp_cp_rank: maximum tokens per rank in one microbatch.
        dp_size: number of data-parallel groups.
        cp_size: number of ranks in a group.
        microbatch_group_size_per_vp_stage: plans have a multiple of this number of microbatches; None for 1.
        schedulers: names in `scheduler_map`.
        cost_model: computes the costs of sub-samples from their lengths; None for `PolynomialCost()`.
    """
    model = PolynomialCost() if cost_model is None else cost_model
    group_size = microbatch_group_size_per_vp_stage
    settings = (max_seqlen_per_dp_cp_rank, cp_size, dp_size, group_size)
    for name in schedulers:
        if name not in scheduler_map:
            raise ConfigError(f"unknown scheduler {name!r}", hint=f"choose from {', '.join(sorted(scheduler_map))}")
    made = [scheduler_map[name](*settings, cost_model=model) for name in schedulers]
    longest = max(made, key=lambda scheduler: scheduler.max_tokens, default=DpBalancedScheduler(*settings))
    tokens = -np.sort(-longest.checked_lengths(lengths))
    padded = padded_lengths(tokens, cp_size=cp_size)
    capacity = max_seqlen_per_dp_cp_rank * cp_size
    given = np.asarray(lengths, dtype=np.int64)
    rows = [_without_packing(tokens, capacity, dp_size, cp_size, model)]
    rows += [_quality(name, each, given, model) for name, each in zip(schedulers, made, strict=True)]
    least = -(-int(padded.sum()) // (capacity * dp_size))
    imbalance = time = 1.0
    if padded[0] <= capacity:
        costs = model.cost(padded, cp_size)
        imbalance = least_step_imbalance(padded, costs, capacity, dp_size)
        time = least_slowest_cost(padded, costs, capacity, dp_size) * dp_size / float(costs.sum())
    return PackReport(
        lengths=tokens,
        num_ranks=dp_size * cp_size,
        max_tokens=capacity,
        least_microbatches=-(-least // (group_size or 1)) * (group_size or 1),
        least_imbalance=imbalance,
        least_relative_time=time,
        rows=tuple(rows),
    )


def rank_costs(plan: PackPlan, lengths: Int64s, model: CostModel) -> Float64s:
    """Returns the cost of each rank's pack, float64[num_microbatches, num_ranks]; `lengths` are those of the plan."""
    costs = np.empty(plan.num_packs, dtype=np.float64)
    sizes = np.ones(plan.num_packs, dtype=np.int64)
    sizes[plan.packs] = plan.cp_sizes
    for size in np.unique(sizes).tolist():
        of_size = sizes == size
        costs[of_size] = np.add.reduceat(model.cost(lengths[plan.ids], size), plan.pack_offsets[:-1])[of_size]
    return costs[plan.packs]


def _quality(name: str, scheduler: BasePackingScheduler, lengths: Int64s, model: CostModel) -> PackingQuality:
    padded = padded_lengths(lengths, cp_size=scheduler.cp_size)
    try:
        plan = scheduler.plan(padded)
    except ConfigError as error:
        return PackingQuality(scheduler=name, refused=error.message)
    costs = rank_costs(plan, padded, model)
    slowest = costs.max(axis=1)
    imbalance = slowest / costs.mean(axis=1)
    room = costs.size * scheduler.max_seqlen_per_dp_cp_rank
    return PackingQuality(
        scheduler=name,
        num_microbatches=plan.num_microbatches,
        fill=int(lengths.sum()) / room,
        num_padding_tokens=int(padded.sum() - lengths.sum()),
        step_imbalance=tuple(imbalance.tolist()),
        relative_time=float(slowest.sum() * scheduler.num_ranks / _work(lengths, scheduler.cp_size, model)),
    )


def _without_packing(lengths: Int64s, capacity: int, dp_size: int, cp_size: int, model: CostModel) -> PackingQuality:
    if lengths[0] > capacity:
        text = f"the longest sub-sample has {int(lengths[0])} tokens, but a pack holds {capacity}"
        return PackingQuality(scheduler=PADDED, refused=text)
    num_microbatches = -(-len(lengths) // dp_size)
    whole = float(model.cost(np.array([capacity], dtype=np.int64), cp_size)[0])
    room = num_microbatches * dp_size * capacity
    return PackingQuality(
        scheduler=PADDED,
        num_microbatches=num_microbatches,
        fill=int(lengths.sum()) / room,
        num_padding_tokens=room - int(lengths.sum()),
        step_imbalance=(1.0,) * num_microbatches,
        relative_time=num_microbatches * whole * dp_size * cp_size / _work(lengths, cp_size, model),
    )


def _work(lengths: Int64s, cp_size: int, model: CostModel) -> float:
    """Returns the cost of all sub-samples, as the sum of the costs of all ranks of a group."""
    return float(model.cost(lengths, cp_size).sum()) * cp_size


def least_step_imbalance(lengths: Int64s, costs: Int64s | Float64s, capacity: int, num_ranks: int) -> float:
    """Returns a lower bound of the worst step's imbalance: cost of the costliest pack over mean cost per pack.

    It is the larger of two bounds: for all steps together (`least_slowest_cost`), and for the t + 1 costliest steps,
    maximised over t. Sub-samples above half a pack need a pack each, so step s (from 0) has a pack that costs at least
    as much as number s * num_ranks of these sub-samples, in descending order of cost. And t steps cost at most as much
    as the t * num_ranks costliest packs.
    """
    most = np.cumsum(np.sort(costliest_packs(lengths, costs, capacity))[::-1])
    first = np.arange(0, max(num_alone(lengths, capacity), 1), num_ranks)
    levels = np.cumsum(costs[first].astype(np.float64))
    held = np.minimum(most[np.minimum(first + num_ranks, len(lengths)) - 1], float(costs.sum()))
    together = least_slowest_cost(lengths, costs, capacity, num_ranks) * num_ranks / float(costs.sum())
    return max(1.0, float((levels * num_ranks / held).max()), together)


_SCHEDULERS = tuple(sorted(scheduler_map))
_PLANS = Written(metavar="NAME", choices=_SCHEDULERS, help=f"schedulers to compare: {', '.join(_SCHEDULERS)}")


@dataclass(frozen=True, kw_only=True)
class Options(JsonOption):
    """Compare plans of one global batch: without packing, packed in input order as in Megatron, and balanced by cost.
    Empty sequences are ignored.

    Attributes:
        prefix: path of a pair without .bin or .idx.
        max_seqlen_per_dp_cp_rank: maximum tokens per rank in a microbatch.
        dp_size: number of data-parallel groups.
        cp_size: ranks in each group.
        microbatch_group_size_per_vp_stage: make the number of microbatches a multiple of N.
        global_batch_size: number of sequences to draw without replacement (default all).
        seed: seed for drawing sequences (default 0).
        json: print one JSON object: num_subsamples, num_tokens, length_percentiles, num_ranks, max_tokens,
            least_microbatches, least_imbalance, least_relative_time, and rows with the columns of the table and
            imbalance_percentiles of microbatches.
    """

    prefix: Annotated[str, Written(is_positional=True)]
    max_seqlen_per_dp_cp_rank: Count
    dp_size: Count
    cp_size: Count = 1
    microbatch_group_size_per_vp_stage: Count | None = None
    global_batch_size: Count | None = None
    seed: Number = 0
    schedulers: Annotated[tuple[str, ...], _PLANS] = ("dp_balanced", "cost_balanced")
    cost_model: Annotated[PolynomialCost, Written(without=("communication",))] = field(default_factory=PolynomialCost)


def run(options: Options) -> Answer:
    pair, size = IndexedDataset(options.prefix), options.global_batch_size
    if pair.index.has_modes:
        refuse(f"`{pair.path_prefix}` has images, whose lengths are not in tokens")
    lengths = pair.sequence_lengths[pair.sequence_lengths != 0]
    if size is not None and size > len(lengths):
        refuse(f"--global-batch-size must be at most {len(lengths)}, the number of non-empty sequences, got {size}")
    if size is not None and size < len(lengths):
        lengths = np.random.default_rng(options.seed).permutation(lengths)[:size]
    report = pack_report(**arguments_of(options, pack_report, lengths=lengths))
    return Answer(report.as_json(), facts_lines("packs", report.facts()))
