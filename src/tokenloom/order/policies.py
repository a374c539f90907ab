"""Policies that divide documents into samples: windows over concatenated documents, or packs of whole documents.

The setting `window_policy` selects a policy by name; `register_policy` adds a policy. A policy contains settings only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import PackReader, SpanReader, WindowReader
from tokenloom.errors import ConfigError
from tokenloom.kernels.order import LegacyRandom, build_sample_index
from tokenloom.order.array_store import ArrayStore, StoredOrder
from tokenloom.order.block_shuffle import BlockShuffle, build_block_document_index, build_block_shuffle_index
from tokenloom.order.cache import Arrays, ArraySpec
from tokenloom.order.documents import Documents
from tokenloom.order.epochs import EpochPlan, Epochs, WindowEpochs
from tokenloom.order.packs import BestFitReport, PackEpochs, best_fit_report, build_best_fit, pack_dtype
from tokenloom.order.protocols import SpanOrder
from tokenloom.order.shuffles import (
    build_document_and_sample_index,
    build_shuffle_index,
    document_index_dtype,
    shuffle_index_dtype,
)
from tokenloom.order.windows import SpanBatch, sample_index_dtype, span_mismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShape:
    """The settings by which a policy divides documents into samples.

    Attributes:
        sequence_length: tokens per sample.
        extra: tokens that a sample reads beyond `sequence_length`, 0 or 1.
        keep_partial: whether an incomplete last window is a sample; an incomplete pack is a sample anyway.
        blocks: settings of the block shuffle for remote data; None for a full shuffle.
        most_documents: maximum number of documents in a pack; None for no limit.
    """

    sequence_length: int
    extra: int
    keep_partial: bool = False
    blocks: BlockShuffle | None = None
    most_documents: int | None = None


class OrderPolicy(Protocol):
    """A policy that divides documents into samples."""

    def epochs(self, num_tokens: int, lengths: Iterable[NDArray[np.int32]]) -> Epochs:
        """Returns an object that computes the numbers of samples and epochs.

        Args:
            num_tokens: total number of tokens of the documents.
            lengths: tokens per document, in blocks; a policy need not read them.
        """

    def order(
        self, documents: Documents, epochs: Epochs, plan: EpochPlan, *, seed: int, store: ArrayStore
    ) -> SpanOrder:
        """Returns the order of the samples.

        Args:
            documents: the documents of the split.
            epochs: the result of `epochs` for these documents.
            plan: the result of `epochs.plan` for the requested number of samples.
            seed: seed of the run.
            store: stores the arrays of the order.

        Raises:
            IndexCacheError: arrays cannot be stored, or `store.must_exist` is set and arrays are missing.
        """


PolicyFactory = Callable[[SampleShape], OrderPolicy]


def register_policy(name: str, factory: PolicyFactory) -> None:
    """Registers a policy as a value of `GPTDatasetConfig.window_policy`.

    Args:
        name: name of the policy. Cache keys contain the name, so the policy with this name must never change.
        factory: creates the policy for a `SampleShape`; raises ConfigError for unsupported shapes.

    Raises:
        ConfigError: another policy has the same name.
    """
    if _POLICIES.setdefault(name, factory) is not factory:
        raise ConfigError(f"policy {name!r} is already registered", hint="choose another name")


def policy_of(name: str, shape: SampleShape) -> OrderPolicy:
    """Creates the policy registered as `name`; raises ConfigError if `name` is unknown or `shape` is not supported."""
    if (factory := _POLICIES.get(name)) is None:
        raise ConfigError(f"`window_policy` must be one of {', '.join(map(repr, policy_names()))}, got {name!r}")
    return factory(shape)


def policy_names() -> list[str]:
    """Returns the names of all policies."""
    return list(_POLICIES)


class ArrayOrder(StoredOrder):
    """A `SpanOrder` over stored arrays; knows `num_samples` without opening the arrays."""

    def __init__(
        self,
        shape: SampleShape,
        documents: Documents,
        epochs: Epochs,
        plan: EpochPlan,
        *,
        seed: int,
        store: ArrayStore,
    ) -> None:
        self.num_samples: int = plan.num_samples
        self._shape = shape
        self._documents = documents
        self._epochs = epochs
        self._plan = plan
        self._seed = seed
        self._reader: SpanReader | None = None
        super().__init__(store)

    @abstractmethod
    def _read(self, arrays: Arrays) -> SpanReader:
        """Returns a native reader of spans over the arrays."""

    def mismatch(self, arrays: Arrays) -> str | None:
        return span_mismatch(self._read(arrays), self.num_samples)

    def spans(self, positions: NDArray[np.int64], *, keep_empty: bool) -> SpanBatch:
        return SpanBatch(*self.native_reader().spans(positions, keep_empty=keep_empty))

    def native_reader(self) -> SpanReader:
        if self._reader is None:
            self._reader = self._read(self.arrays)
        return self._reader

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_reader": None}


class WindowOrder(ArrayOrder):
    """The reference's order: shuffled, concatenated documents, divided into windows of `sequence_length` tokens."""

    def specs(self) -> dict[str, ArraySpec]:
        num_documents, num_samples = self._plan.num_epochs * len(self._documents), self.num_samples
        return {
            "document_index": ArraySpec(document_index_dtype(self._documents.rows.largest), (num_documents,)),
            "sample_index": ArraySpec(sample_index_dtype(num_documents), (num_samples + 1, 2)),
            "shuffle_index": ArraySpec(shuffle_index_dtype(num_samples), (num_samples,)),
        }

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        random = LegacyRandom(self._seed)
        document_index, sample_index = build_document_and_sample_index(
            self._documents, self._plan, random, window_length=self._shape.sequence_length, extra=self._shape.extra
        )
        yield "document_index", document_index
        yield "sample_index", sample_index
        yield "shuffle_index", build_shuffle_index(self._plan, random)

    def _read(self, arrays: Arrays) -> WindowReader:
        return WindowReader(
            self._documents.lengths,
            arrays["document_index"],
            arrays["sample_index"],
            arrays["shuffle_index"],
            window_length=self._shape.sequence_length,
            extra=self._shape.extra,
            num_tokens=self._plan.num_epochs * self._plan.tokens_per_epoch,
        )


