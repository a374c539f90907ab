"""Prefix trees of sequences: packs that store and compute shared prefixes once, balanced over ranks.

A forest is stored as two numbers per sequence, in depth-first order: the length, and the number of leading tokens
shared with the previous sequence. A range of sequences costs all tokens of its first sequence and the unshared tokens
of its other sequences. Splitting a range in two repeats the prefix that the second range shares with the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom._native import cut_evenly, cut_forest
from tokenloom.distributed.building import do_together
from tokenloom.distributed.meeting import Attempt
from tokenloom.errors import ConfigError, InputError
from tokenloom.kernels.packs import order_by_prefix
from tokenloom.numbers import checked_integer
from tokenloom.optional import require
from tokenloom.packing.balanced import (
    GOOD_ENOUGH,
    CostBalancedScheduler,
    Task,
    checked_costs,
    integer_costs,
    reverse_odd_microbatches,
)
from tokenloom.packing.batch import DTYPES, SubSample
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.cost import CostModel
from tokenloom.packing.groups import Place
from tokenloom.packing.pack_plan import Int64s, PackPlan, stable_order, uniform_plan
from tokenloom.packing.pipeline import GlobalBatch, Wrapped, describe, exchange_samples, fetch, gather_lengths, sums_of
from tokenloom.rendering.card import HasFacts

BLOCK_SIZE = 128
"""Number of tokens in a block of FlexAttention, and in a block that is assigned to a context-parallel rank."""

_MOST_TOKEN = 2**31


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixForest(HasFacts):
    """The prefix trees of sequences. The attributes list the sequences in depth-first order.

    Attributes:
        order: int64[n], the index of each sequence in the input.
        lengths: int64[n], tokens of each sequence.
        shared: int64[n], number of leading tokens shared with the previous sequence; 0 starts a tree.
    """

    order: Int64s
    lengths: Int64s
    shared: Int64s

    @classmethod
    def of(cls, sequences: Sequence[ArrayLike], position_ids: Sequence[ArrayLike] | None = None) -> PrefixForest:
        """Builds the forest of sequences; a shared prefix has equal tokens at equal positions.

        Trees and branches are sorted by their first input sequence. The time is linear in the number of shared tokens.

        Example:
            >>> forest = PrefixForest.of([[1, 2, 3], [7, 8], [1, 2, 4, 5]])
            >>> forest.order.tolist(), forest.shared.tolist(), forest.num_tokens
            ([0, 2, 1], [0, 2, 0], 7)

        Args:
            sequences: token ids, integers[length] per sequence.
            position_ids: integers[length] per sequence; None if positions count from 0 in each sequence.

        Raises:
            ConfigError: no sequences; a sequence is empty or not a vector of integers; `position_ids` do not match.
        """
        rows = [integers_of(row, f"sequence {number}") for number, row in enumerate(sequences)]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        if not rows or not lengths.all():
            raise ConfigError(f"sequence {int(lengths.argmin())} has no tokens" if rows else "`sequences` is empty")
        if position_ids is not None:
            rows = _with_positions(rows, position_ids)
        if any(row.dtype != np.int32 for row in rows):
            rows = [row.astype(np.int64, copy=False) for row in rows]
        order, shared = order_by_prefix(rows)
        return cls(order=order, lengths=lengths[order], shared=shared)

    @property
    def num_tokens(self) -> int:
        """Number of tokens; shared tokens count once."""
        return int(self.lengths.sum() - self.shared.sum())

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yields (index in the input, length, number of shared tokens) of each sequence."""
        return zip(self.order.tolist(), self.lengths.tolist(), self.shared.tolist(), strict=True)

    def facts(self) -> dict[str, Any]:
        roots = np.flatnonzero(self.shared == 0)
        return {
            "sequences": len(self.order),
            "trees": len(roots),
            "tokens of all sequences": int(self.lengths.sum()),
            "tokens that differ": self.num_tokens,
            "longest sequence": int(self.lengths.max()),
            "most sequences of a tree": int(np.diff(roots, append=len(self.order)).max()),
        }


