"""Fine-tuning on conversations: whole ones packed into samples of one length, with loss on what the assistant says."""

from __future__ import annotations

from typing import Any

from tokenloom.datasets.chat_data import SFTLowLevelDataset
from tokenloom.datasets.conversations import ConversationSamples
from tokenloom.datasets.exposure import TakenConversations
from tokenloom.datasets.protocols import Int64s
from tokenloom.datasets.tensors import Sample, to_tensors
from tokenloom.order.arrays import ArrayStore
from tokenloom.order.conversations import PackedConversations


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

    def __len__(self) -> int:
        """The number of samples; opens the index where it was not asked for a number."""
        return self.order.num_samples

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as torch tensors; None gives one with an all-zero loss mask, for filling up a batch."""
        return to_tensors(self._sample_for_item(idx))

    def _batch(self, rows: Int64s) -> Sample:
        """Returns the samples at positions that are known to exist: int64[count]."""
        try:
            return self._fill(*self.order.conversations(rows), width=self.config.sequence_length, with_boundaries=True)
        except IndexError as error:  # the positions exist, so it is the indices that do not fit
            raise self._damaged(error) from error

    def _num_slots(self, slots: Int64s) -> int:
        return len(self) * self.config.sequence_length
