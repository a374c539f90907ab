"""Which tokens make up a sample: windows over the stream of documents, or packs of whole documents.

A policy holds settings only; lengths and documents are passed to it. Datasets and plans know no more of it than this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels import LegacyRandom, PackReader, SpanReader, WindowReader
from tokenloom.order.cache import Arrays, ArraySpec
from tokenloom.order.epochs import EpochPlan, Epochs, WindowEpochs
from tokenloom.order.packs import PackEpochs, best_fit_report, build_packs, pack_dtype
from tokenloom.order.shuffles import (
    build_document_and_sample_index,
    build_shuffle_index,
    document_index_dtype,
    shuffle_index_dtype,
)
from tokenloom.order.windows import sample_index_dtype

PolicyName = Literal["concat", "best_fit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPolicy(ABC):
    """How samples are made of documents.

    Attributes:
        sequence_length: tokens of a sample.
        extra: tokens that a sample reads beyond its length, 0 or 1.
    """

    sequence_length: int
    extra: int

    @abstractmethod
    def epochs(self, num_tokens: int, lengths: Iterable[NDArray[np.int32]]) -> Epochs:
        """Returns how many samples come from how many epochs.

        Args:
            num_tokens: of the exposed documents.
            lengths: of these, in blocks; read only by a policy that needs them.
        """

    @abstractmethod
    def specs(self, indices: NDArray[Any], epochs: Epochs, plan: EpochPlan) -> dict[str, ArraySpec]:
        """Returns what the index arrays must be, known without building them."""

    @abstractmethod
    def build(
        self, lengths: NDArray[np.int32], indices: NDArray[Any], epochs: Epochs, plan: EpochPlan, seed: int
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the index arrays as they are done; the order of the shuffles is part of the result."""

    @abstractmethod
    def reader(self, lengths: NDArray[np.int32], arrays: Arrays, plan: EpochPlan) -> SpanReader:
        """Returns what turns positions into spans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatWindows(WindowPolicy):
    """The reference's way: all documents as one stream, cut every `sequence_length` tokens.

    Attributes:
        keep_partial: whether a last, incomplete window counts.
    """

    keep_partial: bool = False

    def epochs(self, num_tokens: int, lengths: Iterable[NDArray[np.int32]]) -> WindowEpochs:
        """Returns how many samples come from how many epochs; needs no lengths."""
        return WindowEpochs(
            num_tokens=num_tokens,
            sequence_length=self.sequence_length,
            extra=self.extra,
            keep_partial=self.keep_partial,
        )

    def specs(self, indices: NDArray[Any], epochs: Epochs, plan: EpochPlan) -> dict[str, ArraySpec]:
        """Returns the shapes of document, sample and shuffle index."""
        num_documents = plan.num_epochs * len(indices)
        return {
            "document_index": ArraySpec(document_index_dtype(indices), (num_documents,)),
            "sample_index": ArraySpec(sample_index_dtype(num_documents), (plan.num_samples + 1, 2)),
            "shuffle_index": ArraySpec(shuffle_index_dtype(plan.num_samples), (plan.num_samples,)),
        }

    def build(
        self, lengths: NDArray[np.int32], indices: NDArray[Any], epochs: Epochs, plan: EpochPlan, seed: int
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields document, sample and shuffle index."""
        random = LegacyRandom(seed)
        document_index, sample_index = build_document_and_sample_index(
            lengths, indices, plan, random, window_length=self.sequence_length, extra=self.extra
        )
        yield "document_index", document_index
        yield "sample_index", sample_index
        yield "shuffle_index", build_shuffle_index(plan, random)

    def reader(self, lengths: NDArray[np.int32], arrays: Arrays, plan: EpochPlan) -> WindowReader:
        """Returns a reader of windows."""
        return WindowReader(
            lengths,
            arrays["document_index"],
            arrays["sample_index"],
            arrays["shuffle_index"],
            window_length=self.sequence_length,
            extra=self.extra,
            num_tokens=plan.num_epochs * plan.tokens_per_epoch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFitPacks(WindowPolicy):
    """Whole documents packed into samples, long ones cut at `sequence_length`; see `order.packs`."""

    def epochs(self, num_tokens: int, lengths: Iterable[NDArray[np.int32]]) -> PackEpochs:
        """Returns how many samples come from how many epochs; one pass over the lengths."""
        report = best_fit_report(lengths, sequence_length=self.sequence_length, extra=self.extra)
        return PackEpochs(num_tokens=num_tokens, report=report)

    def specs(self, indices: NDArray[Any], epochs: Epochs, plan: EpochPlan) -> dict[str, ArraySpec]:
        """Returns the shapes of piece, pack and shuffle index."""
        assert isinstance(epochs, PackEpochs)
        num_pieces = plan.num_epochs * epochs.report.num_pieces
        dtype = pack_dtype(indices, num_pieces)
        return {
            "piece_index": ArraySpec(dtype, (num_pieces, 2)),
            "pack_index": ArraySpec(dtype, (plan.num_samples + 1,)),
            "shuffle_index": ArraySpec(shuffle_index_dtype(plan.num_samples), (plan.num_samples,)),
        }

    def build(
        self, lengths: NDArray[np.int32], indices: NDArray[Any], epochs: Epochs, plan: EpochPlan, seed: int
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields piece, pack and shuffle index: the packs of all epochs are shuffled as windows are."""
        assert isinstance(epochs, PackEpochs)
        random = LegacyRandom(seed)
        yield from build_packs(
            lengths,
            indices,
            plan,
            epochs.report,
            random,
            sequence_length=self.sequence_length,
            extra=self.extra,
        )
        yield "shuffle_index", build_shuffle_index(plan, random)

    def reader(self, lengths: NDArray[np.int32], arrays: Arrays, plan: EpochPlan) -> PackReader:
        """Returns a reader of packs."""
        return PackReader(
            lengths,
            arrays["pack_index"],
            arrays["piece_index"],
            arrays["shuffle_index"],
            sequence_length=self.sequence_length,
            extra=self.extra,
        )
