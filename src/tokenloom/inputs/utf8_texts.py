"""Stores many texts in one UTF-8 buffer; Python strings are created on access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Utf8Texts(Sequence[str]):
    """A sequence of texts in one UTF-8 buffer, decoded on each access. Thread-safe.

    Instances compare by identity; to compare contents, convert to lists.

    Attributes:
        content: uint8[num_bytes], all texts concatenated; each text is valid UTF-8. May be a view.
        offsets: int64[num_texts + 1], ascending from 0; text i is `content[offsets[i] : offsets[i + 1]]`.

    Example:
        >>> texts = Utf8Texts(content=np.frombuffer(b"n\\xc3\\xa9e", dtype=np.uint8), offsets=np.array([0, 3, 4]))
        >>> texts[0], texts[-1], texts[:1], list(texts)
        ('né', 'e', ['né'], ['né', 'e'])
    """

    content: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]  # handles negative indices and IndexError as lists do
        return str(self.content.data[self.offsets[number] : self.offsets[number + 1]], "utf-8")

    def __iter__(self) -> Iterator[str]:
        return (str(data, "utf-8") for data in self.encoded())

    def with_others(self, texts: Sequence[str], num_before: NDArray[np.int64]) -> Utf8Texts:
        """Returns a copy with `texts` inserted: `texts[k]` precedes the text that has index `num_before[k]` in `self`.

        `num_before` is int64[len(texts)], ascending. The texts must not contain lone surrogates.
        """
        content = self.content.data
        others = [text.encode() for text in texts]
        pieces: list[bytes | memoryview] = []
        done = 0
        for start, other in zip(self.offsets[num_before].tolist(), others, strict=True):
            pieces += (content[done:start], other)
            done = start
        lengths = np.insert(np.diff(self.offsets), num_before, list(map(len, others)))
        return Utf8Texts(
            content=np.frombuffer(b"".join([*pieces, content[done:]]), dtype=np.uint8),
            offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)]),
        )

    def encoded(self) -> Iterator[memoryview]:
        """Yields the UTF-8 bytes of each text, as views."""
        content = self.content.data
        return (content[start:stop] for start, stop in pairwise(self.offsets.tolist()))


def utf8_texts(texts: Sequence[str]) -> Utf8Texts:
    """Encodes texts into one buffer; the texts must not contain lone surrogates."""
    if isinstance(texts, Utf8Texts):
        return texts
    rows = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Utf8Texts(content=np.frombuffer(b"".join(rows), dtype=np.uint8), offsets=offsets)


def joined_texts(parts: Sequence[Sequence[str]]) -> Sequence[str]:
    """Concatenates one or more sequences of texts; returns `Utf8Texts` if all parts are `Utf8Texts`, else a list."""
    if len(parts) == 1:
        return parts[0]
    in_buffers = [part for part in parts if isinstance(part, Utf8Texts)]
    if len(in_buffers) < len(parts):
        return [text for part in parts for text in part]
    starts = np.cumsum([0, *(len(part.content) for part in in_buffers)], dtype=np.int64)
    offsets = [part.offsets[:-1] + start for part, start in zip(in_buffers, starts, strict=False)]
    content = np.concatenate([part.content for part in in_buffers])
    return Utf8Texts(content=content, offsets=np.concatenate([*offsets, starts[-1:]]))


def utf8_of(texts: Sequence[str]) -> Iterator[bytes | memoryview]:
    """Yields the UTF-8 bytes of each text; the texts must not contain lone surrogates."""
    return texts.encoded() if isinstance(texts, Utf8Texts) else (text.encode() for text in texts)


def encodable(text: str) -> str:
    """Replaces each lone surrogate by `?`, like Python's `errors="replace"`."""
    return text.encode("utf-8", "replace").decode()
