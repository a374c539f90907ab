"""Best-fit packs: whole documents in each sample, instead of windows that cut them anywhere.

A document that fits into a sample, extra token included, is never cut. A longer one is cut as windows over it alone
would cut it: pieces start at multiples of `sequence_length` and read the extra token further, so every token with a
predecessor in its document is a label exactly once in an epoch.

Best-fit decreasing: pieces in falling order of length, each into the row with the least room that can take it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import add_pieces
from tokenloom.kernels.order import LegacyRandom
from tokenloom.kernels.packs import count_packs, pack_documents
from tokenloom.order.documents import Documents
from tokenloom.order.epochs import EpochPlan, Epochs
from tokenloom.order.shuffles import document_index_dtype
from tokenloom.progress import task

_INT32_MAX = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFitReport:
    """The result of best-fit packing for an epoch.

    Attributes:
        capacity: tokens of a pack, the extra token for the last label included.
        num_documents, num_tokens: documents with tokens, and these.
        num_packs: samples of an epoch.
        num_pieces: spans of all packs: documents, or parts of longer ones.
        num_split_documents: documents that are cut.
        num_repeated_tokens: tokens that end one piece and begin the next.
        num_padding_tokens: empty places.
        fill: share of places with a token, in [0, 1]; 0 without packs.
        documents_per_pack: mean pieces per pack; 0 without packs.
    """

    capacity: int
    num_documents: int
    num_tokens: int
    num_packs: int
    num_pieces: int
    num_split_documents: int
    num_repeated_tokens: int
    num_padding_tokens: int
    fill: float
    documents_per_pack: float


def best_fit_report(
    lengths: NDArray[np.int32] | Iterable[NDArray[np.int32]],
    *,
    sequence_length: int,
    extra: int = 1,
    most_documents: int | None = None,
) -> BestFitReport:
    """Returns the result of packing documents of these lengths, from one pass over the lengths.

    Example:
        >>> import numpy as np
        >>> report = best_fit_report(np.array([3, 9, 4, 2], dtype=np.int32), sequence_length=8, extra=0)
        >>> report.num_packs, report.num_split_documents, report.num_padding_tokens, report.fill
        (3, 1, 6, 0.75)

    Args:
        lengths: int32[num_documents], tokens per document; or blocks of that.
        sequence_length: tokens of a sample.
        extra: tokens read beyond that, 0 or 1.
        most_documents: most pieces of a pack; None for any number.

    Raises:
        IndexError: a length is negative.
    """
    capacity = sequence_length + extra
    histogram = np.zeros(capacity + 1, dtype=np.int64)
    num_documents = num_split = num_tokens = 0
    for block in [lengths] if isinstance(lengths, np.ndarray) else lengths:
        part = np.ascontiguousarray(block)
        documents, split = add_pieces(part, sequence_length, extra, histogram)
        num_documents, num_split = num_documents + documents, num_split + split
        num_tokens += int(part.sum(dtype=np.int64))
    num_packs, num_pieces = count_packs(histogram, most_pieces=most_documents), int(histogram.sum())
    placed = int(histogram @ np.arange(capacity + 1))
    places = num_packs * capacity
    return BestFitReport(
        capacity=capacity,
        num_documents=num_documents,
        num_tokens=num_tokens,
        num_packs=num_packs,
        num_pieces=num_pieces,
        num_split_documents=num_split,
        num_repeated_tokens=placed - num_tokens,
        num_padding_tokens=places - placed,
        fill=placed / places if places else 0.0,
        documents_per_pack=num_pieces / num_packs if num_packs else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackEpochs(Epochs):
    """Epochs that are packed one by one; `report` is that of one."""

    num_tokens: int
    report: BestFitReport

    def plan(self, num_samples: int | None) -> EpochPlan:
        """See `Epochs`."""
        self._check(num_samples)
        packs = self.report.num_packs
        num_epochs = max(1, -(-num_samples // packs)) if num_samples else 1
        return self._plan(num_epochs, num_samples, num_epochs * packs, (num_epochs - 1) * packs, packs)

    def passes(self, num_samples: int) -> float:
        return num_samples / self.report.num_packs if self.report.num_packs else 0.0


def pack_dtype(largest: int, num_pieces: int) -> np.dtype[Any]:
    """Returns the dtype of pack and piece index over rows up to `largest`."""
    wide = max(num_pieces, largest) > _INT32_MAX
    return np.dtype(np.int64 if wide else np.int32)


def build_best_fit(
    documents: Documents,
    plan: EpochPlan,
    report: BestFitReport,
    random: LegacyRandom,
    *,
    sequence_length: int,
    extra: int,
    most_documents: int | None = None,
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields the piece index and the pack index of all epochs, each shuffled and packed anew.

    `report` is that of one epoch; `random` is advanced by the shuffles.

    Yields:
        piece_index: [epochs * pieces, 2], (document, first token) of each piece, pack by pack; a piece goes to the end
            of its document, or as far as a pack has room.
        pack_index: [epochs * packs + 1], the first piece of each pack, and the end.
    """
    num_pieces = plan.num_epochs * report.num_pieces
    largest = documents.rows.largest
    dtype = pack_dtype(largest, num_pieces)
    pieces: NDArray[Any] = np.empty((num_pieces, 2), dtype=dtype)
    packs: NDArray[Any] = np.empty(plan.num_samples + 1, dtype=dtype)
    packs[-1] = num_pieces
    order = documents.rows.array().astype(document_index_dtype(largest))
    with task("packs", unit="epochs", total=plan.num_epochs) as advance:
        for epoch in range(plan.num_epochs):
            random.shuffle(order)
            first_piece, first_pack = epoch * report.num_pieces, epoch * report.num_packs
            pack_documents(
                documents.lengths,
                order,
                sequence_length=sequence_length,
                extra=extra,
                most_pieces=most_documents,
                first_piece=first_piece,
                packs=packs[first_pack : first_pack + report.num_packs],
                pieces=pieces[first_piece : first_piece + report.num_pieces],
            )
            advance()
    yield "piece_index", pieces
    yield "pack_index", packs
