"""The byte layout of the `.bin`/`.idx` pair: the one place that knows offsets, dtype codes and token width.

FORMAT.md describes the same in prose. The format is that of Megatron-Core's IndexedDataset.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.setting_types import checked_path
from tokenloom.storage.addresses import can_be_path
from tokenloom.storage.local import Bytes
from tokenloom.storage.secrets import admit

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
HEADER_BYTES = _HEADER.size  # 34

UINT16_VOCABULARY_LIMIT = 65500
"""Below this vocabulary size tokens are stored as uint16, from it on as int32: the reference writer's rule."""


class DType(Enum):
    """The element types of a `.bin` file, by the code that the `.idx` header holds."""

    uint8 = 1
    int8 = 2
    int16 = 3
    int32 = 4
    int64 = 5
    float64 = 6
    float32 = 7
    uint16 = 8

    @classmethod
    def code_from_dtype(cls, value: Any) -> int:
        """Returns the header code of a NumPy dtype or scalar type."""
        try:
            name = "None" if value is None else np.dtype(value).name  # NumPy would take None for float64
        except TypeError:
            name = str(value)
        if name not in cls.__members__:
            message = f"dtype {name!r} has no code in the format; expected one of {', '.join(cls.__members__)}"
            raise ConfigError(message)
        return cls[name].value

    @classmethod
    def dtype_from_code(cls, value: int) -> type[Any]:
        """Returns the NumPy scalar type of a header code; `ValueError` for a code that does not exist."""
        scalar: type[Any] = getattr(np, cls(value).name)
        return scalar

    @staticmethod
    def size(key: Any) -> int:
        """Returns the bytes per element of a code or a dtype."""
        if isinstance(key, int):
            key = DType.dtype_from_code(key)
        itemsize: int = np.dtype(key).itemsize
        return itemsize

    @staticmethod
    def optimal_dtype(cardinality: int | None) -> type[Any]:
        """Returns the dtype tokens are stored as for a vocabulary size, None if it is not known."""
        if cardinality is not None and cardinality < UINT16_VOCABULARY_LIMIT:
            return np.uint16
        return np.int32


def bin_path(path_prefix: str) -> str:
    """Returns the path of the tokens of a prefix."""
    return path_prefix + ".bin"


def idx_path(path_prefix: str) -> str:
    """Returns the path of the index of a prefix."""
    return path_prefix + ".idx"


def column_path(path_prefix: str, name: str) -> str:
    """Returns the path of a column beside a pair."""
    return f"{path_prefix}.{name}.npy"


def columns_path(path_prefix: str) -> str:
    """Returns the path of what describes the columns beside a pair."""
    return path_prefix + ".columns.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first 34 bytes of an `.idx` file, and where the arrays behind them lie.

    `num_boundaries` is the header's "document count": one more than the documents, for a dataset begun by 0.
    """

    dtype_code: int
    num_sequences: int
    num_boundaries: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return _dtype_of(self.dtype_code)

    @property
    def lengths_offset(self) -> int:
        return HEADER_BYTES

    @property
    def pointers_offset(self) -> int:
        return self.lengths_offset + 4 * self.num_sequences

    @property
    def boundaries_offset(self) -> int:
        return self.pointers_offset + 8 * self.num_sequences

    @property
    def modes_offset(self) -> int:
        return self.boundaries_offset + 8 * self.num_boundaries

    def idx_bytes(self, *, multimodal: bool) -> int:
        """Returns the size the `.idx` file must have."""
        return self.modes_offset + (self.num_sequences if multimodal else 0)

    def pack(self) -> bytes:
        """Returns the header's bytes."""
        return _HEADER.pack(MAGIC, VERSION, self.dtype_code, self.num_sequences, self.num_boundaries)


