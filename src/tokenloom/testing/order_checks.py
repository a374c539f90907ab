"""Checks that an order returns the same samples through all of its interfaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.order.protocols import BlendOrder, Order, SpanOrder
from tokenloom.order.windows import SpanBatch
from tokenloom.storage.local import spread_evenly
from tokenloom.testing.checks import (
    CheckReport,
    columns_of,
    deviation,
    pickled_copy,
    require,
    require_same,
    run_checks,
    skip,
)


def check_order(
    order: Order, *, lengths: ArrayLike | None = None, sizes: Sequence[int] | None = None, num_samples: int = 32
) -> CheckReport:
    """Checks that an order meets the requirements of datasets and blends.

    Args:
        order: a `SpanOrder`, a `BlendOrder`, or both.
        lengths: integers[num_sequences], tokens per sequence, to check the ends of spans; None skips this check.
        sizes: number of samples of each dataset in a blend, to check that located samples exist; None skips this check.
        num_samples: number of samples to check, spread evenly over the order.

    Raises:
        ConformanceError: two interfaces return different samples for a position, or a sample is not in the data.
    """
    return run_checks(type(order).__name__, _OrderChecks(order, lengths, sizes, num_samples))


class _OrderChecks:
    def __init__(self, order: Any, lengths: ArrayLike | None, sizes: Sequence[int] | None, num_samples: int) -> None:
        self._order, self._num_chosen = order, num_samples
        self._lengths = None if lengths is None else np.asarray(lengths)
        self._sizes = None if sizes is None else np.asarray(sizes)
        self._positions: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def has_samples(self) -> None:
        """the order has samples"""
        count = self._order.num_samples
        require(count > 0, "at least one sample", count)
        self._positions = spread_evenly(count, max(self._num_chosen, 1))
        is_order = isinstance(self._order, (SpanOrder, BlendOrder))
        require(is_order, "the methods of `SpanOrder` or `BlendOrder`", f"those of {type(self._order).__name__}")
        require(isinstance(self._order.is_built, bool), "a bool as `is_built`", repr(self._order.is_built))

    def has_identity(self) -> None:
        """the identity of the order does not change"""
        identity = self._order.identity
        require(isinstance(identity, str) and bool(identity), "a non-empty string as `identity`", repr(identity))
        self._read(self._order, self._positions)
        require(self._order.identity == identity, f"{identity!r} as `identity` after reading", self._order.identity)

    def is_pure(self) -> None:
        """a sample does not depend on the other positions of a call"""
        together = self._read(self._order, self._positions)
        shuffled = np.concatenate([self._positions[::-1], self._positions[:1]])
        again = self._read(self._order, shuffled)
        for row, position in enumerate(shuffled.tolist()):
            expected = together[int(np.searchsorted(self._positions, position))]
            require_same(again[row], expected, where=f"sample {position}, read in another order")
            (alone,) = self._read(self._order, np.array([position], dtype=np.int64))
            require_same(alone, expected, where=f"sample {position}, read alone")
        require(not self._read(self._order, self._positions[:0]), "no samples for 0 positions", "samples")

    def stays_within_sequences(self) -> None:
        """spans have tokens and stay within their sequences"""
        batch = self._spans()
        for name, row in columns_of(batch, "row_offsets").items():
            require(np.asarray(row).dtype == np.int64, f"int64 as `spans(…).{name}`", np.asarray(row).dtype)
        require(np.all(batch.lengths > 0), "lengths above 0 with `keep_empty=False`", batch.lengths.min(initial=0))
        require(np.all(batch.starts >= 0), "starts of 0 or more", batch.starts.min(initial=0))
        if self._lengths is not None:
            known = (batch.documents >= 0) & (batch.documents < len(self._lengths))
            require(np.all(known), f"sequence indices below {len(self._lengths)}", batch.documents[~known][:1])
            stops = batch.starts + batch.lengths
            for first in np.flatnonzero(stops > self._lengths[batch.documents])[:1]:
                found = f"tokens [{batch.starts[first]}, {stops[first]}) of sequence {batch.documents[first]}"
                raise deviation("spans that end within their sequence", found)

    def keeps_empty_spans(self) -> None:
        """`keep_empty=True` adds only spans without tokens"""
        self._need(SpanOrder, "spans")
        without, others = self._spans(), self._order.spans(self._positions, keep_empty=True)
        for position, expected, spans in zip(self._positions.tolist(), without, others, strict=True):
            kept = {name: row[spans.lengths > 0] for name, row in columns_of(spans).items()}
            where = f"nonempty spans of spans([{position}], keep_empty=True)[0]"
            require_same(kept, columns_of(expected), where=where)

    def reads_natively(self) -> None:
        """`native_reader` returns the same spans as `spans`"""
        self._need(SpanOrder, "spans")
        if (reader := self._order.native_reader()) is None:
            skip("`native_reader()` is None")
        for keep_empty in (False, True):
            expected = self._order.spans(self._positions, keep_empty=keep_empty)
            found = SpanBatch(*reader.spans(self._positions, keep_empty=keep_empty))
            where = f"native_reader().spans(positions, keep_empty={keep_empty})"
            require_same(columns_of(found, "row_offsets"), columns_of(expected, "row_offsets"), where=where)

    def _spans(self) -> SpanBatch:
        self._need(SpanOrder, "spans")
        batch: SpanBatch = self._order.spans(self._positions, keep_empty=False)
        return batch

    def stays_within_datasets(self) -> None:
        """`locate` returns samples that exist"""
        self._need(BlendOrder, "locate")
        numbers, samples = self._order.locate(self._positions)
        for name, found in (("dataset", numbers), ("sample", samples)):
            is_valid = found.dtype.kind in "iu" and found.shape == self._positions.shape
            require(is_valid, f"one integer per position as {name} indices", f"{found.dtype}{list(found.shape)}")
            require(np.all(found >= 0), f"{name} indices of 0 or more", found.min())
        if self._sizes is not None:
            require(np.all(numbers < len(self._sizes)), f"dataset indices below {len(self._sizes)}", numbers.max())
            for row in np.flatnonzero(samples >= self._sizes[numbers])[:1]:
                expected = f"samples that exist in datasets of {self._sizes.tolist()} samples"
                raise deviation(expected, f"sample {samples[row]} of dataset {numbers[row]}")

    def locates_one(self) -> None:
        """`locate_one` agrees with `locate`"""
        self._need(BlendOrder, "locate")
        numbers, samples = self._order.locate(self._positions)
        for position, *expected in zip(self._positions.tolist(), numbers.tolist(), samples.tolist(), strict=True):
            require_same(self._order.locate_one(position), expected, where=f"locate_one({position})")

    def is_pickled(self) -> None:
        """a pickled copy is the same order"""
        found = pickled_copy(self._order)
        for name in ("identity", "num_samples"):
            require_same(getattr(found, name), getattr(self._order, name), where=f"{name} of a pickled copy")
        again, expected = (self._read(order, self._positions) for order in (found, self._order))
        require_same(again, expected, where="samples of a pickled copy")

    def checks(self) -> None:
        """`check` finds no damage after samples were read"""
        self._read(self._order, self._positions)
        self._order.check()

    def verifies(self) -> None:
        """`verify` finds no differences"""
        problems = self._order.verify()
        require(problems == [], "an empty list from `verify()`", problems)

    def _need(self, kind: Any, method: str) -> None:
        if not isinstance(self._order, kind):
            skip(f"{type(self._order).__name__} has no `{method}`")

    def _read(self, order: Any, positions: NDArray[np.int64]) -> list[list[Any]]:
        """Returns a list per position: the span columns of a `SpanOrder`, then dataset and sample of a `BlendOrder`."""
        found: list[list[Any]] = [[] for _ in positions]
        if isinstance(order, SpanOrder):
            batch = order.spans(positions, keep_empty=False)
            require(len(batch) == len(positions), f"spans of {len(positions)} samples", len(batch))
            for row, spans in enumerate(batch):
                found[row] += columns_of(spans).values()
        if isinstance(order, BlendOrder):
            numbers, samples = order.locate(positions)
            for row, pair in enumerate(zip(numbers.tolist(), samples.tolist(), strict=True)):
                found[row] += pair
        return found
