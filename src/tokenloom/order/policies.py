"""Which tokens make up a sample: windows over the stream of documents, or packs of whole documents.

A policy holds settings only; data are passed to it. Datasets and plans know no more of it than `OrderPolicy`, and find
it by its name: a policy of another module is known once that module has called `register_policy`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels import LegacyRandom, PackReader, SpanReader, WindowReader
from tokenloom.order.array_order import ArrayOrder, SpanArrays
from tokenloom.order.arrays import ArrayStore
from tokenloom.order.block_shuffle import BlockShuffle, build_block_document_index, build_block_shuffle_index
from tokenloom.order.cache import Arrays
from tokenloom.order.documents import Documents
from tokenloom.order.epochs import EpochPlan, Epochs, WindowEpochs
from tokenloom.order.npy_files import ArraySpec
from tokenloom.order.packs import PackEpochs, best_fit_report, build_best_fit, pack_dtype
from tokenloom.order.protocols import SpanOrder
from tokenloom.order.shuffles import (
    build_document_and_sample_index,
    build_shuffle_index,
    document_index_dtype,
    shuffle_index_dtype,
)
from tokenloom.order.windows import build_sample_index, sample_index_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShape:
    """What all policies are told of samples.

    Attributes:
        sequence_length: tokens of a sample.
        extra: tokens that a sample reads beyond its length, 0 or 1.
        keep_partial: whether a last, incomplete window counts; every pack does.
        blocks: how far samples mix, for data that are read from afar; None to mix all of them.
    """

    sequence_length: int
    extra: int
    keep_partial: bool = False
    blocks: BlockShuffle | None = None


class OrderPolicy(Protocol):
    """How samples are made of documents."""

    def epochs(self, num_tokens: int, lengths: Iterable[NDArray[np.int32]]) -> Epochs:
        """Returns how many samples come from how many epochs.

        Args:
            num_tokens: tokens of the exposed documents.
            lengths: tokens of each of them, in blocks; read only by a policy that needs them.
        """
        ...

    def order(
        self, documents: Documents, epochs: Epochs, plan: EpochPlan, *, seed: int, store: ArrayStore
    ) -> SpanOrder:
        """Returns which spans are which sample.

        Args:
            documents: those exposed.
            epochs: what `epochs` returned for them.
            plan: what that says of the samples that are wanted.
            seed: seed of the run.
            store: where an order of arrays keeps them.

        Raises:
            IndexCacheError: arrays cannot be kept there, or must be there and are not.
        """
        ...


PolicyFactory = Callable[[SampleShape], OrderPolicy]


def register_policy(name: str, factory: PolicyFactory) -> None:
    """Makes a policy known under a name, which `GPTDatasetConfig.window_policy` then takes.

    Args:
        name: its name; part of the names of cached indices, so it must keep its meaning.
        factory: makes it for samples of a shape; raises ConfigError for one that it cannot make.

    Raises:
        ConfigError: another policy has the name.
    """
    if _POLICIES.setdefault(name, factory) is not factory:
        message = f"expected a new name for a policy, found {name!r}, which is one already"
        raise ConfigError(message)


def policy_of(name: str, shape: SampleShape) -> OrderPolicy:
    """Returns the policy of a name.

    Raises:
        ConfigError: there is no such policy, or it cannot make samples of this shape.
    """
    if (factory := _POLICIES.get(name)) is None:
        message = f"expected `window_policy` to be one of {', '.join(map(repr, policy_names()))}, found {name!r}"
        raise ConfigError(message)
    return factory(shape)


def policy_names() -> list[str]:
    """Returns the names of all policies."""
    return list(_POLICIES)


@dataclass(frozen=True, slots=True)
class ArrayPolicy(ABC):
    """A policy whose order is kept as arrays.

    Attributes:
        shape: what samples are like.
    """

    shape: SampleShape

    @abstractmethod
    def epochs(self, num_tokens: int, lengths: Iterable[NDArray[np.int32]]) -> Epochs:
        """Returns how many samples come from how many epochs, see `OrderPolicy`."""

    @abstractmethod
    def specs(self, documents: Documents, epochs: Epochs, plan: EpochPlan) -> Mapping[str, ArraySpec]:
        """Returns what the arrays must be, known without building them."""

    @abstractmethod
    def build(
        self, documents: Documents, epochs: Epochs, plan: EpochPlan, seed: int
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the arrays as they are done; the order of the shuffles is part of the result."""

    @abstractmethod
    def reader(self, documents: Documents, arrays: Arrays, plan: EpochPlan) -> SpanReader:
        """Returns what turns positions into spans."""

    def order(
        self, documents: Documents, epochs: Epochs, plan: EpochPlan, *, seed: int, store: ArrayStore
    ) -> ArrayOrder:
        """Returns which spans are which sample, see `OrderPolicy`."""
        return ArrayOrder(
            SpanArrays(policy=self, documents=documents, epochs=epochs, plan=plan, seed=seed, name=store.name), store
        )


