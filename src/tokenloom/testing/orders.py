"""Whether an order gives the same samples however it is asked."""

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
    """Checks that an order does what datasets and blends ask of it: a `SpanOrder`, a `BlendOrder`, or both.

    Args:
        order: an order of any class.
        lengths: integers[num_sequences], tokens of each sequence of the data; spans must lie within them. None if that
            is not to be checked.
        sizes: samples of each dataset that a blend is made of; None if that is not to be checked.
        num_samples: how many samples are looked at, spread over the order.

    Raises:
        ConformanceError: it gives other samples when it is asked in another way, or none that can be.
    """
    return run_checks(type(order).__name__, _OrderChecks(order, lengths, sizes, num_samples))


class _OrderChecks:
    """The checks of one order."""

    def __init__(self, order: Any, lengths: ArrayLike | None, sizes: Sequence[int] | None, num_samples: int) -> None:
        self._order, self._num_chosen = order, num_samples
        self._lengths = None if lengths is None else np.asarray(lengths)
        self._sizes = None if sizes is None else np.asarray(sizes)
        self._positions: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def has_samples(self) -> None:
        """it has samples"""
        count = self._order.num_samples
        require(count > 0, "one sample at least", count)
        self._positions = spread_evenly(count, max(self._num_chosen, 1))
        kinds = isinstance(self._order, (SpanOrder, BlendOrder))
        require(kinds, "the methods of a `SpanOrder` or of a `BlendOrder`", f"those of {type(self._order).__name__}")
        require(isinstance(self._order.is_built, bool), "a bool as `is_built`", repr(self._order.is_built))

    def has_identity(self) -> None:
        """its identity stays the same"""
        identity = self._order.identity
        require(isinstance(identity, str) and bool(identity), "a text as `identity`", repr(identity))
        self._ask(self._order, self._positions)
        require(self._order.identity == identity, f"{identity!r} as `identity` after reading", self._order.identity)

    def is_pure(self) -> None:
        """samples do not depend on what else is asked for"""
        together = self._ask(self._order, self._positions)
        shuffled = np.concatenate([self._positions[::-1], self._positions[:1]])
        again = self._ask(self._order, shuffled)
        for row, position in enumerate(shuffled.tolist()):
            expected = together[int(np.searchsorted(self._positions, position))]
            require_same(again[row], expected, where=f"sample {position}, in another order")
            (alone,) = self._ask(self._order, np.array([position], dtype=np.int64))
            require_same(alone, expected, where=f"sample {position}, alone")
        require(not self._ask(self._order, self._positions[:0]), "nothing for no positions", "samples")

    def stays_within_sequences(self) -> None:
        """spans have tokens, and lie within sequences"""
        batch = self._spans()
        for name, row in columns_of(batch, "row_offsets").items():
            require(np.asarray(row).dtype == np.int64, f"int64 as `spans(…).{name}`", np.asarray(row).dtype)
        require(np.all(batch.lengths > 0), "spans with tokens without `keep_empty`", batch.lengths.min(initial=0))
        require(np.all(batch.starts >= 0), "starts from 0 on", batch.starts.min(initial=0))
        if self._lengths is not None:
            known = (batch.documents >= 0) & (batch.documents < len(self._lengths))
            require(np.all(known), f"sequences below {len(self._lengths)}", batch.documents[~known][:1])
            stops = batch.starts + batch.lengths
            for first in np.flatnonzero(stops > self._lengths[batch.documents])[:1]:
                found = f"tokens [{batch.starts[first]}, {stops[first]}) of sequence {batch.documents[first]}"
                require(condition=False, expected="spans that end with their sequence", found=found)

    def keeps_empty_spans_apart(self) -> None:
        """spans without tokens come on top of the others"""
        self._need(SpanOrder, "spans")
        without, others = self._spans(), self._order.spans(self._positions, keep_empty=True)
        for position, expected, spans in zip(self._positions.tolist(), without, others, strict=True):
            kept = {name: row[spans.lengths > 0] for name, row in columns_of(spans).items()}
            where = f"spans with tokens of spans([{position}], keep_empty=True)[0]"
            require_same(kept, columns_of(expected), where=where)

    def reads_natively(self) -> None:
        """kernels read the spans that `spans` gives"""
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
        """samples of a blend are samples of its datasets"""
        self._need(BlendOrder, "locate")
        numbers, samples = self._order.locate(self._positions)
        for name, found in (("dataset", numbers), ("sample", samples)):
            shape = list(found.shape)
            require(found.dtype.kind in "iu" and shape == [len(self._positions)], f"an integer of {name} each", shape)
            require(np.all(found >= 0), f"numbers of a {name} from 0 on", found.min())
        if self._sizes is not None:
            require(np.all(numbers < len(self._sizes)), f"datasets below {len(self._sizes)}", numbers.max())
            expected = f"samples that datasets of {self._sizes.tolist()} samples have"
            for row in np.flatnonzero(samples >= self._sizes[numbers])[:1]:
                raise deviation(expected, f"sample {samples[row]} of dataset {numbers[row]}")

    def locates_one(self) -> None:
        """`locate_one` gives what `locate` does"""
        self._need(BlendOrder, "locate")
        numbers, samples = self._order.locate(self._positions)
        for position, *expected in zip(self._positions.tolist(), numbers.tolist(), samples.tolist(), strict=True):
            require_same(self._order.locate_one(position), expected, where=f"locate_one({position})")

    def is_pickled(self) -> None:
        """a pickled copy is the same order"""
        found = pickled_copy(self._order)
        for name in ("identity", "num_samples"):
            require_same(getattr(found, name), getattr(self._order, name), where=f"{name} of a pickled copy")
        again, expected = (self._ask(order, self._positions) for order in (found, self._order))
        require_same(again, expected, where="samples of a pickled copy")

    def checks(self) -> None:
        """what was read is what was stored"""
        self._ask(self._order, self._positions)
        self._order.check()

    def verifies(self) -> None:
        """worked out again, it is the same"""
        problems = self._order.verify()
        require(problems == [], "no differences from `verify()`", problems)

    def _need(self, kind: Any, method: str) -> None:
        if not isinstance(self._order, kind):
            skip(f"{type(self._order).__name__} has no `{method}`")

    def _ask(self, order: Any, positions: NDArray[np.int64]) -> list[list[Any]]:
        """Returns all that an order says of each sample."""
        said: list[list[Any]] = [[] for _ in positions]
        if isinstance(order, SpanOrder):
            batch = order.spans(positions, keep_empty=False)
            require(len(batch) == len(positions), f"spans of {len(positions)} samples", len(batch))
            for row, spans in enumerate(batch):
                said[row] += columns_of(spans).values()
        if isinstance(order, BlendOrder):
            numbers, samples = order.locate(positions)
            for row, pair in enumerate(zip(numbers.tolist(), samples.tolist(), strict=True)):
                said[row] += pair
        return said
