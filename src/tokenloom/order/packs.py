"""Best-fit packing: samples of whole documents, instead of windows that split documents anywhere.

A sample has room for `sequence_length + extra` tokens. A document that fits is never split. Longer documents are split
into pieces that start at multiples of `sequence_length` and overlap by `extra` tokens. So if `extra` is 1, every token
of a document, except its first, is a label exactly once per epoch.

The algorithm is best-fit decreasing: pieces, longest first, each go into the fullest pack with enough room.
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
    """The result of best-fit packing for one epoch.

    Attributes:
        capacity: maximum number of tokens in a pack, including the extra token for the last label.
        num_documents, num_tokens: number of documents with at least one token; number of tokens in them.
        num_packs: samples per epoch.
        num_pieces: spans of all packs: whole documents, or pieces of long documents.
        num_split_documents: documents longer than a pack, which are split.
        num_repeated_tokens: tokens that are the last of one piece and the first of the next.
        num_padding_tokens: slots without a token.
        fill: fraction of slots with a token, in [0, 1]; 0 if there are no packs.
        documents_per_pack: mean number of pieces per pack; 0 if there are no packs.
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
    """Computes the result of best-fit packing from the lengths of documents; reads the lengths once.

    Example:
        >>> import numpy as np
        >>> report = best_fit_report(np.array([3, 9, 4, 2], dtype=np.int32), sequence_length=8, extra=0)
        >>> report.num_packs, report.num_split_documents, report.num_padding_tokens, report.fill
        (3, 1, 6, 0.75)

    Args:
        lengths: int32[num_documents], tokens per document; or an iterable of such arrays.
        sequence_length: tokens per sample.
        extra: tokens that a sample reads beyond `sequence_length`, 0 or 1.
        most_documents: maximum number of pieces in a pack; None for no limit.

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
    """Computes the numbers of samples and epochs if samples are packs; `report` is the result of packing one epoch."""

    num_tokens: int
    report: BestFitReport

    def plan(self, num_samples: int | None) -> EpochPlan:
        self._check(num_samples)
        packs = self.report.num_packs
        num_epochs = max(1, -(-num_samples // packs)) if num_samples else 1
        return self._plan(num_epochs, num_samples, num_epochs * packs, (num_epochs - 1) * packs, packs)

    def passes(self, num_samples: int) -> float:
        return num_samples / self.report.num_packs if self.report.num_packs else 0.0


def pack_dtype(largest: int, num_pieces: int) -> np.dtype[Any]:
    """Returns the dtype of the piece index and the pack index; `largest` is the largest index of a document."""
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
    """Yields the piece index and the pack index of all epochs; each epoch is shuffled and packed separately.

    `report` is the result of packing one epoch; the shuffles advance `random`.

    Yields:
        piece_index: [epochs * pieces, 2], (document, first token) of each piece, sorted by pack; a piece ends with its
            document or at the capacity of a pack.
        pack_index: [epochs * packs + 1]; pack i has pieces [pack_index[i], pack_index[i + 1]).
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
