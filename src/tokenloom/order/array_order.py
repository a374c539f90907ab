"""Orders of spans that are kept as arrays: the reference's, and those that differ in how the arrays are made."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels import SpanReader
from tokenloom.order.arrays import ArrayStore, OrderOfArrays
from tokenloom.order.cache import Arrays
from tokenloom.order.documents import Documents
from tokenloom.order.epochs import EpochPlan, Epochs
from tokenloom.order.npy_files import ArraySpec
from tokenloom.order.windows import SpanBatch, span_misfit

logger: logging.Logger = logging.getLogger(__name__)


class ArrayRules(Protocol):
    """How the arrays of an order are made and read; a policy, see `order.policies`."""

    def specs(self, documents: Documents, epochs: Epochs, plan: EpochPlan) -> Mapping[str, ArraySpec]:
        """Returns what the arrays must be, known without building them."""
        ...

    def build(
        self, documents: Documents, epochs: Epochs, plan: EpochPlan, seed: int
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the arrays as they are done."""
        ...

    def reader(self, documents: Documents, arrays: Arrays, plan: EpochPlan) -> SpanReader:
        """Returns what turns positions into spans."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanArrays:
    """The arrays of one order, for `CachedArrays`.

    Attributes:
        policy: how they are made and read.
        documents: those exposed.
        epochs: what the policy says of them.
        plan: how many samples, from how many epochs.
        seed: seed of the run.
        name: name of the dataset, for messages.
    """

    policy: ArrayRules
    documents: Documents
    epochs: Epochs
    plan: EpochPlan
    seed: int
    name: str

    def specs(self) -> Mapping[str, ArraySpec]:
        """Returns what the arrays must be."""
        return self.policy.specs(self.documents, self.epochs, self.plan)

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the arrays as they are done."""
        yield from self.policy.build(self.documents, self.epochs, self.plan, self.seed)
        num_samples, num_epochs = self.plan.num_samples, self.plan.num_epochs
        logger.info("built the indices of %s: %d samples, %d epochs", self.name, num_samples, num_epochs)

    def reader(self, arrays: Arrays) -> SpanReader:
        """Returns what turns positions into spans."""
        return self.policy.reader(self.documents, arrays, self.plan)

    def misfit(self, arrays: Arrays) -> str | None:
        """Returns why arrays cannot be those of this data, or None."""
        return span_misfit(self.reader(arrays), self.plan.num_samples)


class ArrayOrder(OrderOfArrays):
    """A `SpanOrder` over arrays.

    Args:
        source: what the arrays are.
        store: where they are kept.

    Attributes:
        num_samples: how many samples there are, known without opening anything.
        arrays: the arrays, by name.
    """

    def __init__(self, source: SpanArrays, store: ArrayStore) -> None:
        self.num_samples: int = source.plan.num_samples
        super().__init__(source, store)
        self._source = source
        self._reader: SpanReader | None = None

    def spans(self, positions: NDArray[np.int64], *, keep_empty: bool) -> SpanBatch:
        """Returns the spans of many samples, see `SpanOrder`."""
        return SpanBatch(*self.native_reader().spans(positions, keep_empty=keep_empty))

    def native_reader(self) -> SpanReader:
        """Returns what turns positions into spans, for kernels too."""
        if self._reader is None:
            self._reader = self._source.reader(self.arrays.open())
        return self._reader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}