class BlockWindowOrder(WindowOrder):
    """An order of windows that reads a few blocks of the data at a time; see `BlockShuffle`."""

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        documents, plan, seed = self._documents, self._plan, self._seed
        blocks, length = self._shape.blocks, self._shape.sequence_length
        assert blocks is not None
        rows = documents.rows.array()
        numbers = documents.source.block_numbers(rows, blocks.block_bytes)
        document_index = build_block_document_index(rows, numbers, plan, blocks, seed)
        yield "document_index", document_index
        windows = build_sample_index(
            documents.lengths,
            document_index,
            window_length=length,
            extra=self._shape.extra,
            num_windows=plan.num_samples,
            dtype=sample_index_dtype(len(document_index)),
        )
        yield "sample_index", windows
        sample_bytes = length * documents.source.dtype.itemsize
        yield "shuffle_index", build_block_shuffle_index(plan, blocks, sample_bytes=sample_bytes, seed=seed)


class PackOrder(ArrayOrder):
    """An order of best-fit packs of whole documents; see `order.packs`."""

    @property
    def _report(self) -> BestFitReport:
        assert isinstance(self._epochs, PackEpochs)
        return self._epochs.report

    def specs(self) -> dict[str, ArraySpec]:
        num_pieces, num_samples = self._plan.num_epochs * self._report.num_pieces, self.num_samples
        dtype = pack_dtype(self._documents.rows.largest, num_pieces)
        return {
            "piece_index": ArraySpec(dtype, (num_pieces, 2)),
            "pack_index": ArraySpec(dtype, (num_samples + 1,)),
            "shuffle_index": ArraySpec(shuffle_index_dtype(num_samples), (num_samples,)),
        }

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        random, shape = LegacyRandom(self._seed), self._shape
        yield from build_best_fit(
            self._documents,
            self._plan,
            self._report,
            random,
            sequence_length=shape.sequence_length,
            extra=shape.extra,
            most_documents=shape.most_documents,
        )
        yield "shuffle_index", build_shuffle_index(self._plan, random)

    def _read(self, arrays: Arrays) -> PackReader:
        return PackReader(
            self._documents.lengths,
            arrays["pack_index"],
            arrays["piece_index"],
            arrays["shuffle_index"],
            sequence_length=self._shape.sequence_length,
            extra=self._shape.extra,
        )


@dataclass(frozen=True, slots=True)
class ConcatWindows:
    """The policy "concat", which reads windows over concatenated documents, shuffled fully or by blocks."""

    shape: SampleShape

    def __post_init__(self) -> None:
        if self.shape.most_documents is not None:
            hint = 'set `window_policy="best_fit"`, or `most_conversations` for conversations'
            raise ConfigError('`most_documents`: not supported by `window_policy="concat"`', hint=hint)

    def epochs(self, num_tokens: int, lengths: Iterable[NDArray[np.int32]]) -> WindowEpochs:
        """Returns the object that computes how many windows there are, without reading `lengths`."""
        length, extra, keep_partial = self.shape.sequence_length, self.shape.extra, self.shape.keep_partial
        return WindowEpochs(num_tokens=num_tokens, sequence_length=length, extra=extra, keep_partial=keep_partial)

    def order(
        self, documents: Documents, epochs: Epochs, plan: EpochPlan, *, seed: int, store: ArrayStore
    ) -> WindowOrder:
        kind = WindowOrder if self.shape.blocks is None else BlockWindowOrder
        return kind(self.shape, documents, epochs, plan, seed=seed, store=store)


@dataclass(frozen=True, slots=True)
class BestFitPacks:
    """The policy "best_fit": packs of whole documents."""

    shape: SampleShape

    def __post_init__(self) -> None:
        if self.shape.blocks is not None:
            raise ConfigError("`block_shuffle` and `window_policy='best_fit'` exclude each other", hint="remove one")

    def epochs(self, num_tokens: int, lengths: Iterable[NDArray[np.int32]]) -> PackEpochs:
        """Returns the object that computes numbers of packs; reads all `lengths`."""
        length, extra, most = self.shape.sequence_length, self.shape.extra, self.shape.most_documents
        report = best_fit_report(lengths, sequence_length=length, extra=extra, most_documents=most)
        return PackEpochs(num_tokens=num_tokens, report=report)

    def order(
        self, documents: Documents, epochs: Epochs, plan: EpochPlan, *, seed: int, store: ArrayStore
    ) -> PackOrder:
        return PackOrder(self.shape, documents, epochs, plan, seed=seed, store=store)


_POLICIES: dict[str, PolicyFactory] = {"concat": ConcatWindows, "best_fit": BestFitPacks}
"""{name: function that creates the policy}; cache keys contain the name."""
