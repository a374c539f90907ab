"""The byte layout of the `.bin`/`.idx` pair (FORMAT.md); no other module knows byte offsets, dtype codes or widths."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, InputError
from tokenloom.setting_types import checked_path
from tokenloom.storage.addresses import can_be_path
from tokenloom.storage.json_files import UnusableJsonError, from_members, parse_json
from tokenloom.storage.local import Bytes
from tokenloom.storage.secrets import admit, redacted

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
HEADER_BYTES = _HEADER.size  # 34

UINT16_VOCABULARY_LIMIT = 65500
"""Tokens of smaller vocabularies are stored as uint16, all other tokens as int32, as in the reference."""

RECORD_VERSION = 1
"""Version of the JSON files beside a pair: manifest, columns and catalogue."""

MOST_RECORD_BYTES = 1 << 29
"""Size limit of a JSON file beside a pair; enough for some millions of input files or pairs."""

_NEWER = "write the file again: a newer version of tokenloom wrote it, or it is damaged"

T = TypeVar("T")


def damaged(path: str, expected: str, found: object, *, hint: str | None = None) -> DatasetFormatError:
    rewrite = f"`{os.path.basename(path)}` is truncated, damaged or still being written; write the pair again"
    return DatasetFormatError(f"`{path}`: expected {expected}, found {found}", hint=hint or rewrite)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raises a `ConfigError` if a value is not one of the choices."""
    if value not in choices:
        raise ConfigError(f"`{name}`: must be one of {', '.join(choices)}, got {value!r}")


def parse_record(kind: type[T], data: bytes, *, path: str, what: str, hint: str) -> T:
    """Parses `data` of the JSON file `path` into the dataclass `kind`; the member `format` must equal `what`."""
    try:
        top = parse_json(data, most_bytes=MOST_RECORD_BYTES)
    except UnusableJsonError as error:
        raise damaged(path, "JSON", f"{len(data)} bytes that are not JSON: {error}", hint=hint) from error
    if type(top) is not dict or top.get("format") != what:
        raise damaged(path, f"an object whose `format` is {what!r}", "something else", hint=hint)
    if (version := top.get("version")) != RECORD_VERSION:
        raise damaged(path, f"version {RECORD_VERSION}", repr(version), hint=_NEWER)
    try:
        return from_members(kind, top)
    except UnusableJsonError as error:
        raise DatasetFormatError(f"`{path}`{redacted(str(error))}", hint=hint) from error


def record_bytes(members: Mapping[str, Any], *, path: str, indent: int) -> bytes:
    """Returns the bytes of a JSON file beside a pair; `ConfigError` if readers would not accept so many bytes."""
    data = json.dumps(members, indent=indent, allow_nan=False).encode() + b"\n"
    if len(data) > MOST_RECORD_BYTES:
        message = f"`{path}`: must have at most {MOST_RECORD_BYTES} bytes, got {len(data)}"
        raise ConfigError(message, hint="split the input files among several pairs")
    return data


class DType(Enum):
    """The possible element types of a `.bin` file, with their codes in the header of the `.idx` file."""

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
            name = "None" if value is None else np.dtype(value).name  # `np.dtype(None)` is float64
        except TypeError:
            name = str(value)
        if name not in cls.__members__:
            raise ConfigError(f"`dtype`: must be one of {', '.join(cls.__members__)}, got {name!r}")
        return cls[name].value

    @classmethod
    def dtype_from_code(cls, value: int) -> type[Any]:
        """Returns the NumPy scalar type of a header code; `ValueError` for an unknown code."""
        scalar: type[Any] = getattr(np, cls(value).name)
        return scalar

    @staticmethod
    def size(key: Any) -> int:
        """Returns the element size in bytes for a header code (int) or a dtype."""
        return np.dtype(DType.dtype_from_code(key) if isinstance(key, int) else key).itemsize

    @staticmethod
    def optimal_dtype(cardinality: int | None) -> type[Any]:
        """Returns the token dtype for a vocabulary size: uint16 below 65,500, int32 from 65,500 on and for None."""
        return np.uint16 if cardinality is not None and cardinality < UINT16_VOCABULARY_LIMIT else np.int32


