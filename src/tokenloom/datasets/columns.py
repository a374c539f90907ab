"""Columns in samples: values beside their tokens, or beside their labels, read through the same spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.outputs import Output
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError
from tokenloom.indexed.columns import Column, ColumnFacts, open_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.kernels import SampleColumn, TokenSections
from tokenloom.order.windows import SpanBatch

Int64s = NDArray[np.int64]

_MOST_WIDTH = 1 << 15

LOSS_WEIGHT = "loss_weight"
"""Name of the column that multiplies the loss mask."""


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    """A column of samples: what it is, and where kernels read it."""

    facts: ColumnFacts
    dtype: np.dtype[Any]
    native: SampleColumn


class SampleColumns:
    """The columns that samples of a dataset have. Safe from several threads; not picklable (owners make it again).

    Args:
        source: the low-level dataset: a pair, or several.
        names: the columns.
        shifts: whether what lies beside labels is one place further on; else spans say so.

    Raises:
        ConfigError: the data have no such column, or it has no row per token.
        DatasetFormatError, StorageError: see `open_column`.
    """

    def __init__(self, source: Any, names: Sequence[str], *, shifts: bool = True) -> None:
        self._chosen = {name: _chosen(source, name, shifts=shifts) for name in names}

    def outputs(self, length: int) -> list[Output]:
        """Returns the arrays of a sample of so many tokens."""
        return [
            Output(name=name, shape=(length, *each.facts.shape[1:]), dtype=each.dtype)
            for name, each in self._chosen.items()
        ]

    def arrays(self, out: Sample) -> list[tuple[SampleColumn, NDArray[Any]]]:
        """Returns what kernels fill beside tokens: columns, and arrays of a sample or batch."""
        found = []
        for name, each in self._chosen.items():
            if out[name].dtype != each.dtype:
                message = (
                    f"column `{name}` is {each.facts.dtype} here, and {out[name].dtype} in other data of the blend"
                )
                raise ConfigError(message, hint="give all data columns of one dtype")
            found.append((each.native, out[name]))
        return found

    def fill(self, spans: SpanBatch, out: Sample, rows: Int64s | None, length: int) -> None:
        """Fills rows from spans, for samples whose tokens are not mapped."""
        for native, array in self.arrays(out):
            native.fill(spans.documents, spans.starts, spans.lengths, spans.row_offsets, rows, length, array)

    def fill_slots(self, segments: Int64s, row_offsets: Int64s, out: Sample) -> None:
        """Fills rows of conversations: each takes its slots, of which some at its end may be padding.

        Args:
            segments: int64[count, 4], sequence, inputs, tokens and slots of each, row by row.
            row_offsets: int64[num_rows + 1].
            out: a batch.
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
    """Multiplies the loss mask of rows, or of all, by a number, and by the weights beside it, if there are any."""
    mask, chosen = out["loss_mask"], slice(None) if rows is None else rows
    if LOSS_WEIGHT in out:
        mask[chosen] = mask[chosen] * out[LOSS_WEIGHT][chosen]
    if weight != 1:
        mask[chosen] *= np.float32(weight)


def _chosen(source: Any, name: str, *, shifts: bool) -> _Chosen:
    if isinstance(source, IndexedDataset):
        column = _opened(source, name)
        sections = _sections(name, [len(source)], column.facts, source.dtype.itemsize)
        _open(sections, 0, source, column)
        return _Chosen(column.facts, np.dtype(column.facts.dtype), _native(sections, column.facts, shifts=shifts))
    if not isinstance(source, JoinedPairs):
        message = f"expected a pair with column `{name}`, found {type(source).__name__}"
        raise ConfigError(message, hint="columns lie beside pairs; classes of your own add arrays in `sample`")
    facts = _opened(source.open(0), name).facts
    sections = _sections(name, [pair.num_sequences for pair in source.pairs], facts, source.dtype.itemsize)

    def give(number: int, pair: IndexedDataset) -> None:
        column = _opened(pair, name)
        if column.facts.form != facts.form:
            message = f"column `{name}` of `{pair.path_prefix}` is not like that of `{source.pairs[0].prefix}`"
            raise ConfigError(message, hint="give all pairs of a source the same column")
        _open(sections, number, pair, column)

    source.on_open(give)
    return _Chosen(facts, np.dtype(facts.dtype), _native(sections, facts, shifts=shifts))


def _opened(pair: IndexedDataset, name: str) -> Column:
    column = open_column(pair, name)
    if column is None:
        message = f"`{pair.path_prefix}` has no column `{name}`, which `columns` names"
        raise ConfigError(message, hint=f"add it: `tokenloom column add {pair.path_prefix} {name} VALUES.npy`")
    if column.facts.kind != "token":
        message = f"column `{name}` of `{pair.path_prefix}` has a row per {column.facts.kind}, not per token"
        raise ConfigError(message, hint="leave it out of `columns`, or repeat its values for each token")
    return column


def _sections(name: str, counts: Sequence[int], facts: ColumnFacts, itemsize: int) -> TokenSections:
    width = int(np.prod(facts.shape[1:])) * np.dtype(facts.dtype).itemsize
    if not 0 < width <= _MOST_WIDTH:
        message = f"column `{name}` has {width} bytes per token, samples take 1 to {_MOST_WIDTH}"
        raise ConfigError(message, hint="keep fewer values, or narrower ones")
    return TokenSections([0, *np.cumsum(counts).tolist()], width=width, unit=itemsize)


def _open(sections: TokenSections, number: int, pair: IndexedDataset, column: Column) -> None:
    sections.open(number, column.data.reshape(-1).view(np.uint8), pair.held_pointers())


def _native(sections: TokenSections, facts: ColumnFacts, *, shifts: bool) -> SampleColumn:
    padding = np.full(facts.shape[1:], facts.padding).astype(facts.dtype).reshape(-1).view(np.uint8)
    return SampleColumn(sections, np.ascontiguousarray(padding), shifts and facts.of == "label")
