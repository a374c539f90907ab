"""N-grams of words of texts, searched in documents of tokens: calls of the kernels in `native/ngrams.hpp`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s

_PADDING = 16  # the kernel copies 16 bytes at a time
Normalise = Callable[[bytes], bytes]  # UTF-8 to its words with a space between two; called from several threads


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Folding:
    """The role of code points in words; see `native/ngrams.hpp`.

    Attributes:
        kinds: uint8[0x110001], the `CodePointKind` of each code point, and of bytes that are none.
        points: uint32[num_folded], rising: code points that are replaced.
        offsets: int64[num_folded + 1], the start of each replacement in `content`, and the end.
        content: uint8, the replacements in UTF-8.
    """

    kinds: NDArray[np.uint8]
    points: NDArray[np.uint32]
    offsets: Int64s
    content: NDArray[np.uint8]


class TokenBytes:
    """The bytes of each token of a vocabulary, by id."""

    def __init__(self, tokens: list[bytes]) -> None:
        self.offsets: Int64s = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
        self.content: NDArray[np.uint8] = np.frombuffer(b"".join(tokens) + bytes(_PADDING), dtype=np.uint8)


class NgramIndex:
    """The n-grams of some texts: some 60 MB for a million. Thread-safe; not picklable.

    Args:
        content: uint8, texts in UTF-8, back to back.
        offsets: int64[num_texts + 1], rising from 0: the start of each, and the end.
        folding: the role of code points in words.
        normalise: returns the words of a stretch whose code points may merge.
        length: words of an n-gram, 50 at most.
        least: a text with fewer words than `length`, but at least these, is one n-gram.

    Attributes:
        word_offsets: int64[num_texts + 1], the first word of each text, and the end.
        word_ranges: uint32[num_words, 2], the bytes [start, stop) of each word in its text.
        gram_offsets: int64[num_texts + 1], the first n-gram of each text, and the end.
        grams: uint32[total], the number of each n-gram, below `num_grams`; equal ones have one number.
    """

    def __init__(
        self,
        content: NDArray[np.uint8],
        offsets: Int64s,
        folding: Folding,
        normalise: Normalise,
        *,
        length: int,
        least: int,
    ) -> None:
        self._normalise = normalise
        self._native = _native.NgramIndex(
            folding.kinds, folding.points, folding.offsets, folding.content, length, least
        )
        stretches: list[bytes] = []
        while unknown := self._native.build(content, offsets, stretches, [normalise(each) for each in stretches]):
            stretches = list(dict.fromkeys(unknown))
        self.num_grams: int
        self.word_offsets: Int64s
        self.gram_offsets: Int64s
        self.grams: NDArray[np.uint32]
        self.num_grams, self.word_offsets, ranges, self.gram_offsets, self.grams = self._native.numbering()
        self.word_ranges: NDArray[np.uint32] = ranges.reshape(-1, 2)

    def search(
        self,
        tokens: NDArray[np.uint32],
        ends: Int64s,
        table: TokenBytes,
        *,
        begins_inside: bool = False,
        ends_inside: bool = False,
    ) -> Int64s:
        """Returns all n-grams in documents: int64[num_hits, 5], in order.

        Columns: document; number of the last word in it; first token in it, and one past the last; n-gram number.

        Args:
            tokens: uint32, documents back to back.
            ends: int64[num_documents], the end of each.
            table: the bytes of the tokens.
            begins_inside, ends_inside: whether the first document lacks its beginning, and the last one its end.

        Raises:
            IndexError: a token is not in the table.
        """
        found, wanted, stretches = [], np.arange(len(ends)), list[bytes]()
        while len(wanted):
            words = [self._normalise(each) for each in stretches]
            hits, wanted, unknown = self._native.search(
                tokens, ends, begins_inside, ends_inside, wanted, table.content, table.offsets, stretches, words
            )
            found.append(hits.reshape(-1, 5))
            stretches = list(dict.fromkeys(unknown))
        joined: Int64s = np.concatenate([np.empty((0, 5), dtype=np.int64), *found])
        return joined