def bin_path(path_prefix: str) -> str:
    return path_prefix + ".bin"


def idx_path(path_prefix: str) -> str:
    return path_prefix + ".idx"


def column_path(path_prefix: str, name: str) -> str:
    return f"{path_prefix}.{name}.npy"


def columns_path(path_prefix: str) -> str:
    """Returns the path of the JSON file that describes all columns of a pair."""
    return path_prefix + ".columns.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first 34 bytes of an `.idx` file; `num_boundaries` is one more than the number of documents."""

    dtype_code: int
    num_sequences: int
    num_boundaries: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return _dtype_of(self.dtype_code)

    @property
    def offsets(self) -> tuple[int, int, int, int]:
        """The byte offsets of lengths, pointers, document boundaries and modes."""
        pointers = HEADER_BYTES + 4 * self.num_sequences
        boundaries = pointers + 8 * self.num_sequences
        return HEADER_BYTES, pointers, boundaries, boundaries + 8 * self.num_boundaries

    def idx_bytes(self, *, multimodal: bool) -> int:
        """Returns the expected size of the `.idx` file."""
        return self.offsets[3] + (self.num_sequences if multimodal else 0)

    def pack(self) -> bytes:
        return _HEADER.pack(MAGIC, VERSION, self.dtype_code, self.num_sequences, self.num_boundaries)


