"""Datasets for fine-tuning: samples of one conversation each, or equally long packs of conversations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.attention import attention_outputs
from tokenloom.datasets.base import MegatronDataset, PairOrigin, PairSamples
from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig, as_chat_config
from tokenloom.datasets.columns import LOSS_WEIGHT, weigh_loss
from tokenloom.datasets.exposure import (
    JoinedConversations,
    SFTLowLevelDataset,
    SplitConversations,
    conversations_of_pair,
)
from tokenloom.datasets.mock import MockGPTLowLevelDataset
from tokenloom.datasets.protocols import Int64s, Positions
from tokenloom.datasets.sample_arrays import Output, recycled_empty, sample_outputs
from tokenloom.datasets.shortcuts import check_hooks
from tokenloom.datasets.slot_counts import ChatLedger, Count, SlotCounts, count_conversations
from tokenloom.datasets.splits import Split
from tokenloom.datasets.tensors import Sample, to_tensors
from tokenloom.datasets.tokenizer import TokenizerLike, fill_token_id
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.indexed.roles import SequenceRoles
from tokenloom.kernels.samples import fill_attention
from tokenloom.order.array_store import ArrayStore
from tokenloom.order.conversations import ConversationOrder, PackedConversations, SingleConversations
from tokenloom.order.walk_order import WalkOrder
from tokenloom.order.windows import SpanBatch


class ConversationSamples(PairSamples):
    """The base class of datasets whose samples consist of whole conversations."""

    _reads = "conversations"
    reads_ahead: ClassVar[int]
    """1 if the last token of a conversation is read only as the last label, not as an input; else 0."""
    reads_text: ClassVar[bool] = False
    """Whether a pair without roles is read as plain text, with loss everywhere."""
    shares_samples: ClassVar[bool] = True
    """Whether a sample packs as many conversations as fit; False for one conversation per sample."""
    makes_batches: ClassVar[bool] = True
    config_class: ClassVar[type[SFTDatasetConfig]] = SFTDatasetConfig

    config: SFTDatasetConfig
    order: ConversationOrder | WalkOrder
    _source: SplitConversations | JoinedConversations

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
        self._fill_id = fill_token_id(config.tokenizer)
        self._source = SplitConversations(dataset, self.rows, config, self.reads_ahead, self._name())
        identify = dataset.identity if isinstance(dataset, SFTLowLevelDataset) else None
        self.order = self._make_order(self._source, self._array_store(PairOrigin(dataset=dataset, identify=identify)))

    @classmethod
    def joined_conversations(cls, pairs: JoinedPairs, config: Any, *, name: str) -> JoinedConversations:
        """Returns the conversations of several pairs, to pass to `in_order`."""
        config, ahead = as_chat_config(config, cls.config_class), cls.reads_ahead
        return JoinedConversations(pairs=pairs, plain_text=cls.reads_text, config=config, reads_ahead=ahead, name=name)

    @classmethod
    def count_slots(cls, pair: IndexedDataset, config: Any) -> NDArray[np.int32]:
        """Returns the number of slots per conversation, int32[num_conversations]; warns of untrainable conversations.

        A dropped conversation has 0 slots. If each sample has one conversation, all other conversations have 1 slot.
        """
        config = as_chat_config(config, cls.config_class)
        data = SFTLowLevelDataset.of_pair(pair, plain_text=cls.reads_text)
        slots_of_each = np.zeros(len(data), dtype=np.int32)
        kept, slots = conversations_of_pair(data, config, reads_ahead=cls.reads_ahead).kept()
        slots_of_each[kept] = slots if cls.shares_samples else 1
        return slots_of_each

    @classmethod
    def in_order(cls, source: JoinedConversations, order: WalkOrder) -> Self:
        """Returns a dataset whose samples follow a computed order, without building indices or planning epochs."""
        dataset = cls.__new__(cls)
        MegatronDataset.__init__(dataset, source.pairs, source.name, range(0), None, Split.train, source.config)
        dataset._check_pair()
        dataset._fill_id = fill_token_id(source.config.tokenizer)
        dataset._source = source
        dataset.order = order
        return dataset

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Returns the number of conversations."""
        return len(low_level_dataset)

    @staticmethod
    def _key_config_attributes() -> list[str]:
        own = ["train_on", "long_conversations", "untrainable_conversations", "slot_multiple"]
        return MegatronDataset._key_config_attributes() + own

    def _further_identifiers(self) -> dict[str, Any]:
        most = self.config.most_conversations
        return {} if most is None else {"most_conversations": most}

    @abstractmethod
    def _make_order(self, source: SplitConversations, store: ArrayStore) -> ConversationOrder:
        """Returns the order of samples."""

    @property
    def document_index(self) -> NDArray[Any]:
        """integers[count], the conversations of all epochs in the order of the samples, as rows of the `.idx` file."""
        return self._stored().arrays["document_index"]

    def _stored(self) -> ConversationOrder:
        if isinstance(self.order, ConversationOrder):
            return self.order
        hint = "read samples by position, or run `tokenloom run plan` for counts"
        raise ConfigError(f"{self._name()} has no index arrays, as its order is computed and endless", hint=hint)

    def __len__(self) -> int:
        """Returns the number of samples; opens the index if `num_samples` is None."""
        return self.order.num_samples

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as torch tensors; for None, a sample with an all-zero loss mask."""
        return to_tensors(self._sample_for_item(idx))

    def _fill(self, sequences: Int64s, row_offsets: Int64s, *, width: int, with_boundaries: bool) -> Sample:
        """Returns a batch; row r has the conversations `sequences[row_offsets[r]:row_offsets[r + 1]]`."""
        config, size = self.config, self.config.attention_block_size
        masks: list[Output] = []
        if with_boundaries:
            has_prefixes = config.attention_prefix
            masks = attention_outputs(config.attention, length=width, block_size=size, has_prefixes=has_prefixes)
        outputs = sample_outputs(width, boundaries=with_boundaries) + self._source.column_outputs(width) + masks
        leading = (len(row_offsets) - 1,)
        sample = {each.name: recycled_empty(leading + each.shape, each.dtype or np.int64) for each in outputs}
        self._source.fill(sequences, row_offsets, fill_id=self._fill_id, out=sample)
        self._check_read()
        if masks:
            fill_attention(sample, length=width, block_size=size, window=config.attention_window)
        if config.columns or config.loss_weights:
            weigh_loss(sample, None, config.loss_weights.get(self.dataset_path or "", 1.0))
        return sample

    def _check_read(self) -> None:
        """Raises if the files of indices or lengths changed while they were read."""
        self.order.check()
        self._source.check()

    def span_batch(self, positions: Positions) -> SpanBatch:
        """Returns the spans of many samples."""
        rows, _ = self._rows(positions)
        sequences, row_offsets = self.order.conversations(rows)
        lengths = np.ascontiguousarray(self._source.segments(sequences)[:, 2])
        self._check_read()
        return SpanBatch(sequences, np.zeros_like(sequences), lengths, row_offsets)

    def slots_of(self, sequences: Int64s) -> Int64s:
        """Returns the number of slots per conversation, including padding: int64[num_sequences]."""
        return np.ascontiguousarray(self._source.segments(sequences)[:, 3])

    def epochs_of(self, positions: Positions) -> Int64s:
        """Returns the epoch, from 0, in which each sample begins: int64[n]; -1 without epochs. Reads all lengths."""
        rows, _ = self._rows(positions)
        if not isinstance(self.order, ConversationOrder):
            return np.full(len(rows), -1, dtype=np.int64)
        assert isinstance(self._source, SplitConversations)  # a stored order reads one pair
        num_kept = int(np.count_nonzero(self._source.exposure().kept))
        found: Int64s = self.order.starts()[rows] // max(num_kept, 1)
        return found

    def slot_counts(self, positions: NDArray[np.integer[Any]]) -> SlotCounts:
        """Counts the slots and tokens of samples, from lengths and roles alone."""
        check_hooks(self, "outline", "counts")
        rows, _ = self._rows(positions)
        sequences, _ = self.order.conversations(rows)
        shares = self._source.shares(sequences)
        self._check_read()
        return self._count(shares, sequences < 0, samples=len(rows))

    def _count(self, shares: Int64s, denied: NDArray[np.bool_], *, samples: int) -> SlotCounts:
        slots = samples * self.config.sequence_length if self.shares_samples else int(shares[:, 3].sum())
        return count_conversations(shares, denied, samples=samples, slots=slots)

    def ledger(self) -> ChatLedger:
        """Counts all conversations and tokens of the split; reads all lengths, roles and indices."""
        check_hooks(self, "outline", "a ledger")
        stored, source = self._stored(), self._source
        assert isinstance(source, SplitConversations)  # a stored order reads one pair
        exposure = source.exposure()
        stream = self.document_index.astype(np.int64)
        shares = source.shares(stream)
        lengths, _, available, _, trained = shares.T
        kept = self.indices[exposure.kept].astype(np.int64)
        num_epochs = max(1, -(-len(stream) // max(len(kept), 1)))
        unread = num_epochs - np.bincount(stream, minlength=len(self.dataset))[kept]
        tokens = int((unread * exposure.shares[exposure.kept, 0]).sum())
        trained_before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(trained)])
        return ChatLedger(
            num_epochs=num_epochs,
            exposed=exposure.count(np.ones(len(self.indices), dtype=np.bool_)) * num_epochs,
            dropped_empty=exposure.count(exposure.empty) * num_epochs,
            dropped_long=exposure.count(exposure.too_long) * num_epochs,
            dropped_untrainable=exposure.count(exposure.untrainable) * num_epochs,
            not_reached=Count(conversations=int(unread.sum()), tokens=tokens),
            truncated=Count(conversations=int((lengths > available).sum()), tokens=int((lengths - available).sum())),
            num_untrainable_samples=int((np.diff(trained_before[stored.starts()]) == 0).sum()),
            counts=self._count(shares, np.zeros(len(stream), dtype=np.bool_), samples=len(self)),
        )


class SFTDataset(ConversationSamples):
    """A dataset whose samples are packs of whole, shuffled conversations; a sample has `sequence_length` slots.

    Conversations are shuffled per epoch and packed by next fit: each joins the current sample if it fits, or begins the
    next sample. A sample has tokens int64[S], labels int64[S] (-100: no loss), loss_mask float32[S], position_ids
    int64[S] (from 0 in each conversation), cu_seqlens int32[S + 1] (starts of conversations, then padded with S) and
    max_seqlen int32, like `GPTDataset` with `inter_document_masking`. Each conversation is padded to a multiple of
    `slot_multiple` slots; the rest of the sample is padding. Labels do not cross conversations.

    The order depends only on the seed and the conversations: a run with more samples begins with the same samples.
    `dataset.ledger()` counts all conversations and tokens. Thread-safe, fork-safe and picklable.

    Args:
        dataset: the conversations, see `build_low_level_dataset`.
        dataset_path: path of the conversations, for the cache key.
        indices: integers[num_conversations], the conversations of the split.
        num_samples: number of samples, which sets the number of epochs; None for one epoch.
        index_split: the split that these samples belong to.
        config: an `SFTDatasetConfig`; or a `GPTDatasetConfig`, with defaults for all other settings.

    Raises:
        ConfigError: a setting is invalid, or `num_samples` is above 0 and no conversation has a token to train on.
        IndexCacheError: `path_to_cache` cannot be written; or no valid index is cached and settings forbid building.
    """

    reads_ahead = 0

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> SFTLowLevelDataset:
        """Opens a tokenized pair by its prefix, or tokenizes a raw file on first use."""
        return SFTLowLevelDataset(dataset_path, config)

    def _make_order(self, source: SplitConversations, store: ArrayStore) -> PackedConversations:
        seed, capacity, most = self.config.random_seed, self.config.sequence_length, self.config.most_conversations
        return PackedConversations(
            source, self.num_samples, seed=seed, store=store, capacity=capacity, most_conversations=most
        )

    @property
    def sample_index(self) -> Int64s:
        """int64[num_samples + 1]; sample i has conversations `document_index[sample_index[i]:sample_index[i + 1]]`."""
        return self._stored().starts()

    def _batch(self, rows: Int64s) -> Sample:
        try:
            return self._fill(*self.order.conversations(rows), width=self.config.sequence_length, with_boundaries=True)
        except IndexError as error:  # the positions are validated, so the indices are wrong
            raise self._damaged(error) from error


class VarlenDataset(ConversationSamples):
    """A dataset whose samples have one conversation or text each, padded to a multiple of `slot_multiple` slots.

    For a conversation of n tokens, a sample has tokens (the first n - 1), labels (the last n - 1; -100: no loss) and
    position_ids, all int64[P]; loss_mask float32[P]; original_seq_len int32[1] (n - 1) and padded_seq_len int32[1]
    (P: n - 1, padded). `long_conversations` applies if n - 1 is above `sequence_length`. Samples are shuffled per
    epoch. `lengths()` returns the `original_seq_len` of each sample without reading tokens. A pair without roles is
    read as plain text: one text per sequence, with loss everywhere. Thread-safe, fork-safe and picklable.

    Arguments and errors are those of `SFTDataset`; the config is a `VarlenDatasetConfig`.
    """

    reads_ahead = 1
    reads_text = True
    shares_samples = False
    makes_batches = False
    config_class: ClassVar[type[SFTDatasetConfig]] = VarlenDatasetConfig

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        """Opens a pair of conversations or texts by its prefix, or tokenizes a raw file on first use."""
        return SFTLowLevelDataset(dataset_path, config, plain_text=VarlenDataset.reads_text)

    def _make_order(self, source: SplitConversations, store: ArrayStore) -> SingleConversations:
        return SingleConversations(source, self.num_samples, seed=self.config.random_seed, store=store)

    def lengths(self, positions: Positions | None = None) -> Int64s:
        """Returns the `original_seq_len` of samples (default: all), int64[num_positions], without reading tokens."""
        return self._segment_column(positions, 1)

    def padded_lengths(self, positions: Positions | None = None) -> Int64s:
        """Returns the `padded_seq_len` of samples (default: all), int64[num_positions], without reading tokens."""
        return self._segment_column(positions, 3)

    def _segment_column(self, positions: Positions | None, column: int) -> Int64s:
        if positions is None:
            chosen = self.document_index.astype(np.int64)
        else:
            chosen, _ = self.order.conversations(self._rows(positions)[0])
        segments = self._source.segments(chosen)
        self._check_read()
        return np.ascontiguousarray(segments[:, column])

    def _batch(self, rows: Int64s) -> Sample:
        hint = "read samples one at a time (`dataset[i]`), and pack them with a packing scheduler"
        raise ConfigError(f"{type(self).__name__}: cannot batch samples of different lengths", hint=hint)

    def _sample(self, idx: int | None) -> Sample:
        position = 0 if idx is None else self._position(idx)
        sequences, row_offsets = self.order.conversations(np.array([position], dtype=np.int64))
        _, inputs, _, slots = self._source.segments(sequences)[0].tolist()
        rows = self._fill(sequences, row_offsets, width=slots, with_boundaries=False)
        sample: Sample = {name: array[0] for name, array in rows.items()}
        sample.pop(LOSS_WEIGHT, None)  # the loss mask already contains it, and schedulers drop columns
        sample["original_seq_len"] = np.array([inputs], dtype=np.int32)
        sample["padded_seq_len"] = np.array([slots], dtype=np.int32)
        if idx is None:
            sample["loss_mask"][:] = 0
        return sample


class MockVarlenLowLevelDataset(MockGPTLowLevelDataset):
    """A low-level dataset of mock texts with lengths from a distribution or a file.

    A text has the tokens 1, 2, 3, … modulo the vocabulary size, and ends with the end-of-document id.

    Args:
        tokenizer: provides the vocabulary size and the end-of-document id.
        mode: "distribution" draws lengths; "file" reads lengths from a file.
        settings: settings of the mode, see `VarlenDatasetConfig.mock_dataset_config`.

    Raises:
        ConfigError: a setting is missing or unknown, or the file has no valid lengths.
    """

    seed = 0
    size = 1_000_000

    def __init__(self, tokenizer: TokenizerLike, *, mode: str, **settings: Any) -> None:
        self.vocab_size: int = tokenizer.vocab_size
        self.eod_token: int = tokenizer.eod
        modes: dict[str, Callable[..., Int64s]] = {"distribution": self._lognormal, "file": _lengths_of_file}
        if mode not in modes:
            raise ConfigError(f"`mode` of mock data: must be 'distribution' or 'file', got {mode!r}")
        try:
            lengths = modes[mode](**settings)
        except TypeError as error:
            raise ConfigError(f"mock data: invalid settings for mode {mode!r}: {error}") from error
        self.sequence_lengths: NDArray[np.int32] = np.maximum(lengths, 2).astype(np.int32)
        self.roles: SequenceRoles = SequenceRoles()

    def _lognormal(
        self, *, type: str, min_seq_len: int, max_seq_len: int, mean_seq_len: float, lognormal_sigma: float
    ) -> Int64s:
        if type != "lognormal" or not 0 < min_seq_len <= max_seq_len or not mean_seq_len > 0 or lognormal_sigma < 0:
            raise ConfigError(
                "mock data: must have type='lognormal', 0 < min_seq_len <= max_seq_len, mean_seq_len > 0 and "
                f"lognormal_sigma >= 0, got type={type}, min_seq_len={min_seq_len}, max_seq_len={max_seq_len}, "
                f"mean_seq_len={mean_seq_len} and lognormal_sigma={lognormal_sigma}"
            )
        # The same generator and draws as the reference.
        random = np.random.RandomState(self.seed)
        drawn = random.lognormal(np.log(mean_seq_len) - lognormal_sigma**2 / 2, lognormal_sigma, self.size)
        return np.clip(drawn, min_seq_len, max_seq_len).astype(np.int64)


def _lengths_of_file(*, path: str) -> Int64s:
    try:
        lengths: Int64s = np.loadtxt(path, dtype=np.int64, skiprows=1, ndmin=1, delimiter=",").ravel()
    except (OSError, ValueError) as error:
        raise ConfigError(f"`{path}`: must have a header and one length per line: {error}") from error
    if not len(lengths) or int(lengths.min()) < 1 or int(lengths.max()) > np.iinfo(np.int32).max:
        raise ConfigError(f"`{path}`: must have at least one length, and lengths in [1, 2**31)")
    return lengths


class MockVarlenDataset(VarlenDataset):
    """A `VarlenDataset` of mock texts, to measure training without data."""

    mock_of: ClassVar[type | None] = VarlenDataset

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> MockVarlenLowLevelDataset:
        """Returns the mock texts; ignores the path."""
        settings = as_chat_config(config, VarlenDatasetConfig).mock_dataset_config or {
            "mode": "distribution",
            "type": "lognormal",
            "min_seq_len": max(config.sequence_length // 2, 1),
            "max_seq_len": config.sequence_length,
            "mean_seq_len": max(config.sequence_length // 4 * 3, 1),
            "lognormal_sigma": 1.1,
        }
        return MockVarlenLowLevelDataset(config.tokenizer, **settings)
