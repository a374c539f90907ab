"""The builder of pairs that the reference has: it writes where its clients look while it writes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError, TokenRangeError
from tokenloom.indexed.layout import bin_path, idx_path, prefix_of
from tokenloom.indexed.writing.concatenate import open_checked
from tokenloom.indexed.writing.kept_documents import FilePiece, byte_pieces
from tokenloom.indexed.writing.outputs import dataset_paths
from tokenloom.megatron.core.datasets.indexed_index import IndexWriter
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.copying import copy_range
from tokenloom.storage.resolve import open_pending, remove


class IndexedDatasetBuilder:
    """Writes a `.bin`/`.idx` pair as the reference does: the `.bin` file is there from the start, and grows.

    What `tokenloom.IndexedDatasetBuilder` does beyond it (a pair that appears whole, little memory, speed) is not done
    here, so that clients may write to `data_file` and change the lists themselves.

    Args:
        bin_path: where the tokens go: a path, or an address in object storage, which is written by `finalize`.
        dtype: dtype of the tokens.
        multimodal: whether each sequence has a mode.

    Attributes:
        data_file: the open `.bin` file.
        sequence_lengths: tokens of each sequence.
        document_indices: 0, and the sequences before the end of each document.
        sequence_modes: mode of each sequence; None for text.
    """

    def __init__(
        self,
        bin_path: str,
        dtype: Any = np.int32,
        multimodal: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
    ) -> None:
        self._bin_path = os.fspath(bin_path)
        self._upload = open_pending(self._bin_path) if is_remote(self._bin_path) else None
        self.data_file: IO[bytes] = (
            open(self._bin_path, "wb")  # noqa: SIM115 - closed by `finalize`
            if self._upload is None
            else self._upload.stream
        )
        self.dtype = dtype
        self.multimodal = multimodal
        self.sequence_lengths: list[int] = []
        self.document_indices: list[int] = [0]
        self.sequence_modes: list[int] | None = [] if multimodal else None

    def add_item(self, tensor: Any, mode: int = 0) -> None:
        """Appends one sequence; `end_document` closes the document it belongs to.

        Args:
            tensor: a tensor, an array or a list, of what `numpy.array` makes numbers of.
            mode: mode of the sequence, in a multimodal dataset.

        Raises:
            TokenRangeError: a token does not fit the dtype. Nothing was added.
        """
        tokens = self._numbers(tensor)
        self.data_file.write(tokens.tobytes(order="C"))
        self.sequence_lengths.append(tokens.size)
        if self.sequence_modes is not None:
            self.sequence_modes.append(mode)

    def add_document(self, tensor: Any, lengths: Sequence[int], modes: Sequence[int] | None = None) -> None:
        """Appends one document of sequences with the given lengths, which must add up to the tokens.

        Args:
            tensor: the tokens of the whole document, as for `add_item`.
            lengths: tokens per sequence.
            modes: mode of each sequence, in a multimodal dataset; 0 if None.

        Raises:
            TokenRangeError: a token does not fit the dtype. Nothing was added.
            ValueError: the lengths do not add up. Nothing was added.
        """
        tokens, sizes = self._numbers(tensor), [int(length) for length in lengths]
        if sum(sizes) != tokens.size:
            message = f"lengths add up to {sum(sizes)} tokens, but {tokens.size} were given"
            raise ValueError(message)
        self.data_file.write(tokens.tobytes(order="C"))
        self._add_lengths(sizes)
        self.document_indices.append(len(self.sequence_lengths))
        self._add_modes(modes, len(sizes))

    def add_documents(
        self,
        documents: Any,
        modes: Sequence[int] | None = None,
        eod_token: int | None = None,
        chunk_size: int = 1_000_000,
    ) -> None:
        """Appends many documents of one sequence each, some at a time.

        Args:
            documents: rows of tokens: an array of awkward, or a list of lists or arrays.
            modes: mode of each, in a multimodal dataset; 0 if None.
            eod_token: appended to each if given.
            chunk_size: documents in memory at a time.

        Raises:
            TokenRangeError: a token does not fit the dtype. The chunks before its own were added.
        """
        for start in range(0, len(documents), chunk_size):
            rows = documents[start : start + chunk_size]
            flat, sizes = _flat(rows)
            tokens = self._numbers(flat)
            if eod_token is not None:
                tokens = np.insert(tokens, np.cumsum(sizes), self._numbers([eod_token])[0])
                sizes = sizes + 1
            self.data_file.write(tokens.tobytes(order="C"))
            first = len(self.sequence_lengths) + 1
            self._add_lengths(sizes.tolist())
            self.document_indices.extend(range(first, first + len(sizes)))
            self._add_modes(None if modes is None else modes[start : start + chunk_size], len(sizes))

    def end_document(self) -> None:
        """Closes the document that `add_item` began."""
        self.document_indices.append(len(self.sequence_lengths))

    def add_index(self, path_prefix: str) -> None:
        """Appends a whole pair, after checking every row of its index; its bytes are copied by the system.

        Raises:
            DatasetNotFoundError: one of the files does not exist.
            DatasetFormatError: the pair is damaged, or its dtype is not this builder's. Nothing was added.
        """
        dataset = open_checked(os.fspath(path_prefix), multimodal=self.multimodal)
        if dataset.dtype != np.dtype(self.dtype):
            index = idx_path(dataset.path_prefix)
            message = f"`{index}`: expected tokens of dtype {np.dtype(self.dtype)}, found {dataset.dtype}"
            hint = "datasets of one dtype only can be merged; tokenize one of them again"
            raise DatasetFormatError(message, hint=hint)
        first, arrays = len(self.sequence_lengths), dataset.index.arrays
        self.data_file.flush()
        for piece in byte_pieces(dataset, 0, dataset.extents.num_bytes):
            if isinstance(piece, FilePiece):
                copy_range(
                    piece.path,
                    self.data_file.fileno(),
                    offset=piece.offset,
                    length=piece.length,
                    target_path=self._bin_path,
                    version=piece.version,
                )
                self.data_file.seek(0, io.SEEK_END)
            else:
                self.data_file.write(piece.data)
        self._add_lengths(arrays.lengths.tolist())
        self.document_indices.extend((arrays.boundaries[1:] + first).tolist())
        if self.sequence_modes is not None and arrays.modes is not None:
            self.sequence_modes.extend(arrays.modes.tolist())

    def finalize(self, idx_path: str) -> None:
        """Closes the tokens, and writes the index; what an earlier pair had beside it goes.

        Raises:
            ConfigError: the lists do not fit together.
        """
        if self._upload is None:
            self.data_file.close()
        else:
            self._upload.publish()
        prefix = prefix_of(idx_path)
        if bin_path(prefix) == self._bin_path:
            for path in dataset_paths(prefix):
                if path not in (self._bin_path, idx_path):
                    remove(path)
        with IndexWriter(idx_path, self.dtype) as writer:
            writer.write(self.sequence_lengths, self.sequence_modes, self.document_indices)

    def _add_lengths(self, lengths: list[int]) -> None:
        self.sequence_lengths.extend(lengths)

    def _add_modes(self, modes: Sequence[int] | None, count: int) -> None:
        if self.sequence_modes is not None:
            self.sequence_modes.extend([0] * count if modes is None else modes)

    def _numbers(self, tokens: Any) -> NDArray[Any]:
        """Returns tokens as `numpy.array(tokens, dtype)` does, but for integers that would become others.

        Raises:
            TokenRangeError: one would.
        """
        wanted, given = np.dtype(self.dtype), np.asarray(tokens)
        if given.dtype.kind in "iu" and wanted.kind in "iu" and given.size:
            bounds, lowest, highest = np.iinfo(wanted), int(given.min()), int(given.max())
            if lowest < bounds.min or highest > bounds.max:
                problem = f"token id {lowest if lowest < bounds.min else highest} does not fit {wanted}"
                raise self._range_error(problem)
        try:
            is_list = isinstance(tokens, (list, tuple))  # whose strings and large numbers NumPy reads one by one
            return np.array(tokens if is_list and given.dtype.kind not in "iu" else given, dtype=wanted)
        except OverflowError as error:
            raise self._range_error(str(error)) from error

    def _range_error(self, problem: str) -> TokenRangeError:
        message = f"`{self._bin_path}`: {problem}, in document {len(self.document_indices) - 1}"
        return TokenRangeError(message, hint="choose the dtype with `DType.optimal_dtype(vocab_size)`")


def _flat(rows: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Returns the tokens of rows back to back, and int64[num_rows], how many each has."""
    awkward = sys.modules.get("awkward")  # whoever has such an array has imported it
    if awkward is not None and isinstance(rows, awkward.Array):
        return np.asarray(awkward.flatten(rows)), np.asarray(awkward.num(rows, axis=1), dtype=np.int64)
    parts = [np.asarray(row) for row in rows]
    sizes = np.array([part.size for part in parts], dtype=np.int64)
    filled = [part for part in parts if part.size]  # an empty list would make numbers floats
    return np.concatenate(filled) if filled else np.empty(0, dtype=np.int64), sizes
