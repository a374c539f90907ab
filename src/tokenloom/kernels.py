"""The compiled kernels, with their arguments checked and their errors worded. The only importer of `_native`.

All of them release the GIL while they work. Arrays are C-contiguous; a wrong dtype or shape is our own bug and shows
as a `TypeError` or `ValueError` of the extension.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom._native import (
    BertFiller,
    GptFiller,
    MappedSamples,
    Masker,
    PackReader,
    RecordBuilder,
    RoleParts,
    SpanReader,
    T5Filler,
    WindowReader,
    json_texts,
    line_texts,
    recycled_bytes,
    reserve,
    start_writing_back,
)

__all__ = [
    "BertFiller",
    "GptFiller",
    "LegacyRandom",
    "MappedSamples",
    "Masker",
    "PackReader",
    "RecordBuilder",
    "RoleParts",
    "SpanReader",
    "T5Filler",
    "WindowReader",
    "add_pieces",
    "blending_counts",
    "build_blending_indices",
    "build_blocks_mapping",
    "build_mapping",
    "build_sample_index",
    "count_packs",
    "gather_spans",
    "json_texts",
    "line_texts",
    "make_masker",
    "map_extents",
    "map_file",
    "next_fit",
    "pack_documents",
    "pack_to_levels",
    "recycled_bytes",
    "reserve",
    "start_writing_back",
]

Int64s = NDArray[np.int64]


class LegacyRandom:
    """The shuffles of `numpy.random.RandomState(seed)`, bit for bit, several times faster.

    Not safe from several threads: the order of the calls is part of the result.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 2**32:  # RandomState has the same bound
            message = f"seed must be in [0, 2**32), got {seed!r}"
            raise ValueError(message)
        self._generator = _native.Mt19937(seed)

    def shuffle(self, values: NDArray[Any]) -> None:
        """Shuffles an int32, uint32 or int64 array of one axis in place; one draw per element, memory O(1)."""
        self._generator.shuffle(values)

    def shuffle_windows(
        self,
        stream: NDArray[Any],
        lengths: NDArray[np.int32],
        *,
        parts: Int64s,
        window_length: int,
        extra: int,
        num_windows: int,
        dtype: np.dtype[Any],
    ) -> NDArray[Any]:
        """Shuffles a stream of documents in place, part by part, and returns what `build_sample_index` returns of it.

        The same as one after the other, in little more than the time of the shuffle: it works from the back, and a
        thread finds the windows behind it.

        Args:
            stream: rows of `lengths`, int32 or int64.
            lengths: int32[num_sequences], tokens per sequence.
            parts: int64[num_parts, 2], documents and tokens of each part of the stream that is shuffled by itself.
            window_length, extra, num_windows, dtype: as of `build_sample_index`.

        Raises:
            IndexError: as of `build_sample_index`; or a part does not hold as many tokens as said.
        """
        index: NDArray[Any] = np.empty((num_windows + 1, 2), dtype=dtype)
        lengths = np.ascontiguousarray(lengths)
        _native.shuffle_windows(self._generator, stream, parts, lengths, window_length, extra, index)
        return index


