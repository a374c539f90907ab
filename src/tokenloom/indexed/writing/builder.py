"""`IndexedDatasetBuilder`: writes a `.bin`/`.idx` pair."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import repeat
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import RecordBuilder
from tokenloom.errors import ConfigError, DatasetFormatError, StorageError, TokenRangeError
from tokenloom.indexed import layout
from tokenloom.indexed.columns import ColumnWriter, recorded_columns
from tokenloom.indexed.manifests import CopiedTokens, Manifest, PairFacts, PairTally, manifest_bytes, manifest_of
from tokenloom.indexed.writing.concatenate import byte_pieces, open_checked, put_piece
from tokenloom.indexed.writing.outputs import IndexWriter, PendingDataset, publish_datasets
from tokenloom.setting_types import checked_path
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.local import MappedFile
from tokenloom.storage.publishing import OutputLock, canonical_name
from tokenloom.storage.resolve import open_pending

_LOGGER = logging.getLogger(__name__)

_FLUSH_BYTES = 4 << 20  # larger writes were no faster
_ROWS_PER_WRITE = 1 << 20
_LONGEST = 2**31 - 1  # lengths are stored as int32


class IndexedDatasetBuilder:
    """A writer of a `.bin`/`.idx` pair. After the same calls, the builder of the reference would write the same bytes.

    No file appears under its final name before `finalize`. The builder removes its files if writing fails, if the
    builder is garbage-collected, or if the `with` block ends without `finalize`. A token id that does not fit the dtype
    is an error (the reference wraps it silently). Needs 12 bytes of memory per one-sequence document. Not thread-safe.

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
        bin_path: path of the `.bin` file, or an address in object storage, to which complete files are uploaded.
        dtype: dtype of the tokens, see `DType`.
        multimodal: whether each sequence has a mode.
        checksums: whether to compute the `PairFacts` for a manifest, which takes 0.6 ns per byte.
        durable: whether published files must survive a loss of power; see `PendingFile`.
        overwrite: whether to replace an existing pair, as the reference does; the old pair stays until `finalize`.
        exclusive: whether to lock the pair against other writers.
    """

    def __init__(
        self,
        bin_path: str | os.PathLike[str],
        dtype: Any = np.int32,
        multimodal: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
        *,
        checksums: bool = False,
        durable: bool = True,
        overwrite: bool = True,
        exclusive: bool = True,
    ) -> None:
        self._finished = True
        self._dtype_code = layout.DType.code_from_dtype(dtype)
        self.dtype: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
        self.multimodal = multimodal
        self._records = RecordBuilder(self._dtype_code, self.dtype.itemsize, multimodal)
        self._add = self._records.add
        self._tally = PairTally(self.dtype) if checksums else None
        self._copied_tokens: CopiedTokens | None = None
        self._overwrite, self._exclusive = overwrite, exclusive
        self._locks: dict[str, OutputLock] = {}
        self._bin_file = open_pending(checked_path("bin_path", bin_path), durable=durable)
        if exclusive:
            self._lock(layout.idx_path(layout.prefix_of(bin_path)))
        self._finished = False

    def add_item(self, tensor: Any, mode: int = 0) -> None:
        """Appends one sequence: a list, array or tensor of token ids. Call `end_document` after each document.

        Raises:
            TokenRangeError: a token does not fit the dtype. Nothing was added.
        """
        tokens = tensor if isinstance(tensor, (list, tuple)) else np.asarray(tensor)
        size = len(tokens) if isinstance(tokens, (list, tuple)) else tokens.size
        self._append(tokens, (size,), (mode,) if self.multimodal else None, end_document=False)

    def add_document(self, tensor: Any, lengths: Sequence[int], modes: Sequence[int] | None = None) -> None:
        """Appends one document; `lengths`, tokens per sequence, must add up to the number of tokens.

        Raises:
            TokenRangeError: a token does not fit the dtype. Nothing was added.
            ValueError: the lengths do not add up to the number of tokens, or are out of range. Nothing was added.
        """
        self._append(tensor, lengths, modes if self.multimodal else None, end_document=True)

    def add_documents(
        self, batch: Any, modes: Sequence[int] | None = None, eod_token: int | None = None, chunk_size: int = 65536
    ) -> None:
        """Appends lists or arrays of tokens, which may differ in length, each as a document of one sequence.

        Args:
            batch: one list or array of tokens per document.
            modes: one mode per document of a multimodal dataset; None means 0 for all.
            eod_token: token to append to each document; None appends none.
            chunk_size: accepted for compatibility; has no effect.

        Raises:
            TokenRangeError: a token does not fit the dtype. Only earlier documents of `batch` were added.
        """
        if chunk_size < 1:
            raise ConfigError(f"`chunk_size`: must be 1 or more, got {chunk_size!r}")
        if modes is not None and hasattr(batch, "__len__") and len(modes) != len(batch):
            raise ConfigError(f"`modes`: must have one entry per row ({len(batch)} rows), got {len(modes)}")
        self._check_open()
        suffix = None if eod_token is None else self._convert(np.asarray([eod_token]))
        for row, mode in zip(batch, repeat(0) if modes is None else modes, strict=modes is not None):
            if isinstance(row, list):  # the extension reads lists several times faster than NumPy does
                tokens: Any = row if suffix is None else [*row, eod_token]
            else:
                tokens = np.asarray(row).reshape(-1)
                if suffix is not None:
                    # concatenating uint64 and int64 would give float64
                    exact = tokens if tokens.dtype.kind == "i" else self._convert(tokens)
                    tokens = np.concatenate([exact, suffix])
            self._append(tokens, (len(tokens),), (mode,) if self.multimodal else None, end_document=True)

    def append_block(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int32],
        *,
        document_ends: NDArray[np.int64] | None = None,
        modes: NDArray[np.int8] | None = None,
    ) -> None:
        """Appends many documents at once, the fastest way to add tokens that are already in arrays.

        Args:
            tokens: integers[sum(lengths)], the tokens of all sequences, concatenated.
            lengths: int32[num_sequences], tokens per sequence.
            document_ends: int64[num_documents], for each document, the index of its last sequence within this block
                plus 1; None makes every sequence a document.
            modes: int8[num_sequences], modes in a multimodal dataset; None means 0.

        Raises:
            TokenRangeError: a token does not fit the dtype. Nothing was added.
            ValueError: `lengths` or `document_ends` do not match the tokens. Nothing was added.
        """
        self._check_open()
        count, num_tokens = len(lengths), int(lengths.sum(dtype=np.int64))
        if count and not 0 <= int(lengths.min()) <= int(lengths.max()) <= _LONGEST:
            raise ValueError(f"`lengths`: must be in [0, {_LONGEST}], got {lengths.min()} to {lengths.max()}")
        if num_tokens != len(tokens):
            raise ValueError(f"lengths add up to {num_tokens} tokens, but {len(tokens)} were given")
        if document_ends is None:
            document_ends = np.arange(1, count + 1, dtype=np.int64)
        if np.any(np.diff(document_ends, prepend=0, append=count) < 0) or (count and [*document_ends[-1:]] != [count]):
            raise ValueError(f"`document_ends`: must ascend to {count}, the number of sequences")
        stored = self._convert(tokens)
        chosen = None
        if self.multimodal:
            chosen = np.zeros(len(lengths), np.int8) if modes is None else np.ascontiguousarray(modes)
        self._records.add_rows(
            np.ascontiguousarray(lengths, dtype=np.int32), np.ascontiguousarray(document_ends, dtype=np.int64), chosen
        )
        self._flush()
        self._write(stored.data)

    def end_document(self) -> None:
        """Turns items added since the last document into one document; without such items, adds an empty document."""
        self._check_open()
        self._records.end_document()

    def add_index(self, path_prefix: str | os.PathLike[str]) -> None:
        """Appends a whole dataset; the operating system copies the tokens. Columns are dropped with a warning.

        Raises:
            DatasetNotFoundError: one of the files does not exist.
            DatasetFormatError: the pair is damaged, or has another dtype. Nothing was added.
        """
        self._check_open()
        dataset = open_checked(os.fspath(path_prefix), multimodal=self.multimodal)
        prefix, index = dataset.path_prefix, dataset.index
        if dataset.dtype != self.dtype:
            message = f"`{layout.idx_path(prefix)}`: expected tokens of dtype {self.dtype}, found {dataset.dtype}"
            raise DatasetFormatError(message, hint="tokenize the data again with the dtype of this builder")
        if beside := sorted(recorded_columns(prefix)):
            _LOGGER.warning("columns %s of `%s` are dropped; use `merge_datasets` to keep them", beside, prefix)
        self._records.add_rows(index.sequence_lengths, index.document_indices[1:], index.sequence_modes)
        self._flush()
        try:
            for piece in byte_pieces(dataset, 0, dataset.extents.num_bytes):
                put_piece(piece, self._bin_file)
            if self._tally is not None:
                self._tally.add_pair(dataset)
                manifest = manifest_of(dataset)
                unverified = manifest is None or "unverified" in (self._copied_tokens, manifest.pair.copied_tokens)
                self._copied_tokens = "unverified" if unverified else "inherited"
        except BaseException:
            self.abort()
            raise

    def finalize(
        self,
        idx_path: str | os.PathLike[str],
        *,
        manifest: Callable[[PairFacts], Manifest] | None = None,
        columns: Mapping[str, ColumnWriter] | None = None,
    ) -> None:
        """Writes the index and publishes the pair with its manifest and columns.

        Args:
            idx_path: path of the index.
            manifest: function that makes the manifest from the `PairFacts`; needs `checksums=True`. None: no manifest.
            columns: by column name, writers to which all rows were appended.

        Raises:
            OutputExistsError: a pair exists already, and `overwrite` is False.
            OutputBusyError: another process is writing the same pair.
            StorageError: writing failed; an existing pair remains.
        """
        self._check_open()
        self._finished = True
        with ExitStack() as stack:
            stack.callback(self._release)
            stack.callback(self._bin_file.discard)
            path = os.fspath(idx_path)
            if self._exclusive:
                self._lock(layout.idx_path(layout.prefix_of(path)))
            self._flush()
            index_file = open_pending(path, durable=self._bin_file.is_durable)
            pending = PendingDataset(prefix=layout.prefix_of(path), tokens=self._bin_file, index=index_file)
            stack.callback(pending.discard)
            self._write_index(index_file)
            self._bin_file.sync()
            for name, writer in (columns or {}).items():
                stack.callback(writer.discard)
                pending.columns[name] = writer.finish()
            pending.describe(MappedFile(self._bin_file.readable_path))
            if manifest is not None:
                if self._tally is None:
                    raise ConfigError("`manifest`: needs a builder with `checksums=True`")
                facts = self._tally.facts(MappedFile(index_file.readable_path))
                pending.manifest = manifest_bytes(manifest(replace(facts, copied_tokens=self._copied_tokens)))
            publish_datasets(
                [pending], overwrite=self._overwrite, exclusive=self._exclusive, locks=self._locks.values()
            )

    def _write_index(self, file: PendingFile) -> None:
        records, count = self._records, self._records.num_document_boundaries
        header = layout.Header(dtype_code=self._dtype_code, num_sequences=records.num_sequences, num_boundaries=count)
        rows = IndexWriter(file, header, multimodal=self.multimodal)
        for begin in range(0, header.num_sequences, _ROWS_PER_WRITE):
            lengths = np.empty(min(_ROWS_PER_WRITE, header.num_sequences - begin), dtype=np.int32)
            records.copy_lengths(begin, lengths)
            modes = np.empty(len(lengths), dtype=np.int8) if self.multimodal else None
            if modes is not None:
                records.copy_modes(begin, modes)
            rows.add_rows(lengths, modes)
        for begin in range(1, count, _ROWS_PER_WRITE):  # `IndexWriter` has written the first boundary, 0
            ends = np.empty(min(_ROWS_PER_WRITE, count - begin), dtype=np.int64)
            records.copy_document_ends(begin, ends)
            rows.add_boundaries(ends)
        rows.finish()

    def abort(self) -> None:
        """Removes the files of this builder; does nothing after `finalize`."""
        self._finished = True
        self._bin_file.discard()
        self._release()

    def _lock(self, key: str) -> None:
        if (name := canonical_name(key)) not in self._locks:
            try:
                self._locks[name] = OutputLock(key)
            except BaseException:
                self._bin_file.discard()
                raise

    def _release(self) -> None:
        for lock in self._locks.values():
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    @property
    def num_sequences(self) -> int:
        """The number of sequences added so far."""
        return self._records.num_sequences

    @property
    def num_documents(self) -> int:
        """The number of documents ended so far."""
        return self._records.num_document_boundaries - 1

    def _append(self, tokens: Any, lengths: Sequence[int], modes: Sequence[int] | None, *, end_document: bool) -> None:
        self._check_open()
        try:
            # Nearly every call passes a list or contiguous integers; checking them here first would take longer.
            pending = self._add(tokens, lengths, modes, end_document)
        except OverflowError as error:  # a token out of range, or a length or mode beyond 64 bits
            if self.dtype.kind in "iu":
                is_list = isinstance(tokens, (list, tuple))
                self._check_range(tokens if is_list else np.ravel(np.asarray(tokens)).tolist())
            raise ValueError(f"`lengths`, `modes`: out of range: {error}") from None
        except (TypeError, BufferError):
            pending = self._add(self._convert(np.asarray(tokens)), lengths, modes, end_document)
        if pending >= _FLUSH_BYTES:
            self._flush()

    def _convert(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Returns tokens as a contiguous array of the builder's dtype; `TokenRangeError` if a token does not fit."""
        if tokens.dtype != self.dtype and self.dtype.kind in "iu" and tokens.size:
            if tokens.dtype.kind not in "iu":
                raise ConfigError(f"tokens: must be integers for dtype {self.dtype}, got {tokens.dtype}")
            self._check_range((int(tokens.min()), int(tokens.max())))
        return np.ascontiguousarray(tokens, dtype=self.dtype)

    def _check_range(self, tokens: Iterable[int]) -> None:
        bounds = np.iinfo(self.dtype)
        for token in tokens:
            if not bounds.min <= token <= bounds.max:
                where = f"`{self._bin_file.path}`: token id {token} in document {self.num_documents}"
                message = f"{where} must be in [{bounds.min}, {bounds.max}] for {self.dtype}"
                raise TokenRangeError(message, hint="choose the dtype with `DType.optimal_dtype(vocab_size)`") from None

    def _check_open(self) -> None:
        if self._finished:
            raise StorageError(f"builder of `{self._bin_file.path}`: was already finalized or aborted")

    def _flush(self) -> None:
        if pending := self._records.take_pending():
            self._write(pending)

    def _write(self, data: bytes | memoryview) -> None:
        try:
            self._bin_file.write(data)
            if self._tally is not None:
                self._tally.add_tokens(data)
        except BaseException:  # an unknown part of the data was written
            self.abort()
            raise
