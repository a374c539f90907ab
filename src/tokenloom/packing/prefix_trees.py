"""Sequences that begin alike, dealt to ranks so that shared tokens are computed once and ranks work alike.

A run of sequences in depth-first order costs the first one whole and of each other what it does not share, whatever
its tree looks like. So pieces of trees are runs, and cutting one in two repeats what the second begins with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from tokenloom._native import cut_evenly, cut_forest
from tokenloom.distributed.building import do_together
from tokenloom.distributed.meeting import Attempt
from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.optional import require
from tokenloom.packing.balanced import (
    GOOD_ENOUGH,
    CostBalancedScheduler,
    Task,
    by_turns,
    checked_costs,
    in_units,
    unit_exponent,
)
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.cost import CostModel
from tokenloom.packing.groups import Place, place_in
from tokenloom.packing.pipeline import (
    GlobalBatch,
    Wrapped,
    describe,
    exchange_samples,
    fetch,
    gather_lengths,
    sums_of,
)
from tokenloom.packing.plan import Int64s, PackPlan, stable_order, uniform_plan
from tokenloom.packing.prefixes import BLOCK_SIZE, PrefixForest, PrefixPack, tokens_at_positions
from tokenloom.packing.subsamples import DTYPES, SubSample

_NO_LIMIT: int = np.iinfo(np.int64).max

_TRIED_RUNS = 3
"""Numbers of microbatches, from the fewest on, that are tried with one run of sequences per pack."""


def pack_prefixes(
    sequences: Sequence[ArrayLike],
    *,
    max_tokens: int,
    labels: Sequence[ArrayLike] | None = None,
    loss_weights: Sequence[ArrayLike] | ArrayLike | None = None,
    position_ids: Sequence[ArrayLike] | None = None,
    columns: Mapping[str, Sequence[ArrayLike]] | None = None,
    dp_rank: int = 0,
    dp_size: int = 1,
    cp_size: int = 1,
    microbatch_multiple: int = 1,
    pad_to: int | Literal["max"] = 1,
    block_size: int = BLOCK_SIZE,
    cost_model: CostModel | None = None,
) -> list[PrefixPack]:
    """Returns the packs of a data-parallel rank, one for each microbatch, from the sequences of a global batch.

    Every rank that gives the same sequences plans the same packs, without communication. All ranks have equally many.
    Rollouts of a prompt, turns of a conversation, chosen and rejected answers need not be next to each other.

    Example:
        >>> packs = pack_prefixes([[1, 2, 3, 4], [9, 8], [1, 2, 3, 5], [9, 7, 6]], max_tokens=6)
        >>> [(pack.sequences.tolist(), pack.num_tokens) for pack in packs]
        [([0, 2], 5), ([1, 3], 4)]

    Args:
        sequences: token ids, integers[length] each: prompt and response.
        max_tokens: tokens that a rank can hold in one microbatch.
        labels, loss_weights, position_ids, columns: of each sequence, as `PrefixPack.of` takes them.
        dp_rank: whose packs.
        dp_size: data-parallel ranks.
        cp_size: context-parallel ranks that share a pack; `pack.part` has the tokens of one.
        microbatch_multiple: what the number of microbatches must be a multiple of.
        pad_to: what the tokens that a rank holds are filled up to a multiple of, which divides `max_tokens`; "max" is
            `max_tokens`, one shape.
        block_size: tokens of the blocks that context-parallel ranks are dealt; divides `max_tokens`.
        cost_model: what sequences cost; attention work, by default.

    Raises:
        ConfigError: a sequence is longer than a pack, there are too few, or a row has another length than its tokens.
        InputError: a weight is not finite.
    """
    checked_integer("dp_rank", dp_rank, at_least=0)
    scheduler = PrefixTreeScheduler(max_tokens, cp_size, dp_size, microbatch_multiple, cost_model=cost_model)
    if dp_rank >= scheduler.dp_size:
        message = f"expected a `dp_rank` below {dp_size}, found {dp_rank}"
        raise ConfigError(message)
    plan = scheduler.plan_forest(PrefixForest.of(sequences, position_ids))
    multiple = _row_multiple(scheduler, pad_to, block_size)

    def pack(ids: Int64s) -> PrefixPack:
        def chosen(rows: Any) -> Any:
            return None if rows is None else [rows[number] for number in ids.tolist()]

        made = PrefixPack.of(
            chosen(sequences),
            labels=chosen(labels),
            loss_weights=chosen(loss_weights),
            position_ids=chosen(position_ids),
            columns={name: chosen(rows) for name, rows in (columns or {}).items()},
            multiple=multiple,
        )
        return replace(made, sequences=made.sequences.new_tensor(ids))

    for name, rows in {"labels": labels, "loss_weights": loss_weights, **(columns or {})}.items():
        if rows is not None and len(rows) != len(sequences):  # type: ignore[arg-type]  # numbers and rows alike
            message = f"expected `{name}` of {len(sequences)} sequences, found {len(rows)}"  # type: ignore[arg-type]
            raise ConfigError(message)
    return [pack(plan.ids_of(microbatch, dp_rank * cp_size)) for microbatch in range(plan.num_microbatches)]


class PrefixTreeScheduler(CostBalancedScheduler):
    """Plans packs of sequences in which shared beginnings are computed once, of equal cost on all ranks.

    Trees that fit are kept whole. Where a rank's capacity or an even share demands it, they are cut so that the fewest
    tokens are repeated. A token costs what it adds to a sequence that ends there, and what is shared counts once.
    Sequences that share nothing are packed as `cost_balanced` packs them.

    As "prefix_trees" of `wrap_data_iterator`, it yields a `PrefixPack` for each microbatch. Every rank that needs packs
    has an iterator, those of a tensor-parallel group and of all stages the same; with `wrap_dataset` each rank reads
    the whole global batch, and all get their packs. The settings are those of
    `BasePackingScheduler`, but for the most sequences of a THD pack, which trees are not.
    """

    def plan_forest(self, forest: PrefixForest) -> PackPlan:
        """Returns the plan of sequences; those of a pack are in depth-first order. The same on every rank.

        Args:
            forest: the sequences of the global batch.

        Raises:
            ConfigError: a sequence is longer than a pack, they are too few for the ranks, or a pack of THD has a limit.
        """
        if self.max_num_seqs is not None:
            message = f"`thd_max_packed_sequences` is {self.max_num_seqs}, but packs of trees have no sequences of THD"
            raise ConfigError(message, hint="leave it out, or plan with `cost_balanced`")
        lengths, shared = forest.lengths, forest.shared
        by_number = np.empty_like(lengths)
        by_number[forest.order] = lengths
        self.checked_lengths(by_number)
        sizes = np.unique(np.concatenate([lengths, shared[shared > 0]]))
        costs = checked_costs(self.cost_model, sizes[::-1], self.cp_size)
        units = np.append(in_units(costs, unit_exponent(float(costs[0]), len(lengths)))[::-1], 0)
        alone, prefix = units[np.searchsorted(sizes, lengths)], units[np.searchsorted(sizes, shared)]
        prefix[shared == 0] = 0
        forest_costs = _ForestCosts(lengths=lengths, shared=shared, alone=alone, prefix=prefix)
        best, least = None, GOOD_ENOUGH * forest_costs.total / self.dp_size
        for pack_of, num_microbatches in self._ways(forest_costs):
            slowest = forest_costs.slowest(pack_of, num_microbatches)
            if best is None or slowest < best[0]:
                best = slowest, pack_of, num_microbatches
            if slowest <= least:
                break
        if best is None:
            return self.plan(by_number)  # says why there is none
        plan = uniform_plan(best[1], num_microbatches=best[2], cp_size=self.cp_size, dp_size=self.dp_size)
        return replace(plan, ids=forest.order[plan.ids])

    def _ways(self, costs: _ForestCosts) -> Iterator[tuple[Int64s, int]]:
        """Yields ways to pack: the pack of each sequence, and the microbatches. First those that repeat little.

        Whole trees, or the largest pieces of them that fit; then one run per pack; then ever smaller pieces.
        """
        columns = (costs.lengths, costs.shared, costs.alone, costs.prefix)
        multiple = self.dp_size * self.microbatch_multiple
        fewest = max(-(-int((costs.lengths - costs.shared).sum()) // (self.max_tokens * multiple)), 1)
        limit, begins = _NO_LIMIT, np.empty(0, dtype=np.int64)
        while len(begins) < len(costs.lengths):
            begins = cut_forest(*columns, capacity=self.max_tokens, limit=limit)
            counts = np.diff(begins, append=len(costs.lengths))
            if (found := self._packed(costs, begins)) is not None:
                yield np.repeat(found[0], counts), found[1]
            if limit == _NO_LIMIT:
                for times in range(fewest, fewest + _TRIED_RUNS):
                    runs = cut_evenly(*columns, capacity=self.max_tokens, most_runs=times * multiple)
                    if len(runs) == times * multiple:
                        run_of = np.repeat(np.arange(len(runs)), np.diff(runs, append=len(costs.lengths)))
                        order = np.argsort(-costs.of_packs(run_of, len(runs)), kind="stable")
                        place = np.empty_like(order)
                        place[order] = np.arange(len(runs))
                        yield by_turns(place[run_of], self.dp_size), len(runs) // self.dp_size
            limit = min(limit * 2 // 3, costs.total // (fewest * multiple))

    def _packed(self, costs: _ForestCosts, begins: Int64s) -> tuple[Int64s, int] | None:
        """Returns the pack of each piece, and the microbatches; None if pieces are too few."""
        tokens = np.add.reduceat(costs.lengths - costs.shared, begins) + costs.shared[begins]
        weights = np.add.reduceat(costs.alone - costs.prefix, begins) + costs.prefix[begins]
        order = np.lexsort((-weights, -tokens))
        task = Task(
            lengths=tokens[order],
            costs=weights[order],
            capacity=self.max_tokens,
            most_items=len(tokens),
            num_ranks=self.dp_size,
        )
        try:
            packing = self._fewest_microbatches(task)
        except ConfigError:
            return None
        pack_of = np.empty_like(order)
        pack_of[order] = by_turns(packing.pack_of, self.dp_size)
        return pack_of, packing.num_microbatches

    def run(
        self,
        data_iterator: Any,
        num_microbatches: int,
        dp_group: Any,
        tp_group: Any,
        pp_group: Any,
        dp_cp_group: Any,
        dev: Any,
        config: object,
    ) -> Wrapped:
        """Returns what `wrap_data_iterator` returns, with a `PrefixPack` for each microbatch. Collective.

        Tokens and positions of the global batch go to all data-parallel ranks, 8 bytes each; all else only to those
        that work on it.
        """
        place, settings = place_in(dp_group, tp_group, pp_group, dp_cp_group, dev), PackingConfig.of(config)
        if isinstance(data_iterator, list):
            data_iterator = next((one for one in data_iterator if one is not None), None)

        def schedule() -> tuple[GlobalBatch, PackPlan]:
            needed = self.get_required_sample_keys()
            fetched = gather_lengths(Attempt(lambda: fetch(data_iterator, num_microbatches, needed)), place.dp)
            return fetched, self.plan_forest(PrefixForest.of(_gathered_tokens(fetched, place)))

        def exchange() -> list[PrefixPack]:
            lane = range(0, place.num_ranks, place.cp.size)
            wanted = [np.unique(np.concatenate(plan.ids_of_rank(rank))) for rank in lane]
            return self.packs(plan, exchange_samples(fetched, wanted, place.dp).__getitem__, place, settings)

        fetched, plan = do_together(
            "scheduling a global batch",
            schedule,
            break_off=place.break_off,
            breaks=(),
            compare=lambda result: describe(result[1], result[0].lengths),
        )
        packs = do_together("exchanging sub-samples", exchange, break_off=place.break_off)
        return iter(packs), plan.num_microbatches, *sums_of(fetched.lengths)

    def packs(
        self, plan: PackPlan, sample: Callable[[int], SubSample], place: Place, settings: PackingConfig
    ) -> list[PrefixPack]:
        """Returns the packs of this rank, of sub-samples that are asked for by their ids."""
        multiple = _row_multiple(self, settings.pad_packed_seq_alignment or 1, BLOCK_SIZE)
        made = []
        for ids in plan.ids_of_rank(place.rank):
            samples = [sample(number) for number in ids.tolist()]
            rows = {name: [one[name].cpu().numpy() for one in samples] for name in DTYPES}
            pack = PrefixPack.of(
                rows["tokens"],
                labels=rows["labels"],
                loss_weights=rows["loss_mask"],
                position_ids=rows["position_ids"],
                multiple=multiple,
            )
            made.append(replace(pack, sequences=pack.sequences.new_tensor(ids)).to(place.device))
        return made


def keys_of(samples: Sequence[SubSample]) -> list[Int64s]:
    """Returns the tokens of sub-samples, told apart where they stand at other positions, int64[length] each."""
    return [
        tokens_at_positions(one["tokens"].cpu().numpy(), one["position_ids"].cpu().numpy(), f"sub-sample {number}")
        for number, one in enumerate(samples)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForestCosts:
    """Sequences in depth-first order, and what they cost in whole units.

    Attributes:
        lengths, shared: int64[n], as in `PrefixForest`.
        alone: int64[n], the cost of each sequence.
        prefix: int64[n], the cost of what it shares.
    """

    lengths: Int64s
    shared: Int64s
    alone: Int64s
    prefix: Int64s

    @property
    def total(self) -> int:
        """The cost of the forest when nothing is repeated."""
        return int((self.alone - self.prefix).sum())

    def of_packs(self, pack_of: Int64s, num_packs: int) -> Int64s:
        """Returns the cost of each pack, int64[num_packs]; sequences of one tree share in it, side by side or not."""
        order = stable_order(pack_of)
        before, after = order[:-1], order[1:]
        tree = np.cumsum(self.shared == 0)
        is_like = (pack_of[before] == pack_of[after]) & (tree[before] == tree[after])
        prefix = np.zeros_like(self.prefix)
        if is_like.any():  # the least prefix of all that stand between two
            bounds = np.stack([before[is_like] + 1, after[is_like] + 1], axis=1).ravel()
            prefix[1:][is_like] = np.minimum.reduceat(np.append(self.prefix, 0), bounds)[::2]
        costs = np.zeros(num_packs, dtype=np.int64)
        np.add.at(costs, pack_of[order], self.alone[order] - prefix)
        return costs

    def slowest(self, pack_of: Int64s, num_microbatches: int) -> int:
        """Returns the costs of the costliest pack of each microbatch, added up."""
        costs = self.of_packs(pack_of, int(pack_of.max()) + 1)
        return int(costs.reshape(num_microbatches, -1).max(axis=1).sum())


def _row_multiple(scheduler: PrefixTreeScheduler, pad_to: int | str, block_size: int) -> int:
    """Returns what the tokens of a pack are filled up to a multiple of, which leaves none above what its ranks hold."""
    most = scheduler.max_seqlen_per_dp_cp_rank
    per_rank = most if pad_to == "max" else checked_integer("pad_to", pad_to, at_least=1)
    if scheduler.cp_size > 1:
        per_rank = math.lcm(per_rank, block_size)
    if most % per_rank:
        message = f"expected as many tokens of a rank as fill whole multiples of {per_rank}, found {most}"
        raise ConfigError(message, hint="context-parallel ranks are dealt blocks of `block_size` tokens; see `pad_to`")
    return per_rank * scheduler.cp_size


def _gathered_tokens(fetched: GlobalBatch, place: Place) -> list[Int64s]:
    """Returns the tokens of all sub-samples of the global batch by id, as `keys_of` does."""
    torch = require("torch", extra="torch")
    ends = np.concatenate([[0], np.cumsum(fetched.lengths)])
    sizes: list[int] = (np.diff(ends[fetched.offsets]) * 8).tolist()
    chunk = torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *keys_of(fetched.samples)]).view(np.uint8))
    received = place.dp.all_to_all([chunk] * place.dp.size, sizes, "tokens over DP")
    return np.split(np.concatenate([part.cpu().numpy() for part in received]).view(np.int64), ends[1:-1])
