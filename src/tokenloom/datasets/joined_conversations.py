"""The conversations of several pairs as one low-level dataset, and what samples take of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.chat_config import SFTDatasetConfig
from tokenloom.datasets.chat_data import SFTLowLevelDataset
from tokenloom.datasets.exposure import Exposure, TakenConversations
from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer_match import check_roles_tokenizer
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.kernels import SourceDocuments
from tokenloom.order.documents import Rows

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class JoinedConversations:
    """The conversations of several pairs, numbered one after the other; a pair is opened when it is first asked for.

    Safe from several threads. Not picklable: who holds one makes it anew.

    Attributes:
        pairs: the pairs.
        plain_text: whether a pair without roles counts as text, which is trained everywhere.
    """

    pairs: JoinedPairs
    plain_text: bool = False
    _opened: dict[int, SFTLowLevelDataset] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of conversations of all pairs."""
        return len(self.pairs)

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that tokens are read from; empty for local data."""
        return self.pairs.remote_paths

    def will_need(self, sequences: Int64s, starts: Int64s, lengths: Int64s, *, block_bytes: int | None = None) -> None:
        """Announces spans that will be read, see `IndexedDataset.will_need`."""
        self.pairs.will_need(sequences, starts, lengths, block_bytes=block_bytes)

    def open(self, number: int) -> SFTLowLevelDataset:
        """Returns the conversations of a pair, which is opened if it is not yet; raises as `JoinedPairs.open` does."""
        return self.of(number, self.pairs.open(number))

    def of(self, number: int, pair: IndexedDataset) -> SFTLowLevelDataset:
        """Returns the conversations of a pair that is open.

        Raises:
            DatasetNotFoundError, DatasetFormatError: nothing says which of its tokens are answers, or of other data.
        """
        if (data := self._opened.get(number)) is None:  # made by several threads at once at worst
            data = self._opened.setdefault(number, SFTLowLevelDataset.of_pair(pair, plain_text=self.plain_text))
        return data


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TakenOfPairs:
    """The conversations of several pairs, as the samples of a dataset take them; see `TakenConversations`.

    The number of a conversation that is denied is -1 - its number.

    Attributes:
        data: the conversations.
        config: the settings.
        reads_ahead: tokens of a conversation beyond its inputs: 1 where the last one is only a label.
        name: name of the dataset, for messages.
    """

    data: JoinedConversations
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
            taken = self._taken(number, self.data.of(number, pair)).places()
            return taken if shares_samples else np.minimum(taken, 1)

        self.data.pairs.tell(documents, places)

    def _taken(self, number: int, data: SFTLowLevelDataset) -> TakenConversations:
        if (taken := self._of_pairs.get(number)) is None:
            check_roles_tokenizer(data.roles, self.config, name=f"`{data.path_prefix}`")
            taken = taken_of_pair(data, self.config, reads_ahead=self.reads_ahead)
            taken = self._of_pairs.setdefault(number, taken)
        return taken

    def _parts(self, sequences: Int64s) -> Iterator[tuple[TakenConversations, int, Int64s]]:
        """Yields what some of these lie in, the first number of that pair, and which of them do: int64[count]."""
        numbers = self.data.pairs.numbers(sequences)
        for number in np.unique(numbers).tolist():
            taken = self._taken(number, self.data.open(number))
            yield taken, self.data.pairs.first_of(number), np.flatnonzero(numbers == number)

    def segments(self, sequences: Int64s) -> Int64s:
        """Returns (sequence, inputs, tokens, slots) of what a sample takes of each: int64[count, 4].

        Of those that are denied, what they would take.
        """
        known = np.where(sequences < 0, -1 - sequences, sequences)
        segments = np.empty((len(sequences), 4), dtype=np.int64)
        for taken, first, chosen in self._parts(known):
            segments[chosen] = taken.segments(known[chosen] - first)
            taken.check()
        segments[:, 0] = sequences
        return segments

    def shares(self, sequences: Int64s) -> Int64s:
        """Returns what `TakenConversations.shares` does; of those that are denied, what they would take."""
        known = np.where(sequences < 0, -1 - sequences, sequences)
        shares = np.empty((len(sequences), 5), dtype=np.int64)
        for taken, first, chosen in self._parts(known):
            shares[chosen] = taken.shares(known[chosen] - first)
            taken.check()
        return shares

    def exposure_of(self, number: int) -> Exposure:
        """Returns what samples take of each conversation of a pair, which is opened; a pass over lengths and roles."""
        taken = self._taken(number, self.data.open(number))
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

    def check(self) -> None:
        """Does nothing: lengths are checked where they are read."""


def taken_of_pair(data: SFTLowLevelDataset, config: SFTDatasetConfig, *, reads_ahead: int) -> TakenConversations:
    """Returns all conversations of a pair, as samples take them."""
    rows = Rows.of(range(len(data)))
    return TakenConversations(
        data=data, rows=rows, config=config, reads_ahead=reads_ahead, name=f"`{data.path_prefix}`"
    )