def _with_positions(rows: list[NDArray[Any]], position_ids: Sequence[ArrayLike]) -> list[NDArray[Any]]:
    """Returns `tokens_at_positions` of each sequence; if all positions count from 0, returns `rows` unchanged."""
    places = [integers_of(row, f"position_ids of sequence {number}") for number, row in enumerate(position_ids)]
    if [len(row) for row in places] != [len(row) for row in rows]:
        raise ConfigError("`position_ids`: must have a position for each token of each sequence")
    depths = np.arange(max(map(len, places)))
    if all(np.array_equal(row, depths[: len(row)]) for row in places):
        return rows
    pairs = enumerate(zip(rows, places, strict=True))
    return [tokens_at_positions(row, place, f"sequence {number}") for number, (row, place) in pairs]


def tokens_at_positions(tokens: NDArray[Any], position_ids: NDArray[Any], name: str) -> Int64s:
    """Combines each token and its position into one integer, int64[length], to compare both at once."""
    if min(tokens.min(), position_ids.min()) < 0 or max(tokens.max(), position_ids.max()) >= _MOST_TOKEN:
        raise ConfigError(f"{name}: tokens and positions must be in [0, 2**31)")
    both: Int64s = tokens.astype(np.int64) | position_ids.astype(np.int64) << 32
    return both


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixPack:
    """Sequences with P tokens in total, as a row of T tokens that stores shared prefixes once. All arrays are tensors.

    A token attends to itself and to the tokens before it in its sequences: query q sees key k if
    tree_in[k] <= tree_in[q] < tree_out[k]. So the hidden state of a token is the same as in each sequence alone. The
    label of a token may differ between its sequences. A *term* is a token of the row with one of its labels; the row
    has M terms. The loss of a term is computed once, weighted by the sum of its weights in the sequences that share it.

    Attributes:
        tokens: int64[T]; 0 in the padding at the end.
        position_ids: int64[T], counted from 0 in each sequence by default.
        tree_in: int32[T], index of each token in the whole row.
        tree_out: int32[T], for each token, the end (exclusive) of the range of tokens that attend to it.
        num_tokens: number of tokens in the row, without padding.
        path_offsets: int64[num_sequences + 1], boundaries of the sequences in the fields of shape [P].
        places: int64[P], index in `tokens` of each token of each sequence.
        labels: int64[P], label of each token of each sequence; 0 where there is no loss.
        loss_weights: float32[P], weight of the loss of each label.
        terms: int64[P], index of the term of each token of each sequence.
        term_places, term_labels: int64[M] each, the index in `tokens` of each term, and the label of each term.
        term_weights: float32[M], for each term, the sum of `loss_weights` over the sequences that share the term.
        term_numbers: int64[M], index of each term among the terms of the whole row, also in a `part` of the row.
        columns: the columns passed to `of`, as {name: [P, ...]}.
        sequences: int64[num_sequences], index of each sequence in the global batch.
    """

    tokens: Any
    position_ids: Any
    tree_in: Any
    tree_out: Any
    num_tokens: int
    path_offsets: Any
    places: Any
    labels: Any
    loss_weights: Any
    terms: Any
    term_places: Any
    term_labels: Any
    term_weights: Any
    term_numbers: Any
    columns: Mapping[str, Any]
    sequences: Any

    @classmethod
    def of(
        cls,
        sequences: Sequence[ArrayLike],
        *,
        labels: Sequence[ArrayLike] | None = None,
        loss_weights: Sequence[ArrayLike] | ArrayLike | None = None,
        position_ids: Sequence[ArrayLike] | None = None,
        columns: Mapping[str, Sequence[ArrayLike]] | None = None,
        multiple: int = 1,
    ) -> PrefixPack:
        """Packs sequences into one row that stores shared prefixes once; [P] fields keep the order of `sequences`.

        Example:
            >>> pack = PrefixPack.of([[1, 2, 3], [1, 2, 4, 5]])
            >>> pack.tokens.tolist(), pack.tree_out.tolist(), pack.places.tolist()
            ([1, 2, 3, 4, 5], [5, 5, 3, 5, 5], [0, 1, 2, 0, 1, 3, 4])

        Args:
            sequences: token ids, integers[length] per sequence.
            labels: integers[length] per sequence; a negative label has no loss and becomes 0. By default, the label is
                the next token, and the last token has no loss.
            loss_weights: one vector, or one number, per sequence, such as advantage times loss mask; None for 1.
            position_ids: integers[length] per sequence; None to count from 0. Tokens at different positions are
                not shared.
            columns: other values, [length, ...] per sequence, which become `columns` of the pack.
            multiple: the row is padded to a multiple of this number of tokens.

        Raises:
            ConfigError: there is no sequence, a sequence is empty, or another argument does not match the sequences.
            InputError: a weight is not finite.
            MissingExtraError: torch is not installed.
        """
        forest = PrefixForest.of(sequences, position_ids)
        lengths = [len(np.asarray(row)) for row in sequences]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = _concatenated("sequence", sequences, lengths).astype(np.int64)
        wanted = np.append(tokens[1:], -1) if labels is None else _concatenated("labels", labels, lengths)
        if labels is None:
            wanted[offsets[1:] - 1] = -1
        weights = np.where(wanted < 0, np.float32(0), _weights(loss_weights, lengths))
        wanted = np.maximum(wanted, 0)
        places, tree_out, first = _layout(forest, offsets)
        terms, kept = _terms(forest, offsets, wanted)
        num_tokens = forest.num_tokens
        tail = -num_tokens % checked_integer("multiple", multiple, at_least=1)
        depths = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        positions = depths if position_ids is None else _concatenated("position_ids", position_ids, lengths)
        row = np.arange(num_tokens + tail, dtype=np.int32)
        made = {
            "tokens": np.pad(tokens[first], (0, tail)),
            "position_ids": np.pad(positions[first].astype(np.int64), (0, tail)),
            "tree_in": row,
            "tree_out": np.concatenate([tree_out, row[num_tokens:] + 1]).astype(np.int32),
            "path_offsets": offsets,
            "places": places,
            "labels": wanted.astype(np.int64),
            "loss_weights": weights,
            "terms": terms,
            "term_places": places[kept],
            "term_labels": wanted[kept].astype(np.int64),
            "term_weights": np.bincount(terms, weights=weights, minlength=len(kept)).astype(np.float32),
            "term_numbers": np.arange(len(kept)),
            "sequences": np.arange(len(lengths)),
        }
        torch = require("torch", extra="torch")
        further = {name: torch.from_numpy(_concatenated(name, rows, lengths)) for name, rows in (columns or {}).items()}
        return cls(
            num_tokens=num_tokens, columns=further, **{name: torch.from_numpy(row) for name, row in made.items()}
        )

    @classmethod
    def of_subsamples(cls, samples: Sequence[SubSample], *, multiple: int) -> PrefixPack:
        """Packs sub-samples, as `take_apart` yields them, into one row; `multiple` as in `of`."""
        tokens, *others = ([one[name].cpu().numpy() for one in samples] for name in DTYPES)
        labels, positions, weights = others
        return cls.of(tokens, labels=labels, loss_weights=weights, position_ids=positions, multiple=multiple)

    def to(self, device: Any) -> PrefixPack:
        """Returns a copy of the pack on a device."""
        moved = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: value.to(device) if hasattr(value, "to") else value for name, value in moved.items()}
        moved["columns"] = {name: value.to(device) for name, value in self.columns.items()}
        return replace(self, **moved)

    def attention_mask(self) -> Any:
        """Returns bool[T, T]: element [q, k] is True if token q attends to token k."""
        queries = self.tree_in[:, None]
        return (self.tree_in[None] <= queries) & (queries < self.tree_out[None])

    def block_mask(self, *, block_size: int = BLOCK_SIZE) -> Any:
        """Returns FlexAttention's `BlockMask` of a whole row, equal to the result of `create_block_mask`."""
        torch = require("torch", extra="torch")
        from torch.nn.attention.flex_attention import BlockMask

        outs, length = self.tree_out, len(self.tokens)
        if int(self.tree_in[-1]) != length - 1:
            message = "a block mask needs a whole row, not the part of a context-parallel rank"
            raise ConfigError(message, hint="compute the mask of a part from `tree_in` and `tree_out` of the whole row")
        count = -(-length // block_size)
        rows = torch.nn.functional.pad(outs, (0, count * block_size - length)).view(count, block_size)
        begins = torch.arange(count, device=outs.device) * block_size
        before = begins[None] < begins[:, None]
        full = before & (rows.amin(1)[None] >= begins[:, None] + block_size)
        partial = (before & (rows.amax(1)[None] > begins[:, None]) & ~full) | (begins[None] == begins[:, None])

        def lists(blocks: Any) -> tuple[Any, Any]:
            counts = blocks.sum(1, dtype=torch.int32)
            return counts[None, None], blocks.int().argsort(dim=1, descending=True, stable=True).int()[None, None]

        def sees(_row: Any, _head: Any, query: Any, key: Any) -> Any:
            return (key <= query) & (query < outs[key])

        return BlockMask.from_kv_blocks(
            *lists(partial), *lists(full), BLOCK_SIZE=block_size, mask_mod=sees, seq_lengths=(length, length)
        )

    def part(self, *, cp_size: int, cp_rank: int, block_size: int = BLOCK_SIZE) -> PrefixPack:
        """Returns the part of a context-parallel rank: blocks of tokens, and the terms at these tokens.

        Parts have nearly equal attention work. The row's length must be a multiple of cp_size × block_size. `tree_in`
        of a part has the indices of its tokens in the whole row; for attention, a rank gathers all keys and values.
        """
        torch = require("torch", extra="torch")
        length, size = len(self.tokens), checked_integer("cp_size", cp_size, at_least=1) * block_size
        if length % size:
            message = f"a row of {length} tokens cannot be divided evenly among {cp_size} ranks"
            raise ConfigError(message, hint=f"create the pack with `multiple={size}`")
        seen = self.position_ids.view(-1, block_size).sum(1)
        order = torch.argsort(seen, descending=True, stable=True).view(-1, cp_size)
        order[1::2] = order[1::2].flip(1)
        blocks = order[:, cp_rank].sort().values
        indices = (blocks[:, None] * block_size + torch.arange(block_size, device=blocks.device)).flatten()
        place_in_part = torch.full((length,), -1, dtype=torch.int64, device=blocks.device)
        place_in_part[indices] = torch.arange(len(indices), device=blocks.device)
        mine = place_in_part[self.term_places] >= 0
        cut = {name: getattr(self, name)[indices] for name in ("tokens", "position_ids", "tree_in", "tree_out")}
        terms = {name: getattr(self, name)[mine] for name in ("term_labels", "term_weights", "term_numbers")}
        return replace(self, **cut, **terms, term_places=place_in_part[self.term_places[mine]])

    def term_log_probs(self, logits: Any) -> Any:
        """Returns the log-probability of each term's label, float32[M], from logits [T, vocabulary size]."""
        rows = logits.float()
        return rows[self.term_places, self.term_labels] - rows.logsumexp(-1)[self.term_places]

    def log_probs(self, logits: Any) -> Any:
        """Returns the log-probability of each label of each sequence, float32[P], which `split` divides by sequence."""
        return self.term_log_probs(logits)[self.terms]

    def loss(self, logits: Any) -> Any:
        """Returns the weighted cross entropy, summed over terms; the loss of a row is the sum over all of its parts."""
        return -(self.term_log_probs(logits) * self.term_weights).sum()

    def split(self, values: Any) -> tuple[Any, ...]:
        """Splits values [P, ...] into one tensor per sequence; for values [T, ...] pass `values[pack.places]`."""
        return tuple(values.split(self.path_offsets.diff().tolist()))


def integers_of(row: ArrayLike, name: str) -> NDArray[Any]:
    found = np.asarray(row)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise ConfigError(f"{name} must be a vector of integers, got {found.dtype}{list(found.shape)}")
    return np.ascontiguousarray(found)


def _concatenated(name: str, rows: Sequence[ArrayLike], lengths: Sequence[int]) -> NDArray[Any]:
    arrays = [np.asarray(row) for row in rows]
    _check_count(name, arrays, len(lengths))
    for number, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        if array.shape[:1] != (length,):
            raise ConfigError(f"`{name}` of sequence {number}: length must be {length}, got shape {list(array.shape)}")
    return np.concatenate(arrays)


def _check_count(name: str, rows: Any, count: int) -> None:
    if len(rows) != count:
        raise ConfigError(f"`{name}`: expected values for {count} sequences, got {len(rows)}")


def _weights(given: Any, lengths: Sequence[int]) -> NDArray[np.float32]:
    if given is None:
        return np.ones(sum(lengths), dtype=np.float32)
    rows = [np.asarray(row, dtype=np.float32) for row in given]
    if len(rows) == len(lengths):
        rows = [np.full(length, row) if row.ndim == 0 else row for row, length in zip(rows, lengths, strict=True)]
    weights = _concatenated("loss_weights", rows, lengths).astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(weights))
    if len(wrong):
        number = int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
        token = int(wrong[0]) - sum(lengths[:number])
        raise InputError(f"loss weight {weights[wrong[0]]} at token {token} of sequence {number} is not finite")
    return weights


