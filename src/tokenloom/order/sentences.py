"""The order of BERT and T5 datasets: each sample is a range of sentences of one document."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.order.array_store import ArrayStore, StoredOrder, warn_short
from tokenloom.order.cache import Arrays, ArraySpec
from tokenloom.order.documents import Rows
from tokenloom.order.windows import SpanBatch
from tokenloom.storage.local import spread_evenly

UNLIMITED = 2**63 - 1
_MOST_EPOCHS = 2**31 - 2  # the reference's limit
_UINT32_MAX = np.iinfo(np.uint32).max
_CHECKED_SAMPLES = 32


def mapping_dtype(num_sentences: int) -> np.dtype[Any]:
    """Returns the dtype of the result of `build_mapping` for data of `num_sentences` sentences."""
    return np.dtype(np.uint32 if num_sentences <= _UINT32_MAX else np.uint64)


def build_mapping(
    document_indices: NDArray[np.int64],
    sequence_lengths: NDArray[np.int32],
    *,
    num_epochs: int = 1,
    max_num_samples: int | None = None,
    max_sequence_length: int,
    short_sequence_probability: float,
    seed: int,
    min_sentences: int,
) -> NDArray[Any]:
    """Returns the sentences and target lengths of shuffled samples, like the reference's function of the same name.

    A sample takes consecutive sentences of a document until it has its target length and `min_sentences` sentences. If
    one sentence of the document would remain, the sample takes it too. Documents of several sentences are skipped if a
    sentence has more than 512 tokens. On average, one target in round(1 / short_sequence_probability) is random.

    Example:
        >>> rows = build_mapping(
        ...     np.array([0, 3, 5]), np.array([4, 4, 4, 4, 9], dtype=np.int32),
        ...     max_sequence_length=8, short_sequence_probability=0.0, seed=1, min_sentences=1,
        ... )
        >>> sorted(rows.tolist())
        [[0, 3, 8], [3, 5, 8]]

    Args:
        document_indices: int64[num_documents + 1], the first sentence of each document, then the end of the last one.
        sequence_lengths: int32[num_sentences], tokens per sentence, for all sentences of the data.
        num_epochs: maximum number of epochs.
        max_num_samples: begin no further epoch once there are this many samples; None for no limit.
        max_sequence_length: target length in tokens; random targets are in [2, max_sequence_length].
        short_sequence_probability: probability of a random target, in [0, 1].
        seed: seed in [0, 2**32).
        min_sentences: minimum number of sentences in a sample.

    Returns:
        uint32 (or uint64)[num_samples, 3]: first sentence, last sentence + 1, target length. All epochs are complete.

    Raises:
        ConfigError: an argument is out of range.
        IndexError: `document_indices` refers to sentences that do not exist.
    """
    limit = _checked_limit(seed, num_epochs, max_num_samples)
    checked_integer("max_sequence_length", max_sequence_length, at_least=2 if short_sequence_probability else 1)
    if not 0 <= short_sequence_probability <= 1:
        raise ConfigError(f"`short_sequence_probability` must be in [0, 1], got {short_sequence_probability!r}")
    rows = _native.build_mapping(
        np.ascontiguousarray(sequence_lengths),
        np.ascontiguousarray(document_indices),
        num_epochs,
        limit,
        max_sequence_length,
        short_sequence_probability,
        seed,
        min_sentences,
        mapping_dtype(len(sequence_lengths)) == np.uint64,
    )
    return np.asarray(rows)


def build_blocks_mapping(
    document_indices: NDArray[np.int64],
    sequence_lengths: NDArray[np.int32],
    title_lengths: NDArray[np.int32],
    *,
    num_epochs: int = 1,
    max_num_samples: int | None = None,
    max_sequence_length: int,
    seed: int,
    use_one_sentence_blocks: bool = False,
) -> NDArray[Any]:
    """Returns shuffled blocks of sentences for retrieval, like the reference's function of the same name.

    Works like `build_mapping`, but leaves room for the title of the document in each block, and has no random targets.

    Args:
        document_indices, sequence_lengths, num_epochs, max_num_samples, seed: see `build_mapping`.
        title_lengths: int32[num_documents], tokens of the title of each document.
        max_sequence_length: maximum number of tokens of a block together with its title.
        use_one_sentence_blocks: allow blocks of one sentence; if False, a block has at least two sentences.

    Returns:
        uint32 (or uint64)[num_blocks, 4]: first sentence, last sentence + 1, document, block number in its epoch.

    Raises:
        ConfigError: an argument is out of range.
        IndexError: `document_indices` refers to sentences that do not exist.
    """
    limit = _checked_limit(seed, num_epochs, max_num_samples)
    checked_integer("max_sequence_length", max_sequence_length, at_least=1)
    rows = _native.build_blocks_mapping(
        np.ascontiguousarray(sequence_lengths),
        np.ascontiguousarray(document_indices),
        np.ascontiguousarray(title_lengths),
        num_epochs,
        limit,
        max_sequence_length,
        seed,
        1 if use_one_sentence_blocks else 2,
        mapping_dtype(len(sequence_lengths)) == np.uint64,
    )
    return np.asarray(rows)


def _checked_limit(seed: int, num_epochs: int, max_num_samples: int | None) -> int:
    checked_integer("a seed", seed, at_least=0, below=2**32)
    checked_integer("num_epochs", num_epochs, at_least=1)
    return UNLIMITED if max_num_samples is None else checked_integer("max_num_samples", max_num_samples, at_least=0)


def sentence_mismatch(
    mapping: NDArray[Any], document_indices: NDArray[np.int64], *, max_sequence_length: int
) -> str | None:
    """Returns why a mapping does not match the documents; None if a few checked samples match."""
    count = len(mapping)
    for row in spread_evenly(count, _CHECKED_SAMPLES):
        start, stop, target = (int(value) for value in mapping[row])
        document = bisect.bisect_right(document_indices, start) - 1
        inside = 0 <= document < len(document_indices) - 1 and start < stop <= document_indices[document + 1]
        if not inside:
            return f"sample {row} has sentences [{start}, {stop}), which are not in one document of this split"
        if not 0 < target <= max_sequence_length:
            return f"sample {row} has a target of {target} tokens, which must be in [1, {max_sequence_length}]"
    return None


class SentenceSource(Protocol):
    """Data with one sequence per sentence."""

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[num_sentences], tokens per sentence."""

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """int64[num_documents + 1]; document i has sentences [document_indices[i], document_indices[i + 1])."""

    def __len__(self) -> int:
        """Returns the number of sentences."""

    def check_index(self) -> None:
        """Raises if the file that contains the lengths changed."""


