"""Writing a `.bin`/`.idx` pair."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, StorageError, TokenRangeError
from tokenloom.indexed.layout import (
    HEADER_BYTES,
    DType,
    Header,
    bin_path,
    idx_path,
    parse_header,
    parse_index,
    prefix_of,
)
from tokenloom.kernels import RecordBuilder
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.local import file_size, map_file

_FLUSH_BYTES = 4 << 20  # larger writes measured no faster
_ROWS_PER_WRITE = 1 << 20


class IndexedDatasetBuilder:
    """Writes a `.bin`/`.idx` pair, byte for byte as the reference would for the same calls.

    Nothing appears under the final names before `finalize`; leaving a `with` block by an exception, or dropping the
    builder, removes what was written. Memory: 12 bytes per document of one sequence, in blocks that are never copied.
    Token ids that do not fit the dtype are an error (the reference wraps them silently). Not safe from several threads.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> with IndexedDatasetBuilder(f"{folder}/corpus.bin", dtype=np.uint16) as builder:
        ...     builder.add_item(np.array([1, 2, 3]))
        ...     builder.end_document()
        ...     builder.add_document([4, 5, 6], [1, 2])
        ...     builder.finalize(f"{folder}/corpus.idx")
        >>> os.path.getsize(f"{folder}/corpus.bin")
        12

    Args:
        bin_path: where the tokens will be.
        dtype: of the tokens, see `DType`.
        multimodal: whether each sequence has a mode.
    """

    def __init__(
        self,
        bin_path: str | os.PathLike[str],
        dtype: Any = np.int32,
        multimodal: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.multimodal = multimodal
        self._dtype_code = DType.code_from_dtype(self.dtype)
        self._records = RecordBuilder(self._dtype_code, self.dtype.itemsize, multimodal)
        self._add = self._records.add
        self._finished = False
        self._bin_file = PendingFile(bin_path)

    def add_item(self, tensor: Any, mode: int = 0) -> None:
        """Appends one sequence; `end_document` closes the document it belongs to.

        Args:
            tensor: 1-D integers: a list, an array, a tensor; for a float dtype, numbers.
            mode: of the sequence, in a multimodal dataset.

        Raises:
            TokenRangeError: a token does not fit the dtype. Nothing was added.
        """
        tokens = tensor if isinstance(tensor, (list, tuple)) else np.asarray(tensor)
        size = len(tokens) if isinstance(tokens, (list, tuple)) else tokens.size
        self._append(tokens, (size,), (mode,) if self.multimodal else None, end_document=False)

    def add_document(self, tensor: Any, lengths: Sequence[int], modes: Sequence[int] | None = None) -> None:
        """Appends one document of sequences with the given lengths, which must add up to the tokens.

        Args:
            tensor: the tokens of the whole document.
            lengths: tokens per sequence; empty for a document without sequences.
            modes: of each sequence, in a multimodal dataset; 0 if None.

        Raises:
            TokenRangeError: a token does not fit the dtype. Nothing was added.
            ValueError: the lengths do not add up, or are out of range. Nothing was added.
        """
        self._append(tensor, lengths, modes if self.multimodal else None, end_document=True)

    def add_documents(
        self,
        batch: Any,
        modes: Sequence[int] | None = None,
        eod_token: int | None = None,
        chunk_size: int = 65536,
    ) -> None:
        """Appends a jagged batch, one document of one sequence per row.

        Args:
            batch: rows of tokens: a list of lists or arrays, or anything that yields rows.
            modes: of each row, in a multimodal dataset; 0 if None.
            eod_token: appended to every row if given.
            chunk_size: rows are joined and written in groups of this many; the result does not depend on it.
        """
        if chunk_size < 1:
            message = f"chunk_size must be at least 1, got {chunk_size!r}"
            raise ConfigError(message)
        suffix = [] if eod_token is None else [eod_token]
        if modes is not None and hasattr(batch, "__len__") and len(modes) != len(batch):
            message = f"{len(modes)} modes for {len(batch)} rows"
            raise ConfigError(message)
        group: list[Any] = []
        first = 0
        for row in batch:
            group.append(row)
            if len(group) == chunk_size:
                self._add_rows(group, suffix, modes, first)
                first += len(group)
                group = []
        self._add_rows(group, suffix, modes, first)

    def _add_rows(self, rows: list[Any], suffix: list[int], modes: Sequence[int] | None, first: int) -> None:
        arrays = [np.concatenate([np.asarray(row, dtype=np.int64).reshape(-1), suffix]) for row in rows]
        lengths = np.array([len(row) for row in arrays], dtype=np.int32)
        tokens = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
        chosen = None if modes is None else np.asarray(modes[first : first + len(rows)], dtype=np.int8)
        self.append_block(tokens.astype(np.int64, copy=False), lengths, modes=chosen)

    def append_block(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int32],
        *,
        document_ends: NDArray[np.int64] | None = None,
        modes: NDArray[np.int8] | None = None,
    ) -> None:
        """Appends many documents at once: the fast way in for whole blocks of tokens.

        Args:
            tokens: integers[sum(lengths)], all sequences back to back.
            lengths: int32[num_sequences], tokens per sequence.
            document_ends: int64[num_documents], non-decreasing, the number of sequences of this block that lie before
                each document's end; None makes every sequence a document.
            modes: int8[num_sequences], in a multimodal dataset; 0 if None.

        Raises:
            TokenRangeError: a token does not fit the dtype. Nothing was added.
            ValueError: the parts do not fit together. Nothing was added.
        """
        if int(lengths.sum(dtype=np.int64)) != len(tokens) or (len(lengths) and int(lengths.min()) < 0):
            message = f"lengths add up to {int(lengths.sum(dtype=np.int64))} tokens, but {len(tokens)} were given"
            raise ValueError(message)
        if document_ends is None:
            document_ends = np.arange(1, len(lengths) + 1, dtype=np.int64)
        elif (
            len(document_ends) == 0
            or int(document_ends[-1]) != len(lengths)
            or np.any(np.diff(document_ends, prepend=0) < 0)
        ):
            message = f"document_ends must rise to {len(lengths)}, the number of sequences"
            raise ValueError(message)
        stored = self._convert(tokens)
        self._records.add_rows(
            np.ascontiguousarray(lengths, dtype=np.int32),
            np.ascontiguousarray(document_ends, dtype=np.int64),
            (np.zeros(len(lengths), np.int8) if modes is None else modes) if self.multimodal else None,
        )
        self._flush()
        self._bin_file.write(stored.data)

    def end_document(self) -> None:
        """Closes the document that `add_item` began; without items, adds an empty document."""
        self._check_open()
        self._records.end_document()

    def add_index(self, path_prefix: str | os.PathLike[str]) -> None:
        """Appends a whole dataset: its documents as they are, its bytes by a kernel-level copy.

        Raises:
            DatasetFormatError: the pair is damaged, or its dtype is not this builder's.
        """
        self._check_open()
        prefix = prefix_of(path_prefix)
        path = idx_path(prefix)
        data = map_file(path)
        header = parse_header(data[:HEADER_BYTES].tobytes(), path=path)
        if header.dtype != self.dtype:
            message = f"`{path}`: expected tokens of dtype {self.dtype}, found {header.dtype}"
            raise DatasetFormatError(
                message, hint="datasets of one dtype only can be merged; tokenise one of them again"
            )
        num_bytes = file_size(bin_path(prefix))
        arrays = parse_index(data, header, path=path, bin_bytes=num_bytes, multimodal=self.multimodal)
        self._records.add_rows(arrays.lengths, arrays.boundaries[1:], arrays.modes)
        self._flush()
        self._copy_bytes(bin_path(prefix), num_bytes)

    def finalize(self, idx_path: str | os.PathLike[str]) -> None:
        """Writes the index and makes the pair appear: the `.bin` file first, the `.idx` file last.

        An old index of that name is removed first, so that no moment exists at which an index meets foreign tokens.
        """
        self._check_open()
        index_path = os.fspath(idx_path)
        self._finished = True
        try:
            self._flush()
            with PendingFile(index_path) as index_file:
                self._write_index(index_file)
                index_file.sync()
                self._bin_file.sync()
                with storage_errors("replace", index_path):
                    if os.path.lexists(index_path):
                        os.unlink(index_path)
                self._bin_file.publish()
        except BaseException:
            self._bin_file.discard()
            raise

    def abort(self) -> None:
        """Gives up: removes what was written. Harmless after `finalize`."""
        self._finished = True
        self._bin_file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    @property
    def num_sequences(self) -> int:
        """Sequences added so far."""
        return self._records.num_sequences

    @property
    def num_documents(self) -> int:
        """Documents ended so far."""
        return self._records.num_document_boundaries - 1

    def _append(self, tokens: Any, lengths: Sequence[int], modes: Sequence[int] | None, *, end_document: bool) -> None:
        self._check_open()
        try:
            # Lists and contiguous integer arrays, nearly every call: looking at them in Python first would cost more
            # than adding them.
            pending = self._add(tokens, lengths, modes, end_document)
        except OverflowError as error:
            raise self._range_error(error) from None
        except (TypeError, BufferError):
            pending = self._add(self._convert(np.asarray(tokens)), lengths, modes, end_document)
        if pending >= _FLUSH_BYTES:
            self._flush()

    def _convert(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Returns the tokens in the builder's dtype, contiguous; an error if integers do not survive it."""
        if tokens.dtype == self.dtype:
            return np.ascontiguousarray(tokens)
        if self.dtype.kind in "iu" and tokens.size:
            if tokens.dtype.kind not in "iu":
                message = f"tokens must be integers for dtype {self.dtype}, got {tokens.dtype}"
                raise ConfigError(message)
            lowest, highest = int(tokens.min()), int(tokens.max())
            bounds = np.iinfo(self.dtype)
            if lowest < bounds.min or highest > bounds.max:
                raise self._range_error(OverflowError(str(lowest if lowest < bounds.min else highest)))
        return np.ascontiguousarray(tokens, dtype=self.dtype)

    def _range_error(self, error: OverflowError) -> TokenRangeError:
        message = (
            f"`{self._bin_file.path}`: token id {error} in document {self.num_documents} does not fit {self.dtype}, "
            f"which holds {np.iinfo(self.dtype).min} to {np.iinfo(self.dtype).max}"
        )
        return TokenRangeError(message, hint="choose the dtype with `DType.optimal_dtype(vocab_size)`")

    def _check_open(self) -> None:
        if self._finished:
            message = f"the builder of `{self._bin_file.path}` was already finalized or aborted"
            raise StorageError(message)

    def _flush(self) -> None:
        if pending := self._records.take_pending():
            self._bin_file.write(pending)

    def _copy_bytes(self, path: str, num_bytes: int) -> None:
        """Copies a file to the end of the tokens without passing it through Python."""
        with storage_errors("copy", path), open(path, "rb") as source:
            target = self._bin_file.stream
            target.flush()
            copied = 0
            while copied < num_bytes:
                try:
                    count = os.copy_file_range(source.fileno(), target.fileno(), num_bytes - copied)
                except OSError:  # not every pair of filesystems can; the portable copy continues where it stopped
                    source.seek(copied)
                    shutil.copyfileobj(source, target, 1 << 20)
                    target.flush()
                    count = source.tell() - copied
                if count == 0:
                    break
                copied += count
        if copied != num_bytes:
            message = f"`{path}`: expected {num_bytes} bytes, found {copied}"
            raise StorageError(message, hint="the file changed while it was read")

    def _write_index(self, index_file: PendingFile) -> None:
        records = self._records
        header = Header(
            dtype_code=self._dtype_code,
            num_sequences=records.num_sequences,
            num_boundaries=records.num_document_boundaries,
        )
        index_file.write(header.pack())
        for block in _blocks(records.copy_lengths, header.num_sequences, np.int32):
            index_file.write(block.data)
        pointer = 0
        for block in _blocks(records.copy_lengths, header.num_sequences, np.int32):
            ends = np.cumsum(block, dtype=np.int64) * self.dtype.itemsize + pointer
            pointers = np.concatenate([np.array([pointer], dtype=np.int64), ends[:-1]])
            index_file.write(pointers.data)
            pointer = int(ends[-1])
        for block in _blocks(records.copy_document_ends, header.num_boundaries, np.int64):
            index_file.write(block.data)
        if self.multimodal:
            for block in _blocks(records.copy_modes, header.num_sequences, np.int8):
                index_file.write(block.data)


def _blocks(copy: Callable[[int, NDArray[Any]], None], count: int, dtype: type[Any]) -> Iterable[NDArray[Any]]:
    """Yields the rows of a record array in bounded pieces."""
    for begin in range(0, count, _ROWS_PER_WRITE):
        block = np.empty(min(_ROWS_PER_WRITE, count - begin), dtype=dtype)
        copy(begin, block)
        yield block
