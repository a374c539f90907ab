"""Fine-tuning on conversations: their order, rows and ledger, and whole ones packed into samples of one length."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.attention import attention_outputs
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.chat_config import SFTDatasetConfig, as_chat_config
from tokenloom.datasets.chat_data import SFTLowLevelDataset
from tokenloom.datasets.columns import weigh_loss
from tokenloom.datasets.data_match import check_kind
from tokenloom.datasets.exposure import TakenConversations, TakenOfPairs, taken_of_pair
from tokenloom.datasets.ledger import ChatLedger, Count, SlotCounts, count_conversations
from tokenloom.datasets.outputs import recycled_empty
from tokenloom.datasets.pair_samples import PairOrigin, PairSamples
from tokenloom.datasets.protocols import Int64s, Positions
from tokenloom.datasets.shortcuts import check_hooks
from tokenloom.datasets.splits import Split
from tokenloom.datasets.tensors import Sample, to_tensors
from tokenloom.datasets.tokenizer import fill_token_id
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.kernels.samples import fill_attention
from tokenloom.order.arrays import ArrayStore
from tokenloom.order.conversations import ConversationOrder, PackedConversations
from tokenloom.order.walk_order import WalkOrder
from tokenloom.order.windows import SpanBatch


class ConversationSamples(PairSamples):
    """What datasets have beside `PairSamples` whose samples are whole conversations.

    A class says how many tokens a conversation has beyond its inputs (`reads_ahead`: 1 where the last token is only
    a label), and how the stream of shuffled conversations becomes samples.
    """

    reads_ahead: ClassVar[int]
    reads_text: ClassVar[bool] = False
    """Whether an ordinary pair will do: a text per sequence."""
    shares_samples: ClassVar[bool] = True
    """Whether a sample holds as many conversations as fit; else one."""
    makes_batches: ClassVar[bool] = True
    config_class: ClassVar[type[SFTDatasetConfig]] = SFTDatasetConfig

    config: SFTDatasetConfig
    order: ConversationOrder | WalkOrder
    _taken: TakenConversations | TakenOfPairs

    def __init__(
        self,
        dataset: Any,
        dataset_path: str | None,
        indices: NDArray[Any],
        num_samples: int | None,
        index_split: Split,
        config: Any,
    ) -> None:
        config = as_chat_config(config, self.config_class)
        super().__init__(dataset, dataset_path, indices, num_samples, index_split, config)
        self._check_pair()
        check_slots(config)
        if self.num_samples is not None and self.num_samples < 0:
            message = f"expected num_samples of at least 0, found {self.num_samples}"
            raise ConfigError(message)
        check_kind(dataset, config, name=f"`{dataset_path or type(self).__name__}`", reads="conversations")
        self._fill_id = fill_token_id(config.tokenizer)
        self._taken = TakenConversations(
            data=dataset, rows=self.rows, config=config, reads_ahead=self.reads_ahead, name=self._name()
        )
        tell = dataset.identity if isinstance(dataset, SFTLowLevelDataset) else None
        self.order = self._make_order(self._taken, self._array_store(PairOrigin(dataset=dataset, tell=tell)))

    @classmethod
    def taken_of(cls, pairs: JoinedPairs, config: Any, *, name: str) -> TakenOfPairs:
        """Returns what samples take of the conversations of several pairs, for `in_order`.

        Args:
            pairs: the pairs.
            config: the settings.
            name: name of the data, for messages.
        """
        config = as_chat_config(config, cls.config_class)
        return TakenOfPairs(
            pairs=pairs, plain_text=cls.reads_text, config=config, reads_ahead=cls.reads_ahead, name=name
        )

    @classmethod
    def count_places(cls, pair: IndexedDataset, config: Any) -> NDArray[np.int32]:
        """Returns what each conversation of a pair takes of samples: int32[num_conversations], 0 for those left out.

        That is how many positions, or 1 where a sample holds one conversation. Says what is wrong with those left out.

        Raises:
            ConfigError: a setting asks for an error instead.
        """
        config = as_chat_config(config, cls.config_class)
        check_slots(config)
        data = SFTLowLevelDataset.of_pair(pair, plain_text=cls.reads_text)
        places = np.zeros(len(data), dtype=np.int32)
        kept, slots = taken_of_pair(data, config, reads_ahead=cls.reads_ahead).kept()
        places[kept] = slots if cls.shares_samples else 1
        return places

    @classmethod
    def in_order(cls, taken: TakenOfPairs, order: WalkOrder) -> Self:
        """Returns samples in an order that is computed: nothing is built or stored, and no epochs are planned.

        Args:
            taken: the conversations, as the samples take them.
            order: which of them are sample i.

        Raises:
            ConfigError: a setting is wrong, or the class overrides what would have no effect.
        """
        config = as_chat_config(taken.config, cls.config_class)
        dataset = cls.__new__(cls)
        MegatronDataset.__init__(dataset, taken.pairs, taken.name, range(0), None, Split.train, config)
        dataset._check_pair()
        check_slots(config)
        dataset._fill_id = fill_token_id(config.tokenizer)
        dataset._taken = taken
        dataset.order = order
        return dataset

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Returns the number of conversations."""
        return len(low_level_dataset)

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [
            *MegatronDataset._key_config_attributes(),
            "train_on",
            "long_conversations",
            "untrainable_conversations",
            "slot_multiple",
        ]

    def _further_identifiers(self) -> dict[str, Any]:
        most = self.config.most_conversations
        return {} if most is None else {"most_conversations": most}

    @abstractmethod
    def _make_order(self, taken: TakenConversations, store: ArrayStore) -> ConversationOrder:
        """Returns how the stream of shuffled conversations becomes samples."""

    @property
    def document_index(self) -> NDArray[Any]:
        """int32[num_conversations], the shuffled conversations that the samples read, in order."""
        return self._stored().arrays["document_index"]

    def _stored(self) -> ConversationOrder:
        """Returns the order, for what asks more of it than the conversations of a sample."""
        if isinstance(self.order, ConversationOrder):
            return self.order
        message = f"{self._name()} has no indices: its order is computed, and has no end"
        raise ConfigError(message, hint="ask for samples by their positions; `tokenloom run plan` has the accounts")

    # --- samples ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of samples; opens the index where it was not asked for a number."""
        return self.order.num_samples

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as torch tensors; None gives one with an all-zero loss mask, for filling up a batch."""
        return to_tensors(self._sample_for_item(idx))

    def _fill(self, sequences: Int64s, row_offsets: Int64s, *, width: int, with_boundaries: bool) -> Sample:
        """Returns rows of conversations: row r holds sequences [row_offsets[r], row_offsets[r + 1])."""
        count = len(row_offsets) - 1
        sample: Sample = {
            "tokens": recycled_empty((count, width), np.int64),
            "labels": recycled_empty((count, width), np.int64),
            "loss_mask": recycled_empty((count, width), np.float32),
            "position_ids": recycled_empty((count, width), np.int64),
        }
        if with_boundaries:
            sample["cu_seqlens"] = recycled_empty((count, width + 1), np.int32)
            sample["max_seqlen"] = np.empty(count, dtype=np.int32)
        if self.config.columns:
            columns = self._taken.column_outputs(width)
            sample |= {each.name: recycled_empty((count, *each.shape), each.dtype) for each in columns}
        self._taken.fill(sequences, row_offsets, fill_id=self._fill_id, out=sample)
        self._check_read()
        config, size = self.config, self.config.attention_block_size
        outputs = []
        if with_boundaries:
            outputs = attention_outputs(
                config.attention, length=width, block_size=size, has_prefixes=config.attention_prefix
            )
        sample |= {each.name: recycled_empty((count, *each.shape), each.dtype) for each in outputs}
        if outputs:
            fill_attention(sample, length=width, block_size=size, window=config.attention_window)
        if config.columns or config.loss_weights:
            weigh_loss(sample, None, config.loss_weights.get(self.dataset_path or "", 1.0))
        return sample

    def _check_read(self) -> None:
        """Makes sure that what was read of indices and lengths is what their files held."""
        self.order.check()
        self._taken.check()

    def span_batch(self, positions: Positions) -> SpanBatch:
        """Returns the spans of many samples."""
        rows, _ = self._rows(positions)
        sequences, row_offsets = self.order.conversations(rows)
        lengths = np.ascontiguousarray(self._taken.segments(sequences)[:, 2])
        self._check_read()
        return SpanBatch(sequences, np.zeros_like(sequences), lengths, row_offsets)

    def slots_of(self, sequences: Int64s) -> Int64s:
        """Returns the positions of a sample that each conversation takes, padding included: int64[num_sequences]."""
        return np.ascontiguousarray(self._taken.segments(sequences)[:, 3])

    def epochs_of(self, positions: Positions) -> Int64s:
        """Returns the epoch that each sample begins in, int64[num_positions], from 0; -1 where the order is computed.

        A pass over lengths and roles: an epoch is as many conversations as samples are made of.
        """
        rows, _ = self._rows(positions)
        if not isinstance(self.order, ConversationOrder):
            return np.full(len(rows), -1, dtype=np.int64)
        assert isinstance(self._taken, TakenConversations)  # what a stored order is over
        num_kept = int(np.count_nonzero(self._taken.exposure().kept))
        found: Int64s = self.order.starts()[rows] // max(num_kept, 1)
        return found

    # --- accounts ---------------------------------------------------------------------------------------------

    def slot_counts(self, positions: NDArray[np.integer[Any]]) -> SlotCounts:
        """Returns what became of the slots of samples, and of the conversations in them; reads lengths and roles alone.

        Raises:
            ConfigError: a class of a user's own changes the samples, which this knows nothing of.
        """
        check_hooks(self, "outline", "counts")
        rows, _ = self._rows(positions)
        sequences, _ = self.order.conversations(rows)
        shares = self._taken.shares(sequences)
        self._check_read()
        return self._count(shares, sequences < 0, samples=len(rows))

    def _count(self, shares: Int64s, denied: NDArray[np.bool_], *, samples: int) -> SlotCounts:
        slots = samples * self.config.sequence_length if self.shares_samples else int(shares[:, 3].sum())
        return count_conversations(shares, denied, samples=samples, slots=slots)

    def ledger(self) -> ChatLedger:
        """Returns what became of every conversation and token; a pass over lengths, roles and indices.

        Raises:
            ConfigError: a class of a user's own changes the samples, which this knows nothing of.
        """
        check_hooks(self, "outline", "a ledger")
        stored, taken = self._stored(), self._taken
        assert isinstance(taken, TakenConversations)  # what a stored order is over
        exposure = taken.exposure()
        stream = self.document_index.astype(np.int64)
        shares = taken.shares(stream)
        lengths, _, available, _, trained = shares.T
        kept = self.indices[exposure.kept].astype(np.int64)
        num_epochs = max(1, -(-len(stream) // max(len(kept), 1)))
        unread = num_epochs - np.bincount(stream, minlength=len(self.dataset))[kept]
        tokens = int((unread * exposure.lengths[exposure.kept]).sum())
        trained_before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(trained)])
        everything = np.ones(len(self.indices), dtype=np.bool_)
        return ChatLedger(
            num_epochs=num_epochs,
            exposed=exposure.count(everything) * num_epochs,
            dropped_empty=exposure.count(exposure.empty) * num_epochs,
            dropped_long=exposure.count(exposure.too_long) * num_epochs,
            dropped_untrainable=exposure.count(exposure.untrainable) * num_epochs,
            not_reached=Count(conversations=int(unread.sum()), tokens=tokens),
            truncated=Count(conversations=int((lengths > available).sum()), tokens=int((lengths - available).sum())),
            num_untrainable_samples=int((np.diff(trained_before[stored.starts()]) == 0).sum()),
            counts=self._count(shares, np.zeros(len(stream), dtype=np.bool_), samples=len(self)),
        )


class SFTDataset(ConversationSamples):
    """Samples of `sequence_length` positions, filled with whole conversations in shuffled order.

    Conversations are shuffled epoch by epoch and packed by next fit: each joins the sample before it if it fits, and
    begins a new one if it does not. A sample holds tokens int64[S], labels int64[S] (-100 where there is no loss),
    loss_mask float32[S], position_ids int64[S] (from 0 in each conversation), cu_seqlens int32[S + 1] (where
    conversations begin, filled up with S) and max_seqlen int32, as `GPTDataset` has them under
    `inter_document_masking`. Each conversation takes a multiple of `slot_multiple` positions; what is left of a sample
    counts as padding of its last conversation. A label never belongs to another conversation than its token.

    The order follows from the seed and the conversations: more samples, or a longer run, begin with the same ones.
    `dataset.ledger()` accounts for every conversation and token. Safe from several threads, after a fork, and
    picklable.

    Args:
        dataset: the conversations, see `build_low_level_dataset`.
        dataset_path: their path, for the cache key.
        indices: integers[num_conversations], those to expose.
        num_samples: how many samples, from as many epochs as that takes; None for one epoch.
        index_split: which split this is.
        config: an `SFTDatasetConfig`, or a `GPTDatasetConfig` where the defaults will do.

    Raises:
        ConfigError: a setting is wrong, or samples are wanted and no conversation has anything to train.
        IndexCacheError: `path_to_cache` cannot be written, or deferred or fast loading finds no usable cache.
    """

    reads_ahead = 0

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> SFTLowLevelDataset:
        """Opens conversations: the prefix of a tokenized pair, or a file that is then tokenized once."""
        return SFTLowLevelDataset(dataset_path, config)

    def _make_order(self, taken: TakenConversations, store: ArrayStore) -> PackedConversations:
        config = self.config
        return PackedConversations(
            taken,
            self.num_samples,
            seed=config.random_seed,
            store=store,
            capacity=config.sequence_length,
            most_conversations=config.most_conversations,
        )

    @property
    def sample_index(self) -> Int64s:
        """int64[num_samples + 1], the position in `document_index` at which each sample begins, and the end."""
        return self._stored().starts()

    def _batch(self, rows: Int64s) -> Sample:
        """Returns the samples at positions that are known to exist: int64[count]."""
        try:
            return self._fill(*self.order.conversations(rows), width=self.config.sequence_length, with_boundaries=True)
        except IndexError as error:  # the positions exist, so it is the indices that do not fit
            raise self._damaged(error) from error


def check_slots(config: SFTDatasetConfig) -> None:
    """Checks that conversations fill samples."""
    if config.sequence_length % config.slot_multiple:
        message = (
            f"expected sequence_length to be a multiple of {config.slot_multiple}, which context and sequence "
            f"parallelism ask of every conversation, found {config.sequence_length}"
        )
        raise ConfigError(message)
