"""Documents and samples as Arrow: record batches whose tokens are the mapped `.bin` itself, where that can be."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.shortcuts import batch_of
from tokenloom.errors import ConfigError
from tokenloom.indexed.columns import has_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import manifest_document, manifest_of
from tokenloom.indexed.origins import read_origins
from tokenloom.indexed.roles import NAME, read_roles
from tokenloom.indexed.token_source import mapped_bytes
from tokenloom.optional import require
from tokenloom.tokenizers.load import load_tokenizer

METADATA_KEY = b"tokenloom"
"""Key of the metadata of schemas: JSON that says what the rows are, with the manifest of the data."""

_EXTRA = "parquet"
_BATCH_BYTES = 32 << 20
_MOST_ROWS = 1 << 16
_MOST_TOKENS = (1 << 31) - 1
"""Offsets of Arrow's lists are int32."""

_SAMPLE_NAMES = {"tokens": "input_ids"}
_IDS = ("input_ids", "tokens", "labels", "position_ids")
_NOT_EXPORTED = ("attention_mask",)
"""A dense mask per sample, sequence length squared: position ids and boundaries say the same."""


class DocumentRows:
    """The documents of a pair as rows; see `document_batches`. Safe from several threads."""

    what = "documents"

    def __init__(self, prefix: str | os.PathLike[str], *, tokenizer: Any = None) -> None:
        self._arrow = require("pyarrow", extra=_EXTRA)
        self._pair = IndexedDataset(prefix)
        self._origins = read_origins(self._pair)
        self._roles = read_roles(self._pair) if has_column(self._pair, NAME) else None
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else tokenizer
        bounds = self._pair.document_indices
        self._has_sequences = len(self._pair) != len(bounds) - 1 or bool((np.diff(bounds) != 1).any())
        manifest = manifest_of(self._pair)
        said = {"rows": self.what, "manifest": None if manifest is None else manifest_document(manifest)}
        self.schema: Any = _schema(self._arrow, self._columns(0, 0, np.zeros(1, dtype=np.int64)), said)

    def __len__(self) -> int:
        """Returns the number of documents."""
        return len(self._pair.document_indices) - 1

    def num_tokens(self, batch: Any) -> int:
        """Returns how many tokens a batch of documents has."""
        return len(batch.column("tokens").flatten())

    def batches(self, *, batch_bytes: int) -> Iterator[Any]:
        """Yields record batches."""
        most = min(max(1, batch_bytes // self._pair.dtype.itemsize), _MOST_TOKENS)
        for first in range(0, len(self), _MOST_ROWS):
            last = min(first + _MOST_ROWS, len(self))
            ends = self._token_ends(first, last)
            start = 0
            while start < last - first:
                stop = max(start + 1, int(np.searchsorted(ends, ends[start] + most, side="right")) - 1)
                yield self._batch(first + start, first + stop, ends[start : stop + 1] - ends[start])
                start = stop

    def table(self, first: int, last: int) -> Any:
        """Returns documents [first, last) as a `pyarrow.Table`."""
        return self._arrow.Table.from_batches([self._batch(first, last, self._token_ends(first, last))])

    def _token_ends(self, first: int, last: int) -> NDArray[np.int64]:
        """Returns the tokens of documents [first, last) before each of them, and in all: int64[last - first + 1]."""
        bounds = self._pair.document_indices[first : last + 1]
        lengths = self._pair.sequence_lengths[bounds[0] : bounds[-1]]
        ends = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=ends[1:])
        before: NDArray[np.int64] = ends[bounds - bounds[0]]
        return before

    def _batch(self, first: int, last: int, ends: NDArray[np.int64]) -> Any:
        if ends[-1] > _MOST_TOKENS:
            message = f"document {first} of `{self._pair.path_prefix}` has {ends[-1]} tokens: more than {_MOST_TOKENS}"
            raise ConfigError(message)
        columns = self._columns(first, last, ends)
        return self._arrow.RecordBatch.from_arrays(list(columns.values()), schema=self.schema)

    def _columns(self, first: int, last: int, ends: NDArray[np.int64]) -> dict[str, Any]:
        arrow = self._arrow
        bounds = self._pair.document_indices[first : last + 1]
        values = self._values(int(bounds[0]), int(bounds[-1]))
        columns = {"document": arrow.array(np.arange(first, last)), "tokens": _lists(arrow, ends, values)}
        if self._has_sequences:
            lengths = np.array(self._pair.sequence_lengths[bounds[0] : bounds[-1]])
            columns["sequence_lengths"] = _lists(arrow, bounds - bounds[0], lengths)
        if self._roles is not None:
            documents = itertools.pairwise(bounds.tolist())
            parts = [[part for row in range(*rows) for part in self._roles.of(row)] for rows in documents]
            places = np.cumsum([0, *map(len, parts)])
            stops = np.array([stop for each in parts for _, stop, _ in each], dtype=np.int32)
            kinds = np.array([kind for each in parts for _, _, kind in each], dtype=np.uint8)
            columns |= {"part_stops": _lists(arrow, places, stops), "part_kinds": _lists(arrow, places, kinds)}
        if self._origins is not None:
            files, records = self._origins.locate(np.arange(first, last))
            paths = arrow.array([file.path for file in self._origins.files], arrow.string())
            names = arrow.DictionaryArray.from_arrays(arrow.array(files, mask=files < 0), paths)
            columns |= {"file": names.dictionary_decode(), "record": arrow.array(records, mask=files < 0)}
        if self._tokenizer is not None:
            ids = [values[start:stop].tolist() for start, stop in itertools.pairwise(ends)]
            columns["text"] = arrow.array([self._tokenizer.detokenize(each) for each in ids], arrow.string())
        return columns

    def _values(self, first: int, last: int) -> NDArray[Any]:
        """Returns the tokens of sequences [first, last) back to back: a view of the mapping where they lie so."""
        pair = self._pair
        pointers, lengths = pair.index.sequence_pointers[first:last], pair.sequence_lengths[first:last]
        mapped, itemsize = mapped_bytes(pair.byte_source), pair.dtype.itemsize
        if mapped is not None and len(lengths):
            begin, num_bytes = int(pointers[0]), int(lengths.sum(dtype=np.int64)) * itemsize
            in_a_row = bool((np.diff(pointers) == lengths[:-1].astype(np.int64) * itemsize).all())
            if in_a_row and begin % itemsize == 0 and 0 <= begin <= len(mapped) - num_bytes:
                pair.check_tokens(begin, num_bytes)
                return mapped[begin : begin + num_bytes].view(pair.dtype)
        return pair.gather(np.arange(first, last), np.zeros(last - first, np.int64), lengths.astype(np.int64))


class SampleRows:
    """The samples of a dataset, blend or run as rows; see `sample_batches`."""

    what = "samples"

    def __init__(self, dataset: Any, *, num_samples: int | None = None) -> None:
        self._arrow = require("pyarrow", extra=_EXTRA)
        self._dataset = dataset
        self._num_rows = len(dataset) if num_samples is None else min(num_samples, len(dataset))
        if self._num_rows < 1:
            message = f"expected samples to write, found none: the dataset has {len(dataset)}"
            raise ConfigError(message)
        first = self._columns(0, 1)
        self._row_bytes = max(1, sum(array.nbytes for array in first.values()))
        said = {"rows": self.what, "labels": "of the next token: shifted already", "left_out": list(_NOT_EXPORTED)}
        self.schema: Any = _schema(self._arrow, first, said)

    def __len__(self) -> int:
        """Returns the number of samples."""
        return self._num_rows

    def num_tokens(self, batch: Any) -> int:
        """Returns how many tokens a batch of samples has, padding counted."""
        return len(batch.column("input_ids").flatten()) if "input_ids" in batch.schema.names else 0

    def batches(self, *, batch_bytes: int) -> Iterator[Any]:
        """Yields record batches."""
        step = max(1, batch_bytes // self._row_bytes)
        for first in range(0, self._num_rows, step):
            columns = self._columns(first, min(first + step, self._num_rows))
            yield self._arrow.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _columns(self, first: int, last: int) -> dict[str, Any]:
        positions = np.arange(first, last)
        arrays = {"sample": positions, **named_samples(self._dataset, positions)}
        return {name: self._column(array) for name, array in arrays.items()}

    def _column(self, array: NDArray[Any]) -> Any:
        if array.ndim == 1:
            return self._arrow.array(array)
        flat = np.ascontiguousarray(array).reshape(-1)
        return self._arrow.FixedSizeListArray.from_arrays(self._arrow.array(flat), len(flat) // len(array))


Rows = DocumentRows | SampleRows
"""Rows that become record batches of a `schema`."""


def document_batches(prefix: str | os.PathLike[str], *, tokenizer: Any = None, batch_bytes: int = _BATCH_BYTES) -> Any:
    """Returns a `pyarrow.RecordBatchReader` over the documents of a pair, in their order.

    Columns: `document`, its number; `tokens`, a list of the pair's dtype, which is the mapped file and no copy, as long
    as sequences lie there in a row (after `preprocess` and `merge` they do); `sequence_lengths` where a document is
    not one sequence; `part_stops` and `part_kinds` where there are roles (see `PartKind`); `file` and `record` where
    there are origins; `text` with a tokenizer.

    Example:
        >>> import tempfile
        >>> from tokenloom import IndexedDatasetBuilder
        >>> prefix = f"{tempfile.mkdtemp()}/corpus"
        >>> with IndexedDatasetBuilder(f"{prefix}.bin") as builder:
        ...     builder.add_document([5, 6, 7], [3])
        ...     builder.add_document([8], [1])
        ...     builder.finalize(f"{prefix}.idx")
        >>> document_batches(prefix).read_all().to_pydict()
        {'document': [0, 1], 'tokens': [[5, 6, 7], [8]]}

    Args:
        prefix: path of the pair without suffix, or its address.
        tokenizer: adds the texts: a tokenizer, or what `load_tokenizer` takes.
        batch_bytes: bytes of tokens in a batch, at most, unless a document has more.

    Raises:
        DatasetNotFoundError, DatasetFormatError, StorageError: as `IndexedDataset`.
    """
    return _reader(DocumentRows(prefix, tokenizer=tokenizer), batch_bytes)


def sample_batches(dataset: Any, *, num_samples: int | None = None, batch_bytes: int = _BATCH_BYTES) -> Any:
    """Returns a `pyarrow.RecordBatchReader` over the samples of a dataset, blend or run, by position.

    Columns: `sample`, its position; `input_ids` and what else `dataset.batch` gives (`labels`, `loss_mask`,
    `position_ids`), in lists of fixed size, ids as int32. **Labels are those of the next token**: models of Hugging
    Face shift labels themselves, and must not be given these. A dense attention mask is left out.

    Args:
        dataset: anything with `batch`, or samples of one shape.
        num_samples: how many from the first one on; None for all.
        batch_bytes: bytes of a batch, about.
    """
    return _reader(SampleRows(dataset, num_samples=num_samples), batch_bytes)


def named_samples(dataset: Any, positions: NDArray[np.integer[Any]]) -> dict[str, NDArray[Any]]:
    """Returns samples as rows of arrays by the names that Hugging Face uses, ids and positions as int32."""
    batch = batch_of(dataset, positions)
    named = {_SAMPLE_NAMES.get(name, name): np.asarray(batch[name]) for name in batch if name not in _NOT_EXPORTED}
    return {name: narrow(name, array) for name, array in named.items()}


def narrow(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Returns ids and positions as int32, which holds every one; anything else as it is."""
    is_ids = name in _IDS and array.dtype == np.int64
    return array.astype(np.int32) if is_ids else array


def _reader(rows: Rows, batch_bytes: int) -> Any:
    arrow = require("pyarrow", extra=_EXTRA)
    return arrow.RecordBatchReader.from_batches(rows.schema, rows.batches(batch_bytes=batch_bytes))


def _schema(arrow: Any, columns: Mapping[str, Any], said: Mapping[str, Any]) -> Any:
    fields = [(name, column.type) for name, column in columns.items()]
    return arrow.schema(fields, metadata={METADATA_KEY: json.dumps(said).encode()})


def _lists(arrow: Any, ends: NDArray[np.int64], values: NDArray[Any]) -> Any:
    """Returns lists over flat values, which are not copied."""
    kind = arrow.from_numpy_dtype(values.dtype)
    flat = arrow.Array.from_buffers(kind, len(values), [None, arrow.py_buffer(np.ascontiguousarray(values))])
    return arrow.ListArray.from_arrays(arrow.array(ends.astype(np.int32)), flat)
