"""The reader and the writer of `.idx` files that the reference has, over our one owner of the layout."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.indexed.layout import HEADER_BYTES, DType, Header, IndexArrays, parse_header, parse_index
from tokenloom.indexed.writing.index_writer import IndexWriter as RowsWriter
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.local import map_file
from tokenloom.storage.resolve import open_pending


class IndexReader:
    """The contents of an `.idx` file.

    `reader[i]` is (pointer, length, mode) of sequence i: where its tokens begin in bytes, how many they are, and None
    as the mode of text.

    Args:
        idx_path: path of the file.
        multimodal: whether to read modes.
        sequences_per_dataset: (sequences, document boundaries) that it must have; None for any.
        dtype_code: code of the dtype that it must have, if these counts are given.

    Raises:
        DatasetFormatError: the file is foreign, damaged, or has other counts.
    """

    def __init__(
        self,
        idx_path: str,
        multimodal: bool,  # noqa: FBT001 - the reference's signature
        sequences_per_dataset: Sequence[int] | None = None,
        dtype_code: int | None = None,
    ) -> None:
        data = map_file(os.fspath(idx_path))
        header = parse_header(data[:HEADER_BYTES].tobytes(), path=idx_path)
        if sequences_per_dataset:
            expected = (*sequences_per_dataset, header.dtype_code if dtype_code is None else dtype_code)
            if expected != (found := (header.num_sequences, header.num_boundaries, header.dtype_code)):
                message = f"`{idx_path}`: expected sequences, documents and dtype code {expected}, found {found}"
                raise DatasetFormatError(message, hint="the data changed after its counts were recorded")
        self._set(header, parse_index(data, header, path=idx_path, bin_bytes=None, multimodal=multimodal))

    @classmethod
    def over(cls, header: Header, arrays: IndexArrays) -> Self:
        """Returns a reader of an index that is open."""
        reader = cls.__new__(cls)
        reader._set(header, arrays)
        return reader

    def _set(self, header: Header, arrays: IndexArrays) -> None:
        self.header = header
        self.arrays: IndexArrays = arrays
        self.dtype: type[Any] = header.dtype.type
        self.dtype_size: int = header.dtype.itemsize
        self.sequence_count: int = header.num_sequences
        self.document_count: int = header.num_boundaries

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[num_sequences], tokens per sequence."""
        return self.arrays.lengths

    @property
    def sequence_pointers(self) -> NDArray[np.int64]:
        """int64[num_sequences], byte offset of each sequence in the `.bin` file."""
        return self.arrays.pointers

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """int64[num_documents + 1], the sequence at which each document starts, and the end; may be replaced."""
        return self.arrays.boundaries

    @document_indices.setter
    def document_indices(self, boundaries: NDArray[np.int64]) -> None:
        self.arrays = dataclasses.replace(self.arrays, boundaries=boundaries)

    @property
    def sequence_modes(self) -> NDArray[np.int8] | None:
        """int8[num_sequences], or None for text-only data."""
        return self.arrays.modes

    def __len__(self) -> int:
        """The number of sequences."""
        return self.sequence_count

    def __getitem__(self, idx: int) -> tuple[np.int64, np.int32, np.int8 | None]:
        """Returns pointer, length and mode of a sequence."""
        arrays = self.arrays
        return arrays.pointers[idx], arrays.lengths[idx], None if arrays.modes is None else arrays.modes[idx]


class IndexWriter:
    """Writes an `.idx` file, which appears whole when the context ends, or not at all.

    Args:
        idx_path: where it will be: a path, or an address in object storage.
        dtype: dtype of the tokens.
    """

    def __init__(self, idx_path: str, dtype: Any) -> None:
        self.idx_path = idx_path
        self.dtype = dtype
        self._file: PendingFile | PendingObject | None = None

    def __enter__(self) -> Self:
        DType.code_from_dtype(self.dtype)  # before anything is there
        self._file = open_pending(os.fspath(self.idx_path), durable=False)  # as the tokens beside it
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        if kind is None:
            self._file.publish()
        else:
            self._file.discard()

    def write(
        self,
        sequence_lengths: Sequence[int] | NDArray[Any],
        sequence_modes: Sequence[int] | NDArray[Any] | None,
        document_indices: Sequence[int] | NDArray[Any],
    ) -> None:
        """Writes all of it.

        Args:
            sequence_lengths: integers[num_sequences], tokens of each.
            sequence_modes: integers[num_sequences]; None for text.
            document_indices: integers[num_documents + 1], the sequences before each document, and all of them.

        Raises:
            ConfigError: the numbers do not fit together, or their places in the format.
        """
        if self._file is None:
            message = f"expected `with _IndexWriter({self.idx_path!r}, …) as writer`, found no `with`"
            raise ConfigError(message)
        lengths = _integers("length", sequence_lengths, np.int32)
        boundaries = _integers("document index", document_indices, np.int64)
        modes = None if sequence_modes is None else _integers("mode", sequence_modes, np.int8)
        if not len(boundaries) or (boundaries[0], boundaries[-1]) != (0, len(lengths)):
            message = (
                f"`{self.idx_path}`: expected document indices from 0 to {len(lengths)}, the number of sequences, "
                f"found {boundaries[:1]} to {boundaries[-1:]}"
            )
            raise ConfigError(message, hint="call `end_document` after the last item of a document")
        if modes is not None and len(modes) != len(lengths):
            message = f"`{self.idx_path}`: expected a mode for each of {len(lengths)} sequences, found {len(modes)}"
            raise ConfigError(message)
        header = Header(
            dtype_code=DType.code_from_dtype(self.dtype), num_sequences=len(lengths), num_boundaries=len(boundaries)
        )
        rows = RowsWriter(self._file, header, multimodal=modes is not None)
        rows.add_rows(lengths, modes)
        rows.add_boundaries(boundaries[1:])
        rows.finish()


def _integers(name: str, values: Sequence[int] | NDArray[Any], dtype: type[Any]) -> NDArray[Any]:
    """Returns numbers in the dtype of the format.

    Raises:
        ConfigError: one has no room there, or is negative where that says nothing.
    """
    wide = np.asarray(values if len(values) else [], dtype=np.int64)
    bounds = np.iinfo(dtype)
    lowest = bounds.min if name == "mode" else 0
    if wide.size and not lowest <= wide.min() <= wide.max() <= bounds.max:
        worst = wide.min() if wide.min() < lowest else wide.max()
        message = f"expected each {name} in [{lowest}, {bounds.max}], found {worst}"
        raise ConfigError(message)
    return wide.astype(dtype)
