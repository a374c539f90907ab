"""Kernels of samples: their tokens, and how they are masked."""

from __future__ import annotations

from collections.abc import Sequence

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


def fill_attention(
    cu_seqlens: NDArray[np.int32],
    document_ids: NDArray[np.int32] | None,
    block_lists: Sequence[NDArray[np.int32]],
    *,
    loss_mask: NDArray[np.float32] | None,
    seen_stop: NDArray[np.int32] | None,
    length: int,
    block_size: int,
    window: int | None,
    rows: Int64s | None,
) -> None:
    """Fills the document of each token, and the blocks of the mask, from where documents begin.

    Args:
        cu_seqlens: int32[..., num_bounds], boundaries from 0 to the tokens of a row.
        document_ids: int32[..., length], filled; or None.
        block_lists: int32[..., blocks] and [..., blocks, blocks] of partial blocks, and of full ones, filled; or none.
        loss_mask: float32[..., length], what `seen_stop` is filled from: the tokens of a document up to the first one
            with loss see each other; None to take it as it is.
        seen_stop: int32[..., length], where what each token sees ends, rising; None for behind itself.
        length: tokens of a row.
        block_size: tokens of a block.
        window: how many tokens a token sees; None for all of its document before it.
        rows: int64[count], the rows to fill; None for all.

    Raises:
        ValueError: boundaries do not rise from 0 to the end of their row.
    """
    numbers = (cu_seqlens.shape[-1], length, block_size, window or 0)
    _native.fill_attention(cu_seqlens, *numbers, rows, document_ids, loss_mask, seen_stop, *block_lists)


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