class SentenceOrder(StoredOrder):
    """A `StoredOrder` whose samples are ranges of sentences.

    Args:
        source: the data.
        rows: the documents of the split; consecutive.
        num_samples: minimum number of samples, from as many epochs as needed; None for one epoch.
        longest_text: maximum number of text tokens in a sample.
        short_probability: probability that a sample has a random target, see `build_mapping`.
        seed: seed of the run.
        min_sentences: minimum number of sentences in a sample.
        store: stores the mapping.

    Raises:
        ConfigError: the documents are not consecutive.
    """

    def __init__(
        self,
        source: SentenceSource,
        rows: Rows,
        num_samples: int | None,
        *,
        longest_text: int,
        short_probability: float,
        seed: int,
        min_sentences: int,
        store: ArrayStore,
    ) -> None:
        self.source: SentenceSource = source
        self._rows = rows
        self._requested = num_samples
        self._longest_text = longest_text
        self._short_probability = short_probability
        self._seed = seed
        self._min_sentences = min_sentences
        self._is_checked = False
        exposed, count = rows.consecutive, len(source.document_indices) - 1
        if len(rows) and (exposed is None or exposed.start < 0 or exposed.stop > count):
            raise ConfigError(f"{store.name}: documents must be consecutive and in [0, {count})")
        super().__init__(store)
        if self.opened is not None:
            self.mapping()

    @property
    def _boundaries(self) -> NDArray[np.int64]:
        boundaries, rows = self.source.document_indices, self._rows.consecutive
        return boundaries[rows.start : rows.stop + 1] if rows else boundaries[:1]

    def specs(self) -> dict[str, ArraySpec]:
        return {"sample_index": ArraySpec(mapping_dtype(len(self.source)), (None, 3))}

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the mapping; raises ConfigError if samples are requested, but no document gives a sample."""
        rows = build_mapping(
            self._boundaries,
            self.source.sequence_lengths,
            num_epochs=1 if self._requested is None else _MOST_EPOCHS,
            max_num_samples=self._requested,
            max_sequence_length=self._longest_text,
            short_sequence_probability=self._short_probability,
            seed=self._seed,
            min_sentences=self._min_sentences,
        )
        if self._requested and not len(rows):
            hint = "tokenize with `split_sentences`, or raise the weight of this split"
            raise ConfigError(self._no_samples(), hint=hint)
        yield "sample_index", rows

    def mismatch(self, arrays: Arrays) -> str | None:
        found = len(arrays["sample_index"])
        if self._requested is not None and found < self._requested:
            return f"the index has {found} samples, but {self._requested} are requested"
        return sentence_mismatch(arrays["sample_index"], self._boundaries, max_sequence_length=self._longest_text)

    def _no_samples(self) -> str:
        return (
            f"{self.store.name}: none of {len(self._rows)} documents gives a sample: each has fewer than "
            f"{self._min_sentences} sentences, or several sentences, one of them longer than 512 tokens"
        )

    def mapping(self) -> NDArray[Any]:
        """Returns uint32[num_samples, 3]: first sentence, last sentence + 1, target length; warns if empty."""
        rows = self.arrays["sample_index"]
        if not self._is_checked:
            self._is_checked = True
            if self._requested is None and not len(rows):
                warn_short(self._no_samples())
        return rows

    @property
    def num_samples(self) -> int:
        """The number of samples; opens the mapping."""
        return len(self.mapping())

    def sentences(self, positions: NDArray[np.int64]) -> tuple[SpanBatch, NDArray[np.int64]]:
        """Returns the sentences of samples as spans, and the target length of each sample in tokens, int64[count].

        Raises:
            IndexError: the mapping does not match the data.
        """
        samples = self.mapping()[positions].astype(np.int64)
        starts, stops, targets = samples[:, 0], samples[:, 1], samples[:, 2]
        counts = stops - starts
        if ((counts < 0) | (stops > len(self.source))).any():
            raise IndexError(f"sentences beyond the {len(self.source)} sentences of the data")
        offsets = np.zeros(len(samples) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        sentences = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        lengths = self.source.sequence_lengths[sentences].astype(np.int64)
        self.source.check_index()
        return SpanBatch(sentences, np.zeros_like(sentences), lengths, offsets), np.ascontiguousarray(targets)
