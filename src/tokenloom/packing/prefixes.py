"""Sequences that begin alike: as trees, as one row for a model, and the way from its logits back to each sequence.

In depth-first order a forest is two numbers per sequence: its length, and what it shares with the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.errors import ConfigError, InputError
from tokenloom.kernels.packs import order_by_prefix
from tokenloom.numbers import checked_integer
from tokenloom.optional import require
from tokenloom.rendering.card import HasFacts

Int64s = NDArray[np.int64]

BLOCK_SIZE = 128
"""Tokens of a block of FlexAttention, and of what context-parallel ranks are dealt."""


_MOST_TOKEN = 2**31


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixForest(HasFacts):
    """Sequences in depth-first order of the prefixes they share.

    Attributes:
        order: int64[n], which sequence stands at each place of the order.
        lengths: int64[n], their tokens, in that order.
        shared: int64[n], tokens that each shares with the one before; 0 where a tree begins.
    """

    order: Int64s
    lengths: Int64s
    shared: Int64s

    @classmethod
    def of(cls, sequences: Sequence[ArrayLike], position_ids: Sequence[ArrayLike] | None = None) -> PrefixForest:
        """Returns the forest of sequences: tokens are one where all before them are, and stand at one position.

        Sequences come in the order in which their trees and branches are first met. Time is linear in the tokens that
        are shared; others are not read.

        Example:
            >>> forest = PrefixForest.of([[1, 2, 3], [7, 8], [1, 2, 4, 5]])
            >>> forest.order.tolist(), forest.shared.tolist(), forest.num_tokens
            ([0, 2, 1], [0, 2, 0], 7)

        Args:
            sequences: token ids, integers[length] each, at least one.
            position_ids: the same numbers of integers, where positions do not count from 0 in each sequence.

        Raises:
            ConfigError: there is no sequence, one is empty or not a row of integers, or positions do not fit.
        """
        rows = [integers_of(row, f"sequence {number}") for number, row in enumerate(sequences)]
        if not rows:
            message = "expected at least one sequence, found none"
            raise ConfigError(message)
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        if not lengths.all():
            message = f"expected tokens in each sequence, found none in sequence {int(lengths.argmin())}"
            raise ConfigError(message, hint="leave it out")
        if position_ids is not None:
            rows = _with_positions(rows, position_ids)
        if any(row.dtype != np.int32 for row in rows):
            rows = [row.astype(np.int64, copy=False) for row in rows]
        order, shared = order_by_prefix(rows)
        return cls(order=order, lengths=lengths[order], shared=shared)

    @property
    def num_tokens(self) -> int:
        """Tokens when what is shared counts once."""
        return int(self.lengths.sum() - self.shared.sum())

    def facts(self) -> dict[str, Any]:
        """Returns the sizes of the forest; see `HasFacts`."""
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
    """Returns numbers that are equal where tokens and positions are; the tokens where all positions count from 0."""
    places = [integers_of(row, f"position_ids of sequence {number}") for number, row in enumerate(position_ids)]
    if [len(row) for row in places] != [len(row) for row in rows]:
        message = f"expected a position for each token of {len(rows)} sequences, found other numbers of them"
        raise ConfigError(message)
    depths = np.arange(max(map(len, places)))
    if all(np.array_equal(row, depths[: len(row)]) for row in places):
        return rows
    pairs = enumerate(zip(rows, places, strict=True))
    return [tokens_at_positions(row, place, f"sequence {number}") for number, (row, place) in pairs]


def tokens_at_positions(tokens: NDArray[Any], position_ids: NDArray[Any], what: str) -> Int64s:
    """Returns int64[length], equal where tokens and positions are."""
    if min(tokens.min(), position_ids.min()) < 0 or max(tokens.max(), position_ids.max()) >= _MOST_TOKEN:
        message = f"expected tokens and positions from 0 to 2**31 - 1 in {what}"
        raise ConfigError(message)
    both: Int64s = tokens.astype(np.int64) | position_ids.astype(np.int64) << 32
    return both


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixPack:
    """Sequences in which what they share stands once, as torch tensors: T tokens in a row, P of all sequences.

    A token sees those before it in its own sequences, which is one comparison: key k is seen by query q where
    tree_in[k] <= tree_in[q] < tree_out[k]. So a token's hidden state is the one it has in each of its sequences alone.
    What follows differs between sequences: a *term* is a place and a label that is wanted there, and where all
    sequences want the same one it is computed once, with the sum of their weights.

    Attributes:
        tokens: int64[T]; 0 in the tail that fills the row up.
        position_ids: int64[T], from 0 in each sequence unless given.
        tree_in: int32[T], the place of each token in the whole row.
        tree_out: int32[T], the place behind the last that sees it.
        num_tokens: tokens without the tail.
        path_offsets: int64[sequences + 1], where each sequence begins in `places`, `labels`, `loss_weights`, `terms`.
        places: int64[P], where each token of each sequence stands in the row.
        labels: int64[P], what follows each token.
        loss_weights: float32[P], how much its loss counts.
        terms: int64[P], the term of each token of each sequence.
        term_places: int64[M], where the logits of each term stand in `tokens`.
        term_labels: int64[M].
        term_weights: float32[M], sums over the sequences.
        term_numbers: int64[M], numbers of these terms in the whole row; fewer than all in the part of a rank.
        columns: further values, by name [P, ...].
        sequences: int64[sequences], their numbers in the global batch.
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
        """Returns a row of sequences, in their order but for what they share.

        Example:
            >>> pack = PrefixPack.of([[1, 2, 3], [1, 2, 4, 5]])
            >>> pack.tokens.tolist(), pack.tree_out.tolist(), pack.places.tolist()
            ([1, 2, 3, 4, 5], [5, 5, 3, 5, 5], [0, 1, 2, 0, 1, 3, 4])

        Args:
            sequences: token ids, integers[length] each.
            labels: what follows each token, integers[length] each; a negative one is 0 without loss. By default the
                next token of the sequence, and no loss after its last.
            loss_weights: how much the loss of each token's label counts: a row, or one number, for each sequence, such
                as its advantage times its loss mask; 1 by default.
            position_ids: integers[length] each, where they do not count from 0; only tokens at one position are shared.
            columns: further values, [length, ...] each; they come out along each sequence.
            multiple: what the row's length is filled up to a multiple of.

        Raises:
            ConfigError: there is no sequence, one is empty, or a row has another length than its sequence.
            InputError: a weight is not finite.
            MissingExtraError: torch is not installed.
        """
        forest = PrefixForest.of(sequences, position_ids)
        lengths = [len(np.asarray(row)) for row in sequences]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = _concatenated("sequence", sequences, lengths).astype(np.int64)
        wanted = _next_tokens(tokens, offsets) if labels is None else _concatenated("labels", labels, lengths)
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

    def to(self, device: Any) -> PrefixPack:
        """Returns the same on a device."""
        moved = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: value.to(device) if hasattr(value, "to") else value for name, value in moved.items()}
        moved["columns"] = {name: value.to(device) for name, value in self.columns.items()}
        return replace(self, **moved)

    def attention_mask(self) -> Any:
        """Returns bool[T, T], whether each token (a row) sees each other (a column)."""
        queries = self.tree_in[:, None]
        return (self.tree_in[None] <= queries) & (queries < self.tree_out[None])

    def block_mask(self, *, block_size: int = BLOCK_SIZE) -> Any:
        """Returns the `BlockMask` of the row for torch's FlexAttention, equal to what `create_block_mask` makes.

        Args:
            block_size: tokens of a block.

        Raises:
            ConfigError: this is the part of a context-parallel rank.
        """
        torch = require("torch", extra="torch")
        from torch.nn.attention.flex_attention import BlockMask

        outs, length = self.tree_out, len(self.tokens)
        if int(self.tree_in[-1]) != length - 1:
            message = "expected a whole row for a block mask, found the part of a context-parallel rank"
            raise ConfigError(message, hint="`tree_in` and `tree_out` of the whole row say what a part's queries see")
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
        """Returns the tokens of a context-parallel rank, whose keys and values all ranks gather, and their terms.

        Blocks are dealt by what they attend to, so that ranks work alike; rows at `tree_in` of the whole row.

        Args:
            cp_size: ranks that share the row.
            cp_rank: this one.
            block_size: tokens of a block; the row's length must be a multiple of cp_size × block_size.

        Raises:
            ConfigError: it is not.
        """
        torch = require("torch", extra="torch")
        length, size = len(self.tokens), checked_integer("cp_size", cp_size, at_least=1) * block_size
        if length % size:
            message = f"expected a row of a multiple of {size} tokens for {cp_size} ranks, found {length}"
            raise ConfigError(message, hint=f"make it with `multiple={size}`")
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
        """Returns the log-probability of each term's label, float32[M], from logits [T, vocabulary] of its tokens."""
        rows = logits.float()
        return rows[self.term_places, self.term_labels] - rows.logsumexp(-1)[self.term_places]

    def log_probs(self, logits: Any) -> Any:
        """Returns the log-probability of each label along each sequence, float32[P]; `split` takes them apart."""
        return self.term_log_probs(logits)[self.terms]

    def loss(self, logits: Any) -> Any:
        """Returns the cross entropy of all labels times their weights, summed over all sequences, a scalar.

        What the sequences give apart, one by one. Over parts of ranks, it is the sum of theirs.
        """
        return -(self.term_log_probs(logits) * self.term_weights).sum()

    def split(self, values: Any) -> tuple[Any, ...]:
        """Returns values along the sequences, [P, ...], by sequence; `values[places]` has values of tokens."""
        return tuple(values.split(self.path_offsets.diff().tolist()))


