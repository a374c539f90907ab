"""The order of samples of whole sentences: the reference's mapping, kept as an array."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.order.arrays import ArrayStore, OrderOfArrays
from tokenloom.order.cache import Arrays
from tokenloom.order.documents import Rows
from tokenloom.order.npy_files import ArraySpec
from tokenloom.order.sentences import build_mapping, mapping_dtype, sentence_misfit
from tokenloom.order.short_datasets import warn_of_short
from tokenloom.order.windows import SpanBatch

logger: logging.Logger = logging.getLogger(__name__)

_MOST_EPOCHS = 2**31 - 2
"""The reference's bound on passes over the documents."""


class SentenceSource(Protocol):
    """Data of one sequence per sentence."""

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[num_sentences], tokens per sentence."""
        ...

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """int64[num_documents + 1], the sentence at which each document begins, and the end."""
        ...

    def __len__(self) -> int:
        """The number of sentences."""
        ...

    def check_index(self) -> None:
        """Makes sure that what was read of the lengths is what the file held."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentenceSamples:
    """The mapping of one dataset, for `CachedArrays`.

    Attributes:
        source: the data.
        rows: the documents that are exposed; consecutive.
        num_samples: samples wanted at least, from as many passes as that takes; None for one pass.
        longest_text: tokens of text in a sample, at most.
        short_probability: probability of a sample with a shorter target.
        seed: seed of the run.
        min_sentences: sentences in a sample, at least.
        name: name of the dataset, for messages.

    Raises:
        ConfigError: the documents are not consecutive ones of the data.
    """

    source: SentenceSource
    rows: Rows
    num_samples: int | None
    longest_text: int
    short_probability: float
    seed: int
    min_sentences: int
    name: str

    def __post_init__(self) -> None:
        """Checks the documents."""
        count = len(self.source.document_indices) - 1
        rows = self.rows.consecutive
        if len(self.rows) and (rows is None or rows.start < 0 or rows.stop > count):
            message = f"{self.name}: expected consecutive documents of {count}, found others"
            raise ConfigError(message)

    @property
    def boundaries(self) -> NDArray[np.int64]:
        """int64[num_documents + 1], the sentences at which the exposed documents begin, and the end; a view."""
        boundaries, rows = self.source.document_indices, self.rows.consecutive
        return boundaries[rows.start : rows.stop + 1] if rows else boundaries[:1]

    def specs(self) -> dict[str, ArraySpec]:
        """Returns what the mapping must be; only building tells how long it is."""
        return {"sample_index": ArraySpec(mapping_dtype(len(self.source)), (None, 3))}

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the mapping.

        Raises:
            ConfigError: samples are wanted, and no document gives one.
        """
        rows = build_mapping(
            self.boundaries,
            self.source.sequence_lengths,
            num_epochs=1 if self.num_samples is None else _MOST_EPOCHS,
            max_num_samples=self.num_samples,
            max_sequence_length=self.longest_text,
            short_sequence_probability=self.short_probability,
            seed=self.seed,
            min_sentences=self.min_sentences,
        )
        if self.num_samples and not len(rows):
            hint = "write one sequence per sentence, or give this split more documents"
            raise ConfigError(self.no_samples(), hint=hint)
        yield "sample_index", rows
        logger.info("built the index of %s: %d samples", self.name, len(rows))

    def misfit(self, arrays: Arrays) -> str | None:
        """Returns why a mapping cannot be that of this data, or None."""
        found = len(arrays["sample_index"])
        if self.num_samples is not None and found < self.num_samples:
            return f"it holds {found} samples, fewer than the {self.num_samples} asked for"
        return sentence_misfit(arrays["sample_index"], self.boundaries, max_sequence_length=self.longest_text)

    def no_samples(self) -> str:
        """Returns why there are none, in words."""
        return (
            f"{self.name}: none of {len(self.rows)} documents gives a sample: each has fewer than "
            f"{self.min_sentences} sentences, or several and one of them longer than 512 tokens"
        )


class SentenceOrder(OrderOfArrays):
    """An `Order` over a mapping: a sample is a run of whole sentences of one document.

    Args:
        samples: what the mapping is.
        store: where it is kept.

    Attributes:
        arrays: the mapping, as `sample_index`.
    """

    def __init__(self, samples: SentenceSamples, store: ArrayStore) -> None:
        super().__init__(samples, store)
        self.samples = samples
        self._was_seen = False
        if self.arrays.opened is not None:
            self.mapping()

    def mapping(self) -> NDArray[Any]:
        """Returns uint32[num_samples, 3], of each sample: first sentence, one past the last, target length in tokens.

        Warns if it is empty, and nobody has asked for any sample.
        """
        rows = self.arrays["sample_index"]
        if not self._was_seen:
            self._was_seen = True
            if self.samples.num_samples is None and not len(rows):
                warn_of_short(self.samples.no_samples())
        return rows

    @property
    def num_samples(self) -> int:
        """How many samples there are; opens the mapping, which alone tells."""
        return len(self.mapping())

    def sentences(self, positions: NDArray[np.int64]) -> tuple[SpanBatch, NDArray[np.int64]]:
        """Returns the sentences of samples, whole, and how many tokens of them each keeps at most: int64[count].

        Raises:
            IndexError: the mapping does not fit the data.
        """
        samples = self.mapping()[positions].astype(np.int64)
        starts, stops, targets = samples[:, 0], samples[:, 1], samples[:, 2]
        counts = stops - starts
        if ((counts < 0) | (stops > len(self.samples.source))).any():
            message = f"it takes sentences that are none of the {len(self.samples.source)} of the data"
            raise IndexError(message)
        offsets = np.zeros(len(samples) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        sentences = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        lengths = self.samples.source.sequence_lengths[sentences].astype(np.int64)
        self.samples.source.check_index()
        return SpanBatch(sentences, np.zeros_like(sentences), lengths, offsets), np.ascontiguousarray(targets)