@dataclass(frozen=True, slots=True)
class ConcatWindows(ArrayPolicy):
    """The reference's way: all documents as one stream, cut every `sequence_length` tokens."""

    def epochs(self, num_tokens: int, lengths: Iterable[NDArray[np.int32]]) -> WindowEpochs:
        """Returns how many samples come from how many epochs; needs no lengths."""
        shape = self.shape
        return WindowEpochs(
            num_tokens=num_tokens,
            sequence_length=shape.sequence_length,
            extra=shape.extra,
            keep_partial=shape.keep_partial,
        )

    def specs(self, documents: Documents, epochs: Epochs, plan: EpochPlan) -> dict[str, ArraySpec]:
        """Returns the shapes of document, sample and shuffle index."""
        num_documents = plan.num_epochs * len(documents)
        return {
            "document_index": ArraySpec(document_index_dtype(documents.rows.largest), (num_documents,)),
            "sample_index": ArraySpec(sample_index_dtype(num_documents), (plan.num_samples + 1, 2)),
            "shuffle_index": ArraySpec(shuffle_index_dtype(plan.num_samples), (plan.num_samples,)),
        }

    def build(
        self, documents: Documents, epochs: Epochs, plan: EpochPlan, seed: int
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields document, sample and shuffle index."""
        random = LegacyRandom(seed)
        document_index, sample_index = build_document_and_sample_index(
            documents, plan, random, window_length=self.shape.sequence_length, extra=self.shape.extra
        )
        yield "document_index", document_index
        yield "sample_index", sample_index
        yield "shuffle_index", build_shuffle_index(plan, random)

    def reader(self, documents: Documents, arrays: Arrays, plan: EpochPlan) -> WindowReader:
        """Returns a reader of windows."""
        return WindowReader(
            documents.lengths,
            arrays["document_index"],
            arrays["sample_index"],
            arrays["shuffle_index"],
            window_length=self.shape.sequence_length,
            extra=self.shape.extra,
            num_tokens=plan.num_epochs * plan.tokens_per_epoch,
        )


@dataclass(frozen=True, slots=True)
class BlockWindows(ConcatWindows):
    """The same windows in another order, which stays within some blocks of the data at a time; see `BlockShuffle`."""

    def build(
        self, documents: Documents, epochs: Epochs, plan: EpochPlan, seed: int
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields document, sample and shuffle index."""
        blocks, length = self.shape.blocks, self.shape.sequence_length
        assert blocks is not None  # or this is not the policy
        rows = documents.rows.array()
        numbers = documents.source.block_numbers(rows, blocks.block_bytes)
        document_index = build_block_document_index(rows, numbers, plan, blocks, seed)
        yield "document_index", document_index
        yield (
            "sample_index",
            build_sample_index(
                documents.lengths,
                document_index,
                window_length=length,
                extra=self.shape.extra,
                num_samples=plan.num_samples,
            ),
        )
        sample_bytes = length * documents.source.dtype.itemsize
        yield "shuffle_index", build_block_shuffle_index(plan, blocks, sample_bytes=sample_bytes, seed=seed)


@dataclass(frozen=True, slots=True)
class BestFitPacks(ArrayPolicy):
    """Whole documents packed into samples, long ones cut at `sequence_length`; see `order.packs`."""

    def epochs(self, num_tokens: int, lengths: Iterable[NDArray[np.int32]]) -> PackEpochs:
        """Returns how many samples come from how many epochs; one pass over the lengths."""
        report = best_fit_report(lengths, sequence_length=self.shape.sequence_length, extra=self.shape.extra)
        return PackEpochs(num_tokens=num_tokens, report=report)

    def specs(self, documents: Documents, epochs: Epochs, plan: EpochPlan) -> dict[str, ArraySpec]:
        """Returns the shapes of piece, pack and shuffle index."""
        assert isinstance(epochs, PackEpochs)
        num_pieces = plan.num_epochs * epochs.report.num_pieces
        dtype = pack_dtype(documents.rows.largest, num_pieces)
        return {
            "piece_index": ArraySpec(dtype, (num_pieces, 2)),
            "pack_index": ArraySpec(dtype, (plan.num_samples + 1,)),
            "shuffle_index": ArraySpec(shuffle_index_dtype(plan.num_samples), (plan.num_samples,)),
        }

    def build(
        self, documents: Documents, epochs: Epochs, plan: EpochPlan, seed: int
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields piece, pack and shuffle index: the packs of all epochs are shuffled as windows are."""
        assert isinstance(epochs, PackEpochs)
        random = LegacyRandom(seed)
        shape = self.shape
        yield from build_best_fit(
            documents, plan, epochs.report, random, sequence_length=shape.sequence_length, extra=shape.extra
        )
        yield "shuffle_index", build_shuffle_index(plan, random)

    def reader(self, documents: Documents, arrays: Arrays, plan: EpochPlan) -> PackReader:
        """Returns a reader of packs."""
        return PackReader(
            documents.lengths,
            arrays["pack_index"],
            arrays["piece_index"],
            arrays["shuffle_index"],
            sequence_length=self.shape.sequence_length,
            extra=self.shape.extra,
        )


def _windows(shape: SampleShape) -> ConcatWindows:
    return ConcatWindows(shape) if shape.blocks is None else BlockWindows(shape)


def _packs(shape: SampleShape) -> BestFitPacks:
    if shape.blocks is not None:
        message = "`block_shuffle` and `window_policy='best_fit'` exclude each other, found both"
        raise ConfigError(message)
    return BestFitPacks(shape)


_POLICIES: dict[str, PolicyFactory] = {"concat": _windows, "best_fit": _packs}
"""Policies by name. A name is part of the names of cached indices, so it keeps its meaning."""