def build_sample_index(
    lengths: NDArray[np.int32],
    document_index: NDArray[Any],
    *,
    window_length: int,
    extra: int,
    num_windows: int,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Returns the starts of all windows and the end of the last: dtype[num_windows + 1, 2].

    A row is (position in `document_index`, token offset in that document). One pass, O(documents + windows).

    Args:
        lengths: int32[num_sequences], tokens per sequence.
        document_index: the stream, as rows of `lengths`.
        window_length: tokens from one window's start to the next.
        extra: tokens that a window reads beyond its length, 0 or 1.
        num_windows: how many; the last may be partial.
        dtype: of the result.

    Raises:
        IndexError: the document index names a sequence that does not exist, or the stream is too short.
    """
    index: NDArray[Any] = np.empty((num_windows + 1, 2), dtype=dtype)
    _native.build_sample_index(
        np.ascontiguousarray(lengths),
        np.ascontiguousarray(document_index),
        window_length,
        extra,
        index,
    )
    return index


def build_mapping(
    lengths: NDArray[np.int32],
    boundaries: Int64s,
    *,
    num_epochs: int,
    max_num_samples: int,
    max_length: int,
    short_probability: float,
    seed: int,
    min_sentences: int,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Returns (first sentence, one past the last, target length) of each sample: dtype[num_samples, 3].

    One pass per epoch, a few ns per sentence; the rows exist once.

    Args:
        lengths: int32[num_sentences], tokens per sentence.
        boundaries: int64[num_documents + 1]; document d owns sentences [boundaries[d], boundaries[d + 1]).
        num_epochs: at most.
        max_num_samples: no further epoch begins once there are so many.
        max_length: tokens that a sample is meant to have.
        short_probability: of a shorter target.
        seed: in [0, 2**32).
        min_sentences: in a sample.
        dtype: of the result, uint32 or uint64.

    Raises:
        IndexError: the boundaries name sentences that do not exist.
        OverflowError: there are more sentences or documents than the dtype counts.
    """
    return np.asarray(
        _native.build_mapping(
            np.ascontiguousarray(lengths),
            np.ascontiguousarray(boundaries),
            num_epochs,
            max_num_samples,
            max_length,
            short_probability,
            seed,
            min_sentences,
            dtype == np.uint64,
        )
    )


def build_blocks_mapping(
    lengths: NDArray[np.int32],
    boundaries: Int64s,
    title_lengths: NDArray[np.int32],
    *,
    num_epochs: int,
    max_num_samples: int,
    max_length: int,
    seed: int,
    min_sentences: int,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Returns (first sentence, one past the last, document, number in its epoch) of each block: dtype[num_blocks, 4].

    Args and errors are those of `build_mapping`; title_lengths: int32[num_documents], tokens that each block of a
    document leaves free.
    """
    return np.asarray(
        _native.build_blocks_mapping(
            np.ascontiguousarray(lengths),
            np.ascontiguousarray(boundaries),
            np.ascontiguousarray(title_lengths),
            num_epochs,
            max_num_samples,
            max_length,
            seed,
            min_sentences,
            dtype == np.uint64,
        )
    )


def make_masker(
    *,
    pieces: NDArray[np.uint8],
    cls_id: int,
    sep_id: int,
    masking_probability: float,
    ngram_cdf: NDArray[np.float64],
    geometric_probability: float,
    whole_words: bool,
    permute: bool,
) -> Masker:
    """Returns what masks samples, for `BertFiller` and `T5Filler`.

    Args:
        pieces: uint8[num_ids], what an id stands for: 0 nothing, 1 the start of a word, 2 its continuation.
        cls_id: never masked; -1 for none. As is sep_id.
        masking_probability: share of the tokens that are masked at most.
        ngram_cdf: float64[longest], the probability of an n-gram of at most i + 1 words.
        geometric_probability: draw n-grams from this geometric distribution instead; 0 for not.
        whole_words: a word and its continuations are masked together.
        permute: also shuffle as many tokens that are not masked.
    """
    return _native.make_masker(
        pieces=pieces,
        cls_id=cls_id,
        sep_id=sep_id,
        masking_probability=masking_probability,
        ngram_cdf=ngram_cdf.tolist(),
        geometric_probability=geometric_probability,
        whole_words=whole_words,
        permute=permute,
    )


def add_pieces(lengths: NDArray[np.int32], histogram: Int64s, *, sequence_length: int, extra: int) -> tuple[int, int]:
    """Adds to `histogram` how many pieces of each length these documents are packed as; about 2 ns per document.

    Args:
        lengths: int32[num_documents], tokens per document.
        histogram: int64[sequence_length + extra + 1], changed.
        sequence_length: tokens of a sample.
        extra: tokens that a sample reads beyond its length, 0 or 1.

    Returns:
        How many of the documents have tokens, and how many are cut into more than one piece.

    Raises:
        IndexError: a length is negative.
    """
    num_documents, num_split = _native.add_pieces(lengths, sequence_length, extra, histogram)
    return int(num_documents), int(num_split)


def count_packs(histogram: Int64s) -> int:
    """Returns how many rows `pack_documents` makes of so many pieces of each length, without packing them."""
    return _native.count_packs(histogram)


def pack_documents(
    lengths: NDArray[np.int32],
    documents: NDArray[Any],
    *,
    sequence_length: int,
    extra: int,
    first_piece: int,
    packs: NDArray[Any],
    pieces: NDArray[Any],
) -> None:
    """Packs documents into rows by optimised best-fit decreasing; about 0.1 µs each. Deterministic.

    Args:
        lengths: int32[num_sequences], tokens per sequence.
        documents: the rows of `lengths` to pack; of equal lengths, the earlier one is placed first.
        sequence_length: tokens of a sample.
        extra: tokens that a sample reads beyond its length, 0 or 1.
        first_piece: the number of the first piece.
        packs: [num_packs], filled with the number of the first piece of each row.
        pieces: [num_pieces, 2], filled with (document, start) of each piece; of the dtype of `packs`.

    Raises:
        IndexError: a document does not exist, or they make other numbers of rows or pieces.
    """
    _native.pack_documents(lengths, documents, sequence_length, extra, first_piece, packs, pieces)


def map_file(path: str) -> NDArray[np.uint8]:
    """Returns a read-only view of a whole file, uint8[size], without keeping the file open; one open and one stat.

    The mapping lives as long as any view of it.

    Raises:
        OSError: the file cannot be opened or mapped.
    """
    return _native.map_file(os.fsencode(path))


def map_extents(paths: Sequence[str], extents: Int64s, *, num_bytes: int) -> tuple[NDArray[np.uint8], Int64s]:
    """Returns files as one read-only view, uint8[num_bytes], and (size, ns of last change) of each: int64[files, 2].

    Args:
        paths: of the files.
        extents: int64[2, files], where each begins, a multiple of the page size, and its size; another one is left out.
        num_bytes: of the view; what no file covers reads as zeros.

    Raises:
        OSError: the file it names cannot be opened or mapped.
    """
    found = np.full((2, len(paths)), -1, dtype=np.int64)
    encoded = [os.fsencode(path) for path in paths]
    try:
        return _native.map_extents(encoded, extents[0], extents[1], num_bytes, found[0], found[1]), found.T
    except OSError as error:
        raise OSError(error.errno, error.strerror, paths[int(np.argmax(found[0] < 0))]) from None


def build_blending_indices(
    weights: NDArray[np.float64], *, size: int, sizes: Int64s | None = None
) -> tuple[NDArray[Any], Int64s]:
    """Returns which dataset each sample of a blend comes from, and how many that dataset gave before.

    At step s the dataset with the largest `weight * max(s, 1) - given`, in float64 without fused multiply-add, comes
    next; the lowest number on ties. About 10 ns per sample for two datasets, 100 for thousands, shared by all cores.

    Args:
        weights: float64[num_datasets], adding up to 1.
        size: samples in all.
        sizes: int64[num_datasets], what each dataset gives at most; adding up to `size`. None: without bounds.

    Returns:
        dataset_index: int16[size], or int32 where numbers exceed int16.
        sample_index: int64[size].
    """
    wide = len(weights) > np.iinfo(np.int16).max
    dataset_index: NDArray[Any] = np.empty(size, dtype=np.int32 if wide else np.int16)
    sample_index = np.empty(size, dtype=np.int64)
    _native.build_blending_indices(weights, sizes, dataset_index, sample_index, _blend_threads(size), _BLEND_WARM_UP)
    return dataset_index, sample_index


def blending_counts(weights: NDArray[np.float64], size: int) -> Int64s:
    """Returns how many of the first `size` samples of a weighted blend each dataset gives: int64[num_datasets]."""
    counts = np.zeros(len(weights), dtype=np.int64)
    _native.blending_counts(weights, size, counts, _blend_threads(size), _BLEND_WARM_UP)
    return counts


def _blend_threads(size: int) -> int:
    """Returns how many threads share a blend: as many as there are cores, as long as each has enough to do."""
    return max(1, min(len(os.sched_getaffinity(0)), size // _BLEND_SAMPLES_PER_THREAD))


_BLEND_SAMPLES_PER_THREAD = 1 << 19
_BLEND_WARM_UP = 1 << 15
"""Steps a thread takes before its own, to get from guessed to exact counts; measured: nearly always below 4096."""


def gather_spans(
    data: NDArray[np.uint8],
    pointers: Int64s,
    *,
    dtype_code: int,
    sequences: Int64s,
    starts: Int64s,
    lengths: Int64s,
    out: NDArray[np.generic],
) -> None:
    """Copies the tokens of the spans, back to back, from mapped bytes into `out`."""
    _native.gather_spans(data, pointers, dtype_code, sequences, starts, lengths, out)


def next_fit(slots: NDArray[np.int32], *, capacity: int, filled: int) -> tuple[Int64s, int]:
    """Returns the items that begin a row when each joins the row before it where it fits, and the last row's filling.

    Args:
        slots: int32[num_items], what each takes, at most `capacity`.
        capacity: of a row.
        filled: how full the row is that the first item may join; -1 if there is none.
    """
    starts, filled = _native.next_fit(slots, capacity, filled)
    return starts, filled


def pack_to_levels(
    lengths: Int64s,
    costs: Int64s,
    *,
    capacity: int,
    widths: Int64s,
    levels: Int64s,
    bases: Int64s,
    num_ranks: int,
    by_length: bool,
) -> Int64s | None:
    """Returns the pack of each sub-sample, int64[num_subsamples], such that costs are even inside each step.

    Packs are numbered step by step, and none is empty. About 250 ns per sub-sample. None if not all found room.

    Args:
        lengths: int64[num_subsamples], tokens, at least 1 and at most `capacity`; longest first.
        costs: int64[num_subsamples], of the same; a longer one costs no less. They add up to less than 2**61.
        capacity: tokens of a pack at most.
        widths: int64[num_steps], packs of each step; together no more than sub-samples.
        levels: int64[num_steps], cost per rank that a step has anyway; falling.
        bases: int64[num_steps], cost of all ranks that a step has anyway.
        num_ranks: of a step, those without a pack of these included.
        by_length: fill packs one by one, longest first, whatever they cost, for the fewest packs.
    """
    pack_of = np.empty(len(lengths), dtype=np.int64)
    fits = _native.pack_to_levels(lengths, costs, capacity, widths, levels, bases, num_ranks, by_length, pack_of)
    return pack_of if fits else None
