"""What samples take of each conversation of one pair or several: tokens, positions, and which are left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import SourceDocuments
from tokenloom.datasets.chat_config import TRAIN_ON, SFTDatasetConfig
from tokenloom.datasets.chat_data import SFTLowLevelDataset
from tokenloom.datasets.columns import SampleColumns
from tokenloom.datasets.ledger import Count
from tokenloom.datasets.outputs import Output
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError, UntrainableWarning
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.indexed.layout import DType
from tokenloom.indexed.token_source import ReadSpans, span_reader
from tokenloom.order.documents import Rows

_dtype_code = cache(DType.code_from_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The conversations of a split, as samples take them: arrays with one entry for each.

    Attributes:
        lengths: int64, tokens.
        available: int64, tokens that a sample reads: all of them, or as many as fit.
        slots: int64, positions it takes, padding included.
        trained: int64, labels with loss.
        empty, too_long, untrainable: bool, left out for this reason; at most one of them is true.
    """

    lengths: Int64s
    available: Int64s
    slots: Int64s
    trained: Int64s
    empty: NDArray[np.bool_]
    too_long: NDArray[np.bool_]
    untrainable: NDArray[np.bool_]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Which conversations the samples are made of."""
        return ~(self.empty | self.too_long | self.untrainable)

    def count(self, chosen: NDArray[np.bool_]) -> Count:
        """Returns how many conversations are chosen, and their tokens."""
        return Count(conversations=int(chosen.sum()), tokens=int(self.lengths[chosen].sum()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TakenConversations:
    """The conversations of a split, as the samples of a dataset take them.

    Attributes:
        data: the conversations and their roles, see `SFTLowLevelDataset`.
        rows: those that are exposed.
        config: the settings.
        reads_ahead: tokens of a conversation beyond its inputs: 1 where the last one is only a label.
        name: name of the dataset, for messages.
        beside: prefixes of the data beside these.
    """

    data: Any
    rows: Rows
    config: SFTDatasetConfig
    reads_ahead: int
    name: str
    beside: Sequence[str] = ()
    columns: SampleColumns | None = field(init=False)
    _read_spans: ReadSpans = field(init=False)

    def __post_init__(self) -> None:
        """Finds out how the data are read."""
        columns = None
        if self.config.columns:
            source, beside = getattr(self.data, "pair", self.data), (*self.beside, *self.config.prefixes)
            columns = SampleColumns(source, self.config.columns, shifts=False, elsewhere=beside)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "_read_spans", span_reader(self.data, whole=True))

    @property
    def num_sequences(self) -> int:
        """The number of conversations in the data."""
        return len(self.data)

    @property
    def train_on(self) -> int:
        """The number of the setting that says which parts have loss."""
        return TRAIN_ON.index(self.config.train_on)

    def kept(self) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Returns those that samples are made of, and the positions that each takes: integers[count], int32[count].

        Says what is wrong with the others, or raises where a setting asks for it.
        """
        exposure = self.exposure()
        self._report(exposure)
        kept = exposure.kept
        return self.rows.array()[kept], exposure.slots[kept].astype(np.int32)

    def places(self) -> NDArray[np.int32]:
        """Returns the positions that each takes, 0 for those left out: int32[count]; says nothing of these."""
        exposure = self.exposure()
        return np.where(exposure.kept, exposure.slots, 0).astype(np.int32)

    def exposure(self) -> Exposure:
        """Returns what samples take of each conversation of the split; one pass over lengths and roles."""
        config = self.config
        rows = self.rows.array()
        sequences = rows.astype(np.int64)
        lengths = self.data.sequence_lengths[rows].astype(np.int64)
        segments = self.segments(sequences)
        available = np.ascontiguousarray(segments[:, 2])
        trained = self._count_trained(sequences, available)
        empty = segments[:, 1] < 1
        too_long = (lengths > available) & ~empty & (config.long_conversations == "drop")
        untrainable = (trained == 0) & ~empty & ~too_long & (config.untrainable_conversations == "drop")
        return Exposure(
            lengths=lengths,
            available=available,
            slots=segments[:, 3],
            trained=trained,
            empty=empty,
            too_long=too_long,
            untrainable=untrainable,
        )

    def _count_trained(self, sequences: Int64s, available: Int64s) -> Int64s:
        """Returns how many of the first tokens of each have loss: int64[count]."""
        trained = np.empty(len(sequences), dtype=np.int64)
        self.data.roles.parts.count_trained(sequences, np.ascontiguousarray(available), self.train_on, trained)
        return trained

    def segments(self, sequences: Int64s) -> Int64s:
        """Returns (sequence, inputs, tokens, slots) of what a sample takes of each: int64[count, 4]."""
        segments = np.empty((len(sequences), 4), dtype=np.int64)
        segments[:, 0] = sequences
        available = np.minimum(
            self.data.sequence_lengths[sequences],
            self.config.sequence_length + self.reads_ahead,
            out=segments[:, 2],
        )
        inputs = np.maximum(available - self.reads_ahead, 0, out=segments[:, 1])
        multiple = self.config.slot_multiple
        segments[:, 3] = -(-inputs // multiple) * multiple
        return segments

    def shares(self, sequences: Int64s) -> Int64s:
        """Returns (tokens, inputs, tokens that are read, slots, labels with loss) of each: int64[count, 5]."""
        shares = np.empty((len(sequences), 5), dtype=np.int64)
        shares[:, 0] = self.data.sequence_lengths[sequences]
        shares[:, 1:4] = self.segments(sequences)[:, 1:]
        shares[:, 4] = self._count_trained(sequences, shares[:, 2])
        return shares

    def fill(
        self,
        sequences: Int64s,
        row_offsets: Int64s,
        *,
        fill_id: int,
        out: Sample,
        denied: NDArray[np.bool_] | None = None,
    ) -> None:
        """Fills rows: row r holds conversations [row_offsets[r], row_offsets[r + 1]).

        Args:
            sequences: int64[num_conversations], the conversations, row by row.
            row_offsets: int64[num_rows + 1].
            fill_id: token id of positions without one.
            out: tokens, labels, position_ids int64[num_rows, width], loss_mask float32[num_rows, width], and where
                boundaries are wanted cu_seqlens int32[num_rows, width + 1] and max_seqlen int32[num_rows].
            denied: bool[num_conversations], those that are not read: their positions are padding.
        """
        segments, chosen = self.segments(sequences), sequences
        available = np.ascontiguousarray(segments[:, 2])
        if denied is not None and denied.any():
            segments[denied, 1:3] = 0
            chosen, available = sequences[~denied], available[~denied]
        text = self._read_spans(self.data, chosen, np.zeros_like(chosen), available)
        self.data.roles.parts.fill(
            text,
            _dtype_code(text.dtype),
            segments,
            row_offsets,
            self.train_on,
            fill_id,
            out["tokens"],
            out["labels"],
            out["loss_mask"],
            out["position_ids"],
            out.get("cu_seqlens"),
            out.get("max_seqlen"),
        )

        if self.columns is not None:
            self.columns.fill_slots(segments, row_offsets, out)

    def column_outputs(self, length: int) -> list[Output]:
        """Returns the columns of a sample of so many tokens."""
        return [] if self.columns is None else self.columns.outputs(length)

    def check(self) -> None:
        """Makes sure that what was read of lengths is what their file held."""
        if isinstance(self.data, SFTLowLevelDataset):
            self.data.pair.check_index()

    def _report(self, exposure: Exposure) -> None:
        """Says what is wrong with conversations, or raises where a setting asks for it."""
        config = self.config
        cut = (exposure.lengths > exposure.available) & ~exposure.empty
        if config.long_conversations == "error" and cut.any():
            first = int(np.argmax(cut))
            message = (
                f"{self.name}: {cut.sum()} conversations are longer than a sample of {config.sequence_length} "
                f"tokens; the first is sequence {self.rows.chosen[first]}, with {exposure.lengths[first]}"
            )
            raise ConfigError(message, hint='make samples longer, or set `long_conversations` to "truncate" or "drop"')
        useless = (exposure.trained == 0) & ~exposure.too_long
        if not useless.any():
            return
        policy = config.untrainable_conversations
        first = int(np.argmax(useless))
        message = (
            f"{self.name}: {useless.sum()} of {len(useless)} conversations have no token to train on within a "
            f"sample of {config.sequence_length}; the first is sequence {self.rows.chosen[first]}, of "
            f"{exposure.lengths[first]} tokens"
        )
        if policy == "error":
            raise ConfigError(message, hint='make samples longer, or set `untrainable_conversations` to "drop"')
        left_out = policy == "drop" or bool(exposure.empty[useless].all())
        warnings.warn(f"{message}; they are {'left out' if left_out else 'kept'}", UntrainableWarning, stacklevel=2)


Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TakenOfPairs:
    """The conversations of several pairs, as the samples of a dataset take them; see `TakenConversations`.

    Those are numbered one after the other; the number of a conversation that is denied is -1 - its number. Safe from
    several threads. Not picklable: who holds one makes it anew.

    Attributes:
        pairs: the pairs, each of which is opened when it is first asked for.
        plain_text: whether a pair without roles counts as text, which is trained everywhere.
        config: the settings.
        reads_ahead: tokens of a conversation beyond its inputs: 1 where the last one is only a label.
        name: name of the dataset, for messages.
    """

    pairs: JoinedPairs
    plain_text: bool
    config: SFTDatasetConfig
    reads_ahead: int
    name: str
    _of_pairs: dict[int, TakenConversations] = field(default_factory=dict)

    def tell(self, documents: SourceDocuments, *, shares_samples: bool) -> None:
        """Has a kernel told what each conversation of a pair takes, when it is opened; 0 for those left out.

        Args:
            documents: who is told.
            shares_samples: whether conversations share samples and take positions of them; else each counts as 1.
        """

        def places(number: int, pair: IndexedDataset) -> NDArray[np.int32]:
            taken = self._taken(number, pair).places()
            return taken if shares_samples else np.minimum(taken, 1)

        self.pairs.tell(documents, places)

    def _taken(self, number: int, pair: IndexedDataset | None = None) -> TakenConversations:
        """Returns those of a pair, which is opened if it is not yet; raises as `JoinedPairs.open` does."""
        if (taken := self._of_pairs.get(number)) is None:  # made by several threads at once at worst
            data = SFTLowLevelDataset.of_pair(pair or self.pairs.open(number), plain_text=self.plain_text)
            beside = [*(pair.prefix for pair in self.pairs.pairs), *self.pairs.beside]
            taken = taken_of_pair(data, self.config, reads_ahead=self.reads_ahead, beside=beside)
            taken = self._of_pairs.setdefault(number, taken)
        return taken

    def _parts(self, sequences: Int64s) -> Iterator[tuple[TakenConversations, int, Int64s]]:
        """Yields what some of these lie in, the first number of that pair, and which of them do: int64[count]."""
        numbers = self.pairs.numbers(sequences)
        for number in np.unique(numbers).tolist():
            yield self._taken(number), self.pairs.first_of(number), np.flatnonzero(numbers == number)

    def segments(self, sequences: Int64s) -> Int64s:
        """Returns (sequence, inputs, tokens, slots) of what a sample takes of each: int64[count, 4].

        Of those that are denied, what they would take.
        """
        segments = self._of_each(sequences, TakenConversations.segments, 4)
        segments[:, 0] = sequences
        return segments

    def shares(self, sequences: Int64s) -> Int64s:
        """Returns what `TakenConversations.shares` does; of those that are denied, what they would take."""
        return self._of_each(sequences, TakenConversations.shares, 5)

    def _of_each(self, sequences: Int64s, find: Callable[[TakenConversations, Int64s], Int64s], width: int) -> Int64s:
        known = np.where(sequences < 0, -1 - sequences, sequences)
        found = np.empty((len(sequences), width), dtype=np.int64)
        for taken, first, chosen in self._parts(known):
            found[chosen] = find(taken, known[chosen] - first)
            taken.check()
        return found

    def exposure_of(self, number: int) -> Exposure:
        """Returns what samples take of each conversation of a pair, which is opened; a pass over lengths and roles."""
        taken = self._taken(number)
        exposure = taken.exposure()
        taken.check()
        return exposure

    def fill(self, sequences: Int64s, row_offsets: Int64s, *, fill_id: int, out: Sample) -> None:
        """Fills rows, see `TakenConversations.fill`; each of conversations of one pair, one or more."""
        denied = sequences < 0
        known = np.where(denied, -1 - sequences, sequences)
        for taken, first, rows in self._parts(known[row_offsets[:-1]]):
            if len(rows) == len(row_offsets) - 1:
                taken.fill(known - first, row_offsets, fill_id=fill_id, out=out, denied=denied)
            else:
                counts = np.diff(row_offsets)[rows]
                offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
                chosen = np.repeat(row_offsets[rows] - offsets[:-1], counts) + np.arange(int(offsets[-1]))
                part = {name: np.empty((len(rows), *array.shape[1:]), array.dtype) for name, array in out.items()}
                taken.fill(known[chosen] - first, offsets, fill_id=fill_id, out=part, denied=denied[chosen])
                for name, array in part.items():
                    out[name][rows] = array
            taken.check()

    def column_outputs(self, length: int) -> list[Output]:
        """Returns the columns of a sample of so many tokens; opens the first pair."""
        return self._taken(0).column_outputs(length) if self.config.columns else []

    def check(self) -> None:
        """Does nothing: lengths are checked where they are read."""


def taken_of_pair(
    data: SFTLowLevelDataset, config: SFTDatasetConfig, *, reads_ahead: int, beside: Sequence[str] = ()
) -> TakenConversations:
    """Returns all conversations of a pair, as samples take them."""
    rows = Rows.of(range(len(data)))
    return TakenConversations(
        data=data, rows=rows, config=config, reads_ahead=reads_ahead, name=f"`{data.path_prefix}`", beside=beside
    )
