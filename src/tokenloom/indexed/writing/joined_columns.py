"""The columns of many pairs as those of one: of whole pairs, of some of their documents, in the order of the parts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.columns import (
    Column,
    ColumnFacts,
    ColumnWriter,
    WrittenColumn,
    open_column,
    read_columns,
    written_column,
)
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.origins import OriginsPart, joined_origins, read_origins, write_origins
from tokenloom.indexed.writing.kept_documents import Block, ConcatenatedPart, Selection

_LOGGER = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1 << 24


class JoinedColumns:
    """The columns of documents of many pairs, by kind.

    Those per token or sequence must lie beside all pairs, alike. Those per document are left out if one pair lacks
    them; of runs, the documents of such a pair are not known. Both is logged.

    Args:
        parts: the parts, in order.
        target: prefix of the result.
        multimodal: whether the pairs hold modes.
        durable: whether the files survive a loss of power once they are published.

    Raises:
        ConfigError: only some pairs have a column per token or sequence, or they differ.
    """

    def __init__(
        self, parts: Sequence[ConcatenatedPart], target: str, *, multimodal: bool, durable: bool = True
    ) -> None:
        self._parts = parts
        self._target = target
        self._multimodal = multimodal
        self._durable = durable
        prefixes = list(dict.fromkeys(prefix_of(part.prefix) for part in parts))
        self._facts = _common({prefix: read_columns(self._open(prefix)) for prefix in prefixes})

    def write(self) -> dict[str, WrittenColumn]:
        """Returns the columns of the result by name, written; gives all of them up if that fails.

        Memory: blocks of rows, and of runs the input files.
        """
        written: dict[str, WrittenColumn] = {}
        try:
            for name, facts in self._facts.items():
                written[name] = self._write(name, facts)
        except BaseException:
            for file, _ in written.values():
                file.discard()
            raise
        return written

    def _open(self, prefix: str) -> IndexedDataset:
        return IndexedDataset(prefix, multimodal=self._multimodal)

    def _write(self, name: str, facts: ColumnFacts) -> WrittenColumn:
        if facts.kind == "runs":
            return write_origins(self._target, *joined_origins(self._origins()), durable=self._durable)
        writer = ColumnWriter(
            self._target,
            name,
            kind=facts.kind,
            dtype=facts.dtype,
            of=facts.of,
            padding=facts.padding,
            made_by=facts.made_by,
            about=facts.about,
            durable=self._durable,
        )
        return written_column(writer, self._rows(name))

    def _rows(self, name: str) -> Iterator[NDArray[np.generic]]:
        """Yields the rows of a column, in blocks; no rows where there are no documents, of the right width."""
        for part in self._parts:
            dataset = self._open(part.prefix)
            column = open_column(dataset, name)
            assert column is not None
            yield column.data[:0]
            for block in Selection(dataset, part).blocks():
                for rows, kept in _chosen(column, dataset, block):
                    yield column.data[rows] if kept.all() else column.data[rows][kept]
                column.check()

    def _origins(self) -> Iterator[OriginsPart]:
        for part in self._parts:
            dataset = self._open(part.prefix)
            documents = range(dataset.num_documents) if part.documents is None else part.documents
            yield read_origins(dataset), documents, part.kept_documents


def _chosen(column: Column, dataset: IndexedDataset, block: Block) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
    """Yields the rows of a block of documents, and which of them are kept."""
    if column.facts.kind == "document":
        yield block.documents, block.kept_documents
    elif column.facts.kind == "sequence":
        yield block.rows, block.kept_rows
    else:
        lengths = dataset.sequence_lengths[block.rows]
        before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
        before += dataset.count_tokens(range(block.rows.start))
        low = 0
        while low < len(lengths):
            high = int(np.searchsorted(before, before[low] + _ROWS_AT_ONCE, side="right")) - 1
            high = max(low + 1, high)
            tokens = slice(int(before[low]), int(before[high]))
            yield tokens, np.repeat(block.kept_rows[low:high], lengths[low:high])
            low = high


def _common(columns: Mapping[str, Mapping[str, ColumnFacts]]) -> dict[str, ColumnFacts]:
    """Returns what the columns of a result are, from those of all pairs, by prefix."""
    common: dict[str, ColumnFacts] = {}
    for name in dict.fromkeys(name for each in columns.values() for name in each):
        having = {prefix: each[name] for prefix, each in columns.items() if name in each}
        owner, facts = next(iter(having.items()))
        other = next((prefix for prefix, each in having.items() if each.form != facts.form), None)
        lacking = next((prefix for prefix in columns if prefix not in having), None)
        if other is None and (lacking is None or facts.kind == "runs"):
            if lacking is not None:
                text = "`%s` has no column `%s`: of its documents it says nothing in the result"
                _LOGGER.warning(text, lacking, name)
            common[name] = facts
            continue
        if other is None:
            problem = f"`{lacking}` has no column `{name}`, but `{owner}` has"
        else:
            problem = f"column `{name}` of `{other}` is {_words(having[other])}, that of `{owner}` is {_words(facts)}"
        if facts.kind in ("token", "sequence"):
            raise ConfigError(problem, hint=f"give all pairs the same column `{name}`, or remove it from those with it")
        _LOGGER.warning("the result has no column `%s`: %s", name, problem)
    return common


def _words(facts: ColumnFacts) -> str:
    about = f" about {dict(facts.about)}" if facts.about and facts.kind != "runs" else ""
    return f"{facts.dtype}{[*facts.shape[1:]]} per {facts.kind} of {facts.of}s, padding {facts.padding:g}{about}"