def _layout(forest: PrefixForest, offsets: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Returns `places`, `tree_out`, and the index of each token of the row in the concatenated sequences."""
    # Each sequence appends its unshared tokens to the row. So the tokens that attend to a token are the tokens after it
    # in the row, up to the first sequence that does not share that token.
    num_tokens = forest.num_tokens
    places = np.empty(offsets[-1], dtype=np.int64)
    tree_out = np.full(num_tokens, num_tokens, dtype=np.int64)
    first = np.empty(num_tokens, dtype=np.int64)
    path = np.empty(int(forest.lengths.max()), dtype=np.int64)
    start = previous = 0
    for number, length, shared in forest.rows():
        tree_out[path[shared:previous]] = start
        stop, offset = start + length - shared, int(offsets[number])
        path[shared:length] = np.arange(start, stop)
        first[start:stop] = np.arange(offset + shared, offset + length)
        places[offset : offset + length] = path[:length]
        start, previous = stop, length
    return places, tree_out, first


def _terms(forest: PrefixForest, offsets: Int64s, labels: Int64s) -> tuple[Int64s, Int64s]:
    """Returns the index of each token's term (see `PrefixPack`), int64[P], and of each term's first token, int64[M]."""
    terms = np.empty(offsets[-1], dtype=np.int64)
    kept: list[Int64s] = []
    count = before = 0
    for number, length, shared in forest.rows():
        offset = int(offsets[number])
        mine = terms[offset : offset + length]
        is_new = np.ones(length, dtype=bool)
        is_new[:shared] = labels[offset : offset + shared] != labels[before : before + shared]
        mine[:shared] = terms[before : before + shared]
        new = np.flatnonzero(is_new)
        mine[new] = np.arange(count, count + len(new))
        kept.append(offset + new)
        count, before = count + len(new), offset
    return terms, np.concatenate(kept)


_NO_LIMIT: int = np.iinfo(np.int64).max

_TRIED_RUNS = 3  # how many microbatch counts, lowest first, are tried with one range of sequences per pack


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
    """Returns the packs of a data-parallel rank, one per microbatch, for the sequences of a global batch.

    All ranks pass the same sequences and compute the same plan, without communication; all have the same number of
    packs. Sequences with a common prefix, such as rollouts of a prompt, may be anywhere in the batch.

    Example:
        >>> packs = pack_prefixes([[1, 2, 3, 4], [9, 8], [1, 2, 3, 5], [9, 7, 6]], max_tokens=6)
        >>> [(pack.sequences.tolist(), pack.num_tokens) for pack in packs]
        [([0, 2], 5), ([1, 3], 4)]

    Args:
        sequences: token ids, integers[length] per sequence: prompt and response.
        max_tokens: maximum tokens of each rank in one microbatch; a pack has up to `cp_size` times as many.
        labels, loss_weights, position_ids, columns: values of the sequences, see `PrefixPack.of`.
        dp_rank, dp_size: this data-parallel rank, and the number of data-parallel ranks.
        cp_size: number of context-parallel ranks, which share a pack; `pack.part` returns the tokens of one rank.
        microbatch_multiple: the number of microbatches is a multiple of this number.
        pad_to: divisor of `max_tokens`; each rank's tokens are padded to a multiple of it. "max" means `max_tokens`.
        block_size: tokens per block, a divisor of `max_tokens`; context-parallel ranks get whole blocks.
        cost_model: cost of sequences; None for attention work only.

    Raises:
        ConfigError: a sequence is longer than a pack, there are too few sequences, or values do not match sequences.
        InputError: a weight is not finite.
    """
    scheduler = PrefixTreeScheduler(max_tokens, cp_size, dp_size, microbatch_multiple, cost_model=cost_model)
    checked_integer("dp_rank", dp_rank, at_least=0, below=scheduler.dp_size)
    plan = scheduler.plan_forest(PrefixForest.of(sequences, position_ids))
    multiple = _row_multiple(scheduler, pad_to, block_size)

    given: dict[str, Any] = {"labels": labels, "loss_weights": loss_weights, "position_ids": position_ids}
    for name, rows in {**given, **(columns or {})}.items():
        if rows is not None:
            _check_count(name, rows, len(sequences))

    def pack(ids: Int64s) -> PrefixPack:
        def chosen(rows: Mapping[str, Any]) -> dict[str, Any]:
            return {name: [row[each] for each in ids.tolist()] for name, row in rows.items() if row is not None}

        own = chosen(given | {"sequences": sequences})
        made = PrefixPack.of(**own, columns=chosen(columns or {}), multiple=multiple)
        return replace(made, sequences=made.sequences.new_tensor(ids))

    return [pack(plan.ids_of(microbatch, dp_rank * cp_size)) for microbatch in range(plan.num_microbatches)]


class PrefixTreeScheduler(CostBalancedScheduler):
    """A scheduler that plans packs of nearly equal cost, in which shared prefixes are computed once.

    A tree that exceeds a pack, or would make the work of ranks unequal, is split where a split repeats fewest tokens.
    Sequences without shared prefixes are packed as with `cost_balanced`.

    The iterator of `wrap_data_iterator` yields a `PrefixPack` per microbatch. Every rank that needs packs must pass an
    iterator, with equal data on all ranks of a tensor-parallel group and on all stages. With `wrap_dataset`, each rank
    reads the whole global batch. The arguments are those of `BasePackingScheduler` except `max_num_seqs`.
    """

    def plan_forest(self, forest: PrefixForest) -> PackPlan:
        """Returns the plan of all sequences, the same on every rank; sequences in a pack are in depth-first order.

        Raises:
            ConfigError: a sequence is longer than a pack, there are fewer sequences than packs, or `max_num_seqs` is
                given.
        """
        if self.max_num_seqs is not None:
            raise ConfigError("`thd_max_packed_sequences` is not supported by `prefix_trees`", hint="leave it unset")
        lengths, shared = forest.lengths, forest.shared
        by_number = np.empty_like(lengths)
        by_number[forest.order] = lengths
        self.checked_lengths(by_number)
        sizes = np.unique(np.concatenate([lengths, shared[shared > 0]]))
        costs = checked_costs(self.cost_model, sizes[::-1], self.cp_size)
        units = np.append(integer_costs(costs, len(lengths))[::-1], 0)
        alone, prefix = units[np.searchsorted(sizes, lengths)], units[np.searchsorted(sizes, shared)]
        prefix[shared == 0] = 0
        forest_costs = _ForestCosts(lengths=lengths, shared=shared, alone=alone, prefix=prefix)
        best, least = None, GOOD_ENOUGH * forest_costs.total / self.dp_size
        for pack_of, num_microbatches in self._candidates(forest_costs):
            slowest = forest_costs.slowest(pack_of, num_microbatches)
            if best is None or slowest < best[0]:
                best = slowest, pack_of, num_microbatches
            if slowest <= least:
                break
        if best is None:
            return self.plan(by_number)  # raises a ConfigError that has the reason
        plan = uniform_plan(best[1], num_microbatches=best[2], cp_size=self.cp_size, dp_size=self.dp_size)
        return replace(plan, ids=forest.order[plan.ids])

    def _candidates(self, costs: _ForestCosts) -> Iterator[tuple[Int64s, int]]:
        """Yields plans as (pack of each sequence, number of microbatches); later plans split trees more often."""
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
                        yield reverse_odd_microbatches(place[run_of], self.dp_size), len(runs) // self.dp_size
            limit = min(limit * 2 // 3, costs.total // (fewest * multiple))

    def _packed(self, costs: _ForestCosts, begins: Int64s) -> tuple[Int64s, int] | None:
        """Packs the ranges that begin at `begins`; returns (pack of each range, number of microbatches), or None."""
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
        pack_of[order] = reverse_odd_microbatches(packing.pack_of, self.dp_size)
        return pack_of, packing.num_microbatches

    def run_in(self, place: Place, data_iterator: Any, num_microbatches: int, config: object) -> Wrapped:
        """Does the work of `run`; the iterator in the result yields a `PrefixPack` per microbatch."""
        settings = PackingConfig.of(config)
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
        """Returns the packs of this rank; `sample` returns the sub-sample with a given id."""
        multiple = _row_multiple(self, settings.pad_packed_seq_alignment or 1, BLOCK_SIZE)
        made = []
        for ids in plan.ids_of_rank(place.rank):
            pack = PrefixPack.of_subsamples([sample(number) for number in ids.tolist()], multiple=multiple)
            made.append(replace(pack, sequences=pack.sequences.new_tensor(ids)).to(place.device))
        return made


def keys_of(samples: Sequence[SubSample]) -> list[Int64s]:
    """Returns `tokens_at_positions` of each sub-sample, int64[length]."""
    return [
        tokens_at_positions(one["tokens"].cpu().numpy(), one["position_ids"].cpu().numpy(), f"sub-sample {number}")
        for number, one in enumerate(samples)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForestCosts:
    """Integer costs of each sequence of a `PrefixForest`: `alone` for all tokens, `prefix` for the shared tokens."""

    lengths: Int64s
    shared: Int64s
    alone: Int64s
    prefix: Int64s

    @property
    def total(self) -> int:
        return int((self.alone - self.prefix).sum())

    def of_packs(self, pack_of: Int64s, num_packs: int) -> Int64s:
        """Returns the cost of each pack, int64[num_packs]; a prefix shared by sequences of a pack counts once."""
        order = stable_order(pack_of)
        before, after = order[:-1], order[1:]
        tree = np.cumsum(self.shared == 0)
        shares = (pack_of[before] == pack_of[after]) & (tree[before] == tree[after])
        prefix = np.zeros_like(self.prefix)
        if shares.any():  # the shared prefix of sequences i < j costs the least `prefix` of sequences i + 1 to j
            bounds = np.stack([before[shares] + 1, after[shares] + 1], axis=1).ravel()
            prefix[1:][shares] = np.minimum.reduceat(np.append(self.prefix, 0), bounds)[::2]
        costs = np.zeros(num_packs, dtype=np.int64)
        np.add.at(costs, pack_of[order], self.alone[order] - prefix)
        return costs

    def slowest(self, pack_of: Int64s, num_microbatches: int) -> int:
        costs = self.of_packs(pack_of, int(pack_of.max()) + 1)
        return int(costs.reshape(num_microbatches, -1).max(axis=1).sum())


def _row_multiple(scheduler: PrefixTreeScheduler, pad_to: int | str, block_size: int) -> int:
    """Returns a number of tokens; packs are padded to a multiple of this number."""
    most = scheduler.max_seqlen_per_dp_cp_rank
    per_rank = most if pad_to == "max" else checked_integer("pad_to", pad_to, at_least=1)
    if scheduler.cp_size > 1:
        per_rank = math.lcm(per_rank, block_size)
    if most % per_rank:
        raise ConfigError(f"limit of {most} tokens per rank must be a multiple of {per_rank} (`pad_to`, `block_size`)")
    return per_rank * scheduler.cp_size


def _gathered_tokens(fetched: GlobalBatch, place: Place) -> list[Int64s]:
    """Gathers the results of `keys_of` of all ranks, in order of ids; sends 8 bytes per token to each rank."""
    torch = require("torch", extra="torch")
    ends = np.concatenate([[0], np.cumsum(fetched.lengths)])
    sizes: list[int] = (np.diff(ends[fetched.offsets]) * 8).tolist()
    chunk = torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *keys_of(fetched.samples)]).view(np.uint8))
    received = place.dp.all_to_all([chunk] * place.dp.size, sizes, "tokens over DP")
    return np.split(np.concatenate([part.cpu().numpy() for part in received]).view(np.int64), ends[1:-1])