def integers_of(row: ArrayLike, what: str) -> NDArray[Any]:
    """Returns a row of integers, contiguous."""
    found = np.asarray(row)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        message = f"expected a row of integers for {what}, found {found.dtype}{list(found.shape)}"
        raise ConfigError(message)
    return np.ascontiguousarray(found)


def _concatenated(name: str, rows: Sequence[ArrayLike], lengths: Sequence[int]) -> NDArray[Any]:
    arrays = [np.asarray(row) for row in rows]
    if len(arrays) != len(lengths):
        message = f"expected `{name}` of {len(lengths)} sequences, found {len(arrays)}"
        raise ConfigError(message)
    for number, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        if array.shape[:1] != (length,):
            message = f"expected `{name}` for the {length} tokens of sequence {number}, found shape {list(array.shape)}"
            raise ConfigError(message)
    return np.concatenate(arrays)


def _weights(given: Any, lengths: Sequence[int]) -> NDArray[np.float32]:
    """Returns float32[P]."""
    if given is None:
        return np.ones(sum(lengths), dtype=np.float32)
    rows = [np.asarray(row, dtype=np.float32) for row in given]
    rows = [np.full(length, row) if row.ndim == 0 else row for row, length in zip(rows, lengths, strict=False)] + rows[
        len(lengths) :
    ]
    weights = _concatenated("loss_weights", rows, lengths).astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(weights))
    if len(wrong):
        number = int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
        token = int(wrong[0]) - sum(lengths[:number])
        message = f"weight {weights[wrong[0]]} at token {token} of sequence {number} is not finite"
        raise InputError(message, hint="a loss without weight has weight 0")
    return weights