def parse_header(data: bytes | Bytes, *, path: str) -> Header:
    if len(data) < HEADER_BYTES:
        raise damaged(path, f"a header of {HEADER_BYTES} bytes", f"a file of {len(data)} bytes")
    magic, version, code, num_sequences, num_boundaries = _HEADER.unpack(bytes(data[:HEADER_BYTES]))
    if magic != MAGIC:
        raise damaged(path, f"the magic bytes {MAGIC!r}", repr(magic), hint="pass the prefix of a .bin/.idx pair")
    if version != VERSION:
        raise damaged(path, f"version {VERSION}", version, hint=_NEWER)
    if code not in DType._value2member_map_:
        raise damaged(path, "a dtype code from 1 to 8", code)
    return Header(dtype_code=code, num_sequences=num_sequences, num_boundaries=num_boundaries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An `.idx` file: its header, and its arrays as read-only views of the bytes of the file.

    Attributes:
        sequence_lengths: int32[num_sequences], tokens per sequence.
        sequence_pointers: int64[num_sequences], byte offset of each sequence in the `.bin` file.
        document_indices: int64[num_documents + 1]; document d owns sequences [indices[d], indices[d + 1]).
        sequence_modes: int8[num_sequences]; None unless opened as multimodal.
        has_modes: whether the file contains modes, even if they were not read.
    """

    header: Header
    sequence_lengths: NDArray[np.int32]
    sequence_pointers: NDArray[np.int64]
    document_indices: NDArray[np.int64]
    sequence_modes: NDArray[np.int8] | None
    has_modes: bool

    def __len__(self) -> int:
        return self.header.num_sequences


@cache
def _dtype_of(code: int) -> np.dtype[Any]:
    return np.dtype(DType.dtype_from_code(code))  # cached: an enum lookup takes longer than reading a short sequence


def parse_index(
    data: Bytes, header: Header, *, path: str, bin_bytes: int | None, multimodal: bool, tokens_path: str | None = None
) -> Index:
    """Parses an `.idx` file; checks in O(1) that the file is complete and belongs to the `.bin` file.

    `bin_bytes` is the size of the `.bin` file, None if unknown; `path` and `tokens_path` are for messages. If
    `multimodal`, the file must contain modes; otherwise modes are ignored, as in the reference.
    """
    without_modes, with_modes = header.idx_bytes(multimodal=False), header.idx_bytes(multimodal=True)
    expected = with_modes if multimodal else without_modes
    if len(data) not in (expected, with_modes):
        is_text = multimodal and len(data) == without_modes
        counts = f"{header.num_sequences} sequences and {header.num_boundaries} document boundaries"
        hint = "open it with `multimodal=False`: the file has no sequence modes" if is_text else None
        raise damaged(path, f"{expected} bytes for {counts}", len(data), hint=hint)

    def view(offset: int, count: int, dtype: type[Any]) -> NDArray[Any]:  # unaligned: the header has 34 bytes
        return data[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)

    lengths, pointers, boundaries, modes = header.offsets
    index = Index(
        header=header,
        sequence_lengths=view(lengths, header.num_sequences, np.int32),
        sequence_pointers=view(pointers, header.num_sequences, np.int64),
        document_indices=view(boundaries, header.num_boundaries, np.int64),
        sequence_modes=view(modes, header.num_sequences, np.int8) if multimodal else None,
        has_modes=without_modes < with_modes == len(data),
    )
    if header.num_boundaries < 1:
        raise damaged(path, "at least one document boundary", "none")
    first, last = int(index.document_indices[0]), int(index.document_indices[-1])
    if (first, last) != (0, header.num_sequences):
        wanted = f"document boundaries from 0 to {header.num_sequences} (the sequence count)"
        raise damaged(path, wanted, f"{first} to {last}")
    promised, source = 0, f"`{path}` has no sequences"
    if header.num_sequences:
        promised = int(index.sequence_pointers[-1]) + int(index.sequence_lengths[-1]) * header.dtype.itemsize
        source = f"the end of sequence {header.num_sequences - 1} in `{path}`"
    if bin_bytes is not None and promised != bin_bytes:
        tokens = tokens_path or bin_path(path.removesuffix(".idx"))
        kind = "truncated or still being written" if bin_bytes < promised else "not the one of this index"
        hint = f"the .{tokens.rpartition('.')[2]} file is {kind}; write the pair again"
        raise damaged(tokens, f"{promised} bytes ({source})", bin_bytes, hint=hint)
    return index


def prefix_of(path: str | os.PathLike[str]) -> str:
    """Returns the prefix of a dataset: the path without `.bin`, `.idx` or `.catalogue` at its end."""
    text = checked_path("path_prefix", path, example="the path of a pair without `.bin` or `.idx`")
    if not can_be_path(text):
        raise ConfigError(f"`path_prefix`: must be a path, got {text!r}")
    text = admit(text)
    return text.rpartition(".")[0] if text.endswith((".bin", ".idx", ".catalogue")) else text


# --- images, as int32 sequences: the number of padding bytes, then the bytes of the file, then the padding ----------

TEXT_MODE = 0
IMAGE_MODE = 1

_ITEM_BYTES = 4
MAX_IMAGE_BYTES = (np.iinfo(np.int32).max - 1) * _ITEM_BYTES
"""Size limit of an image file: sequence lengths are int32, and one element is the number of padding bytes."""


def check_image_size(num_bytes: int) -> None:
    if not 0 < num_bytes <= MAX_IMAGE_BYTES:
        raise InputError(f"image: must have 1 to {MAX_IMAGE_BYTES} bytes, got {num_bytes}")


def image_to_item(data: bytes) -> NDArray[np.int32]:
    """Encodes an image file as little-endian int32[1 + ceil(len(data) / 4)]: number of padding bytes, then data."""
    check_image_size(len(data))
    padding = -len(data) % _ITEM_BYTES
    item = np.empty(1 + (len(data) + padding) // _ITEM_BYTES, dtype="<i4")
    item[0] = padding
    item[-1] = 0
    item.view(np.uint8)[_ITEM_BYTES : _ITEM_BYTES + len(data)] = np.frombuffer(data, dtype=np.uint8)
    return item


def item_to_image(item: NDArray[Any]) -> bytes:
    """Returns the bytes of the image file that `image_to_item` encoded as `item`, int32[1 + n]; drops the padding."""
    padding = int(item[0]) if len(item) else -1
    if item.dtype != np.int32 or len(item) < 2 or not 0 <= padding < _ITEM_BYTES:
        message = f"image: expected int32 numbers, the first from 0 to 3, found {item.dtype}{item[:4].tolist()}"
        raise DatasetFormatError(message, hint="decode only sequences of mode 1, which are images")
    return np.ascontiguousarray(item[1:]).tobytes()[: (len(item) - 1) * _ITEM_BYTES - padding]
