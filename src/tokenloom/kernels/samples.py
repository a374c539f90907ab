"""Kernels of samples: their tokens, and how they are masked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom._native import Masker
from tokenloom.kernels.arrays import Int64s
from tokenloom.kernels.storage import Watch


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


def gather_spans(
    data: NDArray[np.uint8],
    pointers: Int64s,
    *,
    dtype_code: int,
    sequences: Int64s,
    starts: Int64s,
    lengths: Int64s,
    out: NDArray[np.generic],
    watch: Watch | None = None,
) -> None:
    """Copies the tokens of the spans, back to back, from mapped bytes into `out`.

    Raises:
        ChangedFileError: a file that `watch` looks after lost them.
    """
    native = None if watch is None else watch.native
    _native.gather_spans(data, pointers, dtype_code, sequences, starts, lengths, out, native)
