"""N-grams of words: the index of some texts, and its search in tokens.

A word is a run of letters, digits and marks after Unicode's NFKC and case folding. Apostrophes and invisible code
points are dropped; every other code point ends a word. In scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer,
Burmese) each code point is a word. Words are compared after their hashes match, so there are no false matches.
"""

from __future__ import annotations

import unicodedata
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native

Int64s = NDArray[np.int64]

_BETWEEN, _DROPPED, _LETTER, _MARK, _ALONE, _FOLDED, _CAREFUL = range(7)  # `CodePointKind` of `native/ngrams.hpp`
_APOSTROPHES = frozenset("'\u2018\u2019\u02bc")
_WITHOUT_SPACES = (
    *((0x0E00, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800)),  # Thai and Lao; Burmese; Khmer
    *((0x3005, 0x3008), (0x3040, 0x3130), (0x31A0, 0x31C0), (0x31F0, 0x3200)),  # kana and bopomofo
    *((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x323B0)),  # ideographs
)
# Hangul vowels and finals, which merge with the previous letter by a rule, not by a table.
_JAMO = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))
_UNASSIGNED = ("Cn", "Co", "Cs")  # and private or surrogates: they end a word
_COPIED_BYTES = 16  # the kernel copies 16 bytes at a time


class BytesTable:
    """Byte strings in one buffer, such as the bytes of each token of a vocabulary, by token id."""

    def __init__(self, rows: list[bytes]) -> None:
        self.offsets: Int64s = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        self.content: NDArray[np.uint8] = np.frombuffer(b"".join(rows) + bytes(_COPIED_BYTES), dtype=np.uint8)


class NgramIndex:
    """The n-grams of some texts; needs about 60 MB of memory per million n-grams. Thread-safe; not picklable.

    An n-gram has `length` words, at most 50; a text with fewer words, but at least `least`, is one n-gram.

    Args:
        content: uint8, the UTF-8 bytes of all texts.
        offsets: int64[num_texts + 1], the start of each text in `content`, and the end.
        length, least: numbers of words.
    """

    def __init__(self, content: NDArray[np.uint8], offsets: Int64s, *, length: int, least: int) -> None:
        kinds, points, folded = _folding()
        self._native = _native.NgramIndex(kinds, points, folded.offsets, folded.content, length, least)
        words: dict[bytes, bytes] = {}
        while unknown := self._native.build(content, offsets, [*words], [*words.values()]):
            words = {stretch: _normalise_stretch(stretch) for stretch in unknown}
        self.num_grams: int
        self.word_offsets: Int64s  # int64[num_texts + 1], the first word of each text, and the end
        self.gram_offsets: Int64s  # int64[num_texts + 1], the first n-gram of each text, and the end
        self.grams: NDArray[np.uint32]  # uint32[total], below num_grams; equal n-grams have equal numbers
        self.num_grams, self.word_offsets, ranges, self.gram_offsets, self.grams = self._native.numbering()
        self.word_ranges: NDArray[np.uint32] = ranges.reshape(-1, 2)  # [num_words, 2], bytes [start, stop) in the text

    def search(
        self, tokens: NDArray[np.uint32], ends: Int64s, table: BytesTable, *, cut: tuple[bool, bool] = (False, False)
    ) -> Int64s:
        """Finds all n-grams in documents: int64[num_hits, 5], sorted by document and word.

        Columns: document, index of the n-gram's last word in the document, first token, token after the last, n-gram
        index. `tokens` are the concatenated documents; `ends`, int64[num_documents], are the document ends. `cut`: the
        start of the first document is missing, and the end of the last one, so that a word at the cut is ignored.
        Raises IndexError for a token that is not in `table`.
        """
        found, wanted, words = [np.empty((0, 5), dtype=np.int64)], np.arange(len(ends)), dict[bytes, bytes]()
        given = (tokens, ends, *cut)
        while len(wanted):
            known = (table.content, table.offsets, [*words], [*words.values()])
            hits, wanted, unknown = self._native.search(*given, wanted, *known)
            found.append(hits.reshape(-1, 5))
            words = {stretch: _normalise_stretch(stretch) for stretch in unknown}
        return np.concatenate(found)


def words_of(text: str) -> list[str]:
    r"""Splits a text into words, normalised as they are compared.

    Example:
        >>> words_of("Don’t PANIC:\n“Ｆｕｌｌ-width”, 中文.")
        ['dont', 'panic', 'full', 'width', '中', '文']
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    shown = "".join(letter for letter in folded if _kind_of(letter) != _DROPPED)
    spaced = ""
    for letter in unicodedata.normalize("NFKC", shown):
        kind = _kind_of(letter)
        if kind == _ALONE:
            spaced += f" {letter} "
        elif kind == _BETWEEN:
            spaced += " "
        elif kind == _LETTER or spaced[-1:].strip():  # a word cannot start with a mark
            spaced += letter
    return spaced.split()


def _kind_of(letter: str) -> int:
    category = unicodedata.category(letter)
    if letter in _APOSTROPHES or category == "Cf":
        return _DROPPED
    is_mark = category[0] == "M"
    if not (is_mark or letter.isalnum()):
        return _BETWEEN
    if any(start <= ord(letter) < stop for start, stop in _WITHOUT_SPACES):
        return _ALONE
    return _MARK if is_mark else _LETTER


@lru_cache(maxsize=1 << 16)
def _normalise_stretch(stretch: bytes) -> bytes:
    return " ".join(words_of(stretch.decode(errors="replace"))).encode()


@cache
def _folding() -> tuple[NDArray[np.uint8], NDArray[np.uint32], BytesTable]:
    """Returns the kinds of code points and the replacements of folded ones; takes 0.4 s, then cached.

    Returns:
        kinds, uint8[0x110001], a `CodePointKind` by code point, the last one for invalid UTF-8; the folded code points,
        uint32[num_folded], ascending; the replacement of each.
    """
    kinds = np.full(0x110001, _BETWEEN, dtype=np.uint8)
    letters = [letter for letter in map(chr, range(0x80, 0x110000)) if unicodedata.category(letter) not in _UNASSIGNED]
    pairs = [unicodedata.decomposition(letter).split() for letter in letters]
    merging = {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and pair[0][0] != "<"} | set(map(chr, _JAMO))
    folded: dict[int, str] = {}
    for letter in letters:
        before = unicodedata.normalize("NFKC", letter)
        text = unicodedata.normalize("NFKC", before.casefold())
        found = {_kind_of(each) for each in text}
        if any(each in merging or unicodedata.combining(each) for each in before + text):
            kinds[ord(letter)] = _CAREFUL
        elif text == letter or found in ({_BETWEEN}, {_DROPPED}):
            kinds[ord(letter)] = found.pop()
        else:
            kinds[ord(letter)] = _FOLDED
            folded[ord(letter)] = text
    return kinds, np.array(list(folded), dtype=np.uint32), BytesTable([text.encode() for text in folded.values()])