def _next_tokens(tokens: Int64s, offsets: Int64s) -> Int64s:
    labels = np.append(tokens[1:], -1)
    labels[offsets[1:] - 1] = -1
    return labels


def _layout(forest: PrefixForest, offsets: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Returns the places int64[P] of all tokens of sequences, and of each place where what sees it ends, and its token.

    Of each sequence, what it does not share with the one before stands behind it. So whatever sees a token stands right
    behind it, until a sequence comes that shares less.
    """
    num_tokens = forest.num_tokens
    places = np.empty(offsets[-1], dtype=np.int64)
    tree_out = np.full(num_tokens, num_tokens, dtype=np.int64)
    first = np.empty(num_tokens, dtype=np.int64)
    path = np.empty(int(forest.lengths.max()), dtype=np.int64)
    start = previous = 0
    for number, length, shared in zip(
        *(row.tolist() for row in (forest.order, forest.lengths, forest.shared)), strict=True
    ):
        tree_out[path[shared:previous]] = start
        stop, offset = start + length - shared, int(offsets[number])
        path[shared:length] = np.arange(start, stop)
        first[start:stop] = np.arange(offset + shared, offset + length)
        places[offset : offset + length] = path[:length]
        start, previous = stop, length
    return places, tree_out, first


def _terms(forest: PrefixForest, offsets: Int64s, labels: Int64s) -> tuple[Int64s, Int64s]:
    """Returns the term int64[P] of each token of each sequence, and of each term a token that has it.

    A sequence has the terms of the one before it, as far as they share tokens and labels.
    """
    terms = np.empty(offsets[-1], dtype=np.int64)
    kept: list[Int64s] = []
    count = before = 0
    for number, length, shared in zip(
        *(row.tolist() for row in (forest.order, forest.lengths, forest.shared)), strict=True
    ):
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