def parse_header(data: bytes, *, path: str) -> Header:
    """Reads the header from the first bytes of an `.idx` file."""
    if len(data) < HEADER_BYTES:
        message = f"`{path}`: expected a header of {HEADER_BYTES} bytes, found a file of {len(data)} bytes"
        raise DatasetFormatError(message, hint=_rebuild_hint(path))
    magic, version, code, num_sequences, num_boundaries = _HEADER.unpack(data[:HEADER_BYTES])
    if magic != MAGIC:
        message = f"`{path}`: expected the magic bytes {MAGIC!r}, found {magic!r}"
        raise DatasetFormatError(message, hint="this is not the index of a .bin/.idx pair")
    if version != VERSION:
        message = f"`{path}`: expected version {VERSION}, found {version}"
        raise DatasetFormatError(message, hint="the file was written by something newer, or is damaged")
    if code not in DType._value2member_map_:
        message = f"`{path}`: expected a dtype code from 1 to 8, found {code}"
        raise DatasetFormatError(message, hint=_rebuild_hint(path))
    return Header(dtype_code=code, num_sequences=num_sequences, num_boundaries=num_boundaries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The contents of an `.idx` file: its header, and its arrays as read-only views of its bytes.

    Attributes:
        header: the header.
        sequence_lengths: int32[num_sequences], tokens per sequence.
        sequence_pointers: int64[num_sequences], byte offset of each sequence in the `.bin` file.
        document_indices: int64[num_documents + 1]; document d owns sequences [indices[d], indices[d + 1]).
        sequence_modes: int8[num_sequences], or None for text-only data.
        has_modes: whether the file holds modes, read or not.
    """

    header: Header
    sequence_lengths: NDArray[np.int32]
    sequence_pointers: NDArray[np.int64]
    document_indices: NDArray[np.int64]
    sequence_modes: NDArray[np.int8] | None
    has_modes: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens."""
        return self.header.dtype

    def __len__(self) -> int:
        return self.header.num_sequences


@cache
def _dtype_of(code: int) -> np.dtype[Any]:
    return np.dtype(DType.dtype_from_code(code))  # an enumeration takes longer than reading a short sequence


def parse_index(
    data: Bytes, header: Header, *, path: str, bin_bytes: int | None, multimodal: bool, tokens_path: str | None = None
) -> Index:
    """Returns the contents of an `.idx` file after checking, in O(1), that they and the `.bin` file belong together.

    Args:
        data: uint8[size], the whole `.idx` file.
        header: header of this file.
        path: path of the `.idx` file, for messages.
        bin_bytes: the real size of the `.bin` file; None where that is not known.
        multimodal: whether modes are expected. Text readers accept (and ignore) modes, as the reference does.
        tokens_path: path of what holds the tokens, for messages; None for the `.bin` file beside the index.
    """
    without_modes = header.idx_bytes(multimodal=False)
    with_modes = header.idx_bytes(multimodal=True)
    expected = with_modes if multimodal else without_modes
    if len(data) != expected and not (len(data) == with_modes and not multimodal):
        message = (
            f"`{path}`: {header.num_sequences} sequences and {header.num_boundaries} document boundaries "
            f"need {expected} bytes, found {len(data)}"
        )
        hint = _rebuild_hint(path)
        if multimodal and len(data) == without_modes:
            hint = "the file holds no sequence modes: open it with `multimodal=False`"
        raise DatasetFormatError(message, hint=hint)

    def view(offset: int, count: int, dtype: type[Any]) -> NDArray[Any]:  # unaligned: the header has 34 bytes
        return data[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)

    index = Index(
        header=header,
        sequence_lengths=view(header.lengths_offset, header.num_sequences, np.int32),
        sequence_pointers=view(header.pointers_offset, header.num_sequences, np.int64),
        document_indices=view(header.boundaries_offset, header.num_boundaries, np.int64),
        sequence_modes=view(header.modes_offset, header.num_sequences, np.int8) if multimodal else None,
        has_modes=without_modes < with_modes == len(data),
    )
    if header.num_boundaries < 1:
        message = f"`{path}`: expected at least one document boundary, found none"
        raise DatasetFormatError(message, hint=_rebuild_hint(path))
    first, last = int(index.document_indices[0]), int(index.document_indices[-1])
    if (first, last) != (0, header.num_sequences):
        message = (
            f"`{path}`: expected document boundaries from 0 to {header.num_sequences} (the sequence count), "
            f"found {first} to {last}"
        )
        raise DatasetFormatError(message, hint=_rebuild_hint(path))
    promised, source = 0, f"`{path}` has no sequences"
    if header.num_sequences:
        promised = int(index.sequence_pointers[-1]) + int(index.sequence_lengths[-1]) * header.dtype.itemsize
        source = f"the end of sequence {header.num_sequences - 1} in `{path}`"
    if bin_bytes is not None and promised != bin_bytes:
        tokens = tokens_path or bin_path(path.removesuffix(".idx"))
        kind = "truncated or still being written" if bin_bytes < promised else "not the one this index was written for"
        message = f"`{tokens}`: expected {promised} bytes ({source}), found {bin_bytes}"
        raise DatasetFormatError(message, hint=f"the .{tokens.rpartition('.')[2]} file is {kind}; write the pair again")
    return index


def prefix_of(path: str | os.PathLike[str]) -> str:
    """Returns the prefix for a prefix, or for the path of either file of a pair, or of a catalogue."""
    text = checked_path("path_prefix", path, example="the path of a pair without `.bin` or `.idx`")
    if not can_be_path(text):
        message = f"expected the path of a dataset, found {text!r}"
        raise ConfigError(message)
    text = admit(text)
    for suffix in (".bin", ".idx", ".catalogue"):
        if text.endswith(suffix):
            return text.removesuffix(suffix)
    return text


def _rebuild_hint(path: str) -> str:
    return f"`{os.path.basename(path)}` is truncated, damaged or still being written; write the pair again"
