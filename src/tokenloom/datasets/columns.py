"""Adds columns, which are arrays of values per token or label, to the samples of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import SampleColumn, TokenSections
from tokenloom.datasets.sample_arrays import Output
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError
from tokenloom.indexed.columns import Column, ColumnFacts, check_padding, open_column, recorded_columns
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.order.windows import SpanBatch

Int64s = NDArray[np.int64]

_MOST_WIDTH = 1 << 15

ColumnNames = Sequence[str] | Mapping[str, float | str]
"""The type of `GPTDatasetConfig.columns`: names, or {name: default value or "required"}."""

REQUIRED = "required"  # in place of a default value: all data must have the column
LOSS_WEIGHT = "loss_weight"  # the column that multiplies the loss mask


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    facts: ColumnFacts
    dtype: np.dtype[Any]
    native: SampleColumn


class SampleColumns:
    """The columns of a dataset's samples. Thread-safe; not picklable: an unpickled dataset creates a new object.

    With `shifts`, columns of labels are read one token later than the spans. For a column that `source` lacks, the
    pairs of the prefixes `elsewhere` are searched; the first pair with this column determines the dtype and shape.
    """

    def __init__(
        self, source: Any, columns: ColumnNames, *, shifts: bool = True, elsewhere: Sequence[str] = ()
    ) -> None:
        defaults = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, REQUIRED)
        self._chosen = {
            name: _chosen(source, name, default, shifts=shifts, elsewhere=elsewhere)
            for name, default in defaults.items()
        }

    def outputs(self, length: int) -> list[Output]:
        return [
            Output(name=name, shape=(length, *each.facts.shape[1:]), dtype=each.dtype)
            for name, each in self._chosen.items()
        ]

    def arrays(self, out: Sample) -> list[tuple[SampleColumn, NDArray[Any]]]:
        """Returns, for each column, a kernel that copies values of the column, and the array of `out` to fill."""
        for name, each in self._chosen.items():
            if (other := out[name].dtype) != each.dtype:
                message = f"column `{name}`: pairs of the blend have different dtypes, {each.facts.dtype} and {other}"
                raise ConfigError(message, hint="store the column with the same dtype in all pairs")
        return [(each.native, out[name]) for name, each in self._chosen.items()]

    def fill(self, spans: SpanBatch, out: Sample, rows: Int64s | None, length: int) -> None:
        """Fills `rows` (None: all rows) of the columns in `out` from `spans`; only if tokens are not memory-mapped."""
        for native, array in self.arrays(out):
            native.fill(spans.documents, spans.starts, spans.lengths, spans.row_offsets, rows, length, array)

    def fill_slots(self, segments: Int64s, row_offsets: Int64s, out: Sample) -> None:
        """Fills the columns of a batch of conversations; row r has segments [row_offsets[r], row_offsets[r + 1]).

        `segments`, int64[count, 4], are the result of `SplitConversations.segments`.
        """
        sequences, inputs, tokens, slots = segments.T
        spans = np.empty((2, len(segments), 3), dtype=np.int64)
        for each, (native, array) in zip(self._chosen.values(), self.arrays(out), strict=True):
            starts = int(each.facts.of == "label")
            spans[0, :, 0], spans[0, :, 1] = sequences, starts
            spans[0, :, 2] = np.maximum(tokens - 1, 0) if starts else inputs
            spans[1, :, 0], spans[1, :, 1], spans[1, :, 2] = -1, 0, slots - spans[0, :, 2]
            documents, starts_of, lengths = np.ascontiguousarray(spans.transpose(2, 1, 0).reshape(3, -1))
            native.fill(documents, starts_of, lengths, 2 * row_offsets, None, out["tokens"].shape[-1], array)


def weigh_loss(out: Sample, rows: Int64s | None, weight: float) -> None:
    """Multiplies the loss mask of `rows` (None: all rows) by `weight`, and by the column `loss_weight` if present."""
    mask, chosen = out["loss_mask"], slice(None) if rows is None else rows
    if LOSS_WEIGHT in out:
        mask[chosen] = mask[chosen] * out[LOSS_WEIGHT][chosen]
    if weight != 1:
        mask[chosen] *= np.float32(weight)


def _chosen(source: Any, name: str, default: float | str, *, shifts: bool, elsewhere: Sequence[str]) -> _Chosen:
    if isinstance(source, IndexedDataset):
        counts, first = [len(source)], source
    elif isinstance(source, JoinedPairs):
        counts, first = [pair.num_sequences for pair in source.pairs], source.open(0)
        elsewhere = (*(pair.prefix for pair in source.pairs), *source.beside)
    else:
        message = f"column `{name}`: only `.bin`/`.idx` pairs have columns, got {type(source).__name__}"
        raise ConfigError(message, hint="override `sample` to add arrays in your own class")
    opened = _opened(first, name, default)
    facts = opened.facts if opened is not None else _facts_of(name, elsewhere, first)
    dtype = np.dtype(facts.dtype)
    if not isinstance(default, str):
        check_padding(default, dtype, name=f"value of `{name}` in `columns`:")
    width = int(np.prod(facts.shape[1:])) * dtype.itemsize
    if not 0 < width <= _MOST_WIDTH:
        message = f"column `{name}`: must have 1 to {_MOST_WIDTH} bytes per token, got {width}"
        raise ConfigError(message, hint="store fewer values per token, or a smaller dtype")
    sections = TokenSections([0, *np.cumsum(counts).tolist()], width=width, unit=source.dtype.itemsize)

    def row_of(value: float | str) -> NDArray[np.uint8]:
        return np.full(width // dtype.itemsize, value).astype(dtype).view(np.uint8)

    def add_pair(number: int, pair: IndexedDataset) -> None:
        column = opened if pair is first else _opened(pair, name, default)
        if column is None:
            sections.open_rows(number, row_of(default))
            return
        if column.facts.form != facts.form:
            message = f"column `{name}` of `{pair.path_prefix}`: dtype, shape or kind differs from earlier pairs"
            raise ConfigError(message, hint="store the column with the same dtype, shape and kind in all pairs")
        data = column.data.reshape(-1).view(np.uint8)
        if column.facts.kind == "token":
            sections.open(number, data, pair.held_pointers())
        else:
            sections.open_rows(number, data, _rows_of(pair) if column.facts.kind == "document" else None)

    if isinstance(source, JoinedPairs):
        source.on_open(add_pair)
    else:
        add_pair(0, source)
    return _Chosen(facts, dtype, SampleColumn(sections, row_of(facts.padding), shifts and facts.of == "label"))


def _opened(pair: IndexedDataset, name: str, default: float | str) -> Column | None:
    column = open_column(pair, name)
    if column is None and default == REQUIRED:
        hint = f"add it with `tokenloom column add {pair.path_prefix} {name} VALUES.npy`, or set a default: "
        raise ConfigError(f"`{pair.path_prefix}` has no column `{name}`", hint=f"{hint}columns={{{name!r}: 1.0}}")
    if column is not None and column.facts.kind == "runs":
        message = f"column `{name}` of `{pair.path_prefix}`: samples cannot contain columns of kind `runs`"
        raise ConfigError(message, hint="remove it from `columns`")
    return column


def _facts_of(name: str, prefixes: Sequence[str], pair: IndexedDataset) -> ColumnFacts:
    """Returns facts of a column that `pair` lacks, from the first of `prefixes` with it; else float32 per token."""
    columns = (recorded_columns(prefix, object_storage=pair.object_storage) for prefix in prefixes)
    found = (each[name] for each in columns if name in each)
    return next(found, ColumnFacts(kind="token", dtype="float32", shape=(0,), num_bytes=0, crc32=0))


def _rows_of(pair: IndexedDataset) -> Int64s | None:
    """Returns int64[num_sequences], the document of each sequence; None if every document is one sequence."""
    bounds = pair.document_indices
    if len(bounds) == len(pair) + 1 and np.array_equal(bounds, np.arange(len(bounds))):
        return None
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
