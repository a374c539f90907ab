"""What `SFTDataset` and `VarlenDataset` share: tokenized conversations, their order, their rows and their ledger."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.chat_config import SFTDatasetConfig, as_chat_config
from tokenloom.datasets.chat_data import SFTLowLevelDataset
from tokenloom.datasets.data_match import check_kind
from tokenloom.datasets.data_origin import PairOrigin
from tokenloom.datasets.exposure import TakenConversations
from tokenloom.datasets.ledger import ChatLedger, Count
from tokenloom.datasets.outputs import recycled_empty
from tokenloom.datasets.pair_samples import PairSamples
from tokenloom.datasets.shortcuts import OUTLINE, refuse_hook
from tokenloom.datasets.splits import Split
from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer import fill_token_id
from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.indexed.layout import DType
from tokenloom.indexed.token_source import SEQUENCES, gather_tokens
from tokenloom.order.conversation_order import ConversationOrder, PackedSamples, SingleSamples
from tokenloom.order.windows import SpanBatch, Spans

_dtype_code = cache(DType.code_from_dtype)


if TYPE_CHECKING:

    class _Base(PairSamples, MegatronDataset):
        """What a dataset class has this beside."""
else:
    _Base = object


class ConversationSamples(_Base):
    """What datasets have beside `PairSamples` whose samples are whole conversations.

    A class says how many tokens a conversation has beyond its inputs (`reads_ahead`: 1 where the last token is only
    a label), and how the stream of shuffled conversations becomes samples.
    """

    reads_ahead: ClassVar[int]
    makes_batches: ClassVar[bool] = True
    config_class: ClassVar[type[SFTDatasetConfig]] = SFTDatasetConfig

    config: SFTDatasetConfig
    order: ConversationOrder

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
        if config.sequence_length % config.slot_multiple:
            message = (
                f"expected sequence_length to be a multiple of {config.slot_multiple}, which context and sequence "
                f"parallelism ask of every conversation, found {config.sequence_length}"
            )
            raise ConfigError(message)
        if self.num_samples is not None and self.num_samples < 0:
            message = f"expected num_samples of at least 0, found {self.num_samples}"
            raise ConfigError(message)
        check_kind(dataset, config, name=f"`{dataset_path or type(self).__name__}`", reads="conversations")
        self._check_tokenizer()
        self._fill_id = fill_token_id(config.tokenizer)
        self._taken = TakenConversations(
            data=dataset, rows=self.rows, config=config, reads_ahead=self.reads_ahead, name=self._name()
        )
        tell = dataset.identity if isinstance(dataset, SFTLowLevelDataset) else None
        self.order = ConversationOrder(self._make_samples(), self._array_store(PairOrigin(dataset=dataset, tell=tell)))

    def _check_tokenizer(self) -> None:
        """Compares with what the roles say, for data without a manifest."""
        made_by, given = self.dataset.roles.tokenizer_sha256, getattr(self.config.tokenizer, "sha256", None)
        if made_by is None or given is None or made_by == given or self.config.allow_tokenizer_mismatch:
            return
        message = f"{self._name()} was made with another tokenizer: expected {made_by[:12]}…, found {given[:12]}…"
        raise TokenizerError(message, hint="tokenize the conversations again, or use that tokenizer")

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

    @abstractmethod
    def _make_samples(self) -> PackedSamples | SingleSamples:
        """Returns how the stream of shuffled conversations becomes samples."""

    @property
    def document_index(self) -> NDArray[Any]:
        """int32[num_conversations], the shuffled conversations that the samples read, in order."""
        return self.order.arrays["document_index"]

    # --- samples ----------------------------------------------------------------------------------------------

    def _fill(
        self, sequences: NDArray[np.int64], row_offsets: NDArray[np.int64], *, width: int, with_boundaries: bool
    ) -> Sample:
        """Returns rows of conversations: row r holds sequences [row_offsets[r], row_offsets[r + 1])."""
        count = len(row_offsets) - 1
        segments = self._taken.segments(sequences)
        available = np.ascontiguousarray(segments[:, 2])
        text = gather_tokens(self.dataset, sequences, np.zeros_like(sequences), available, shortcut=SEQUENCES)
        tokens, labels, position_ids = (recycled_empty((count, width), np.int64) for _ in range(3))
        loss_mask = recycled_empty((count, width), np.float32)
        cu_seqlens = recycled_empty((count, width + 1), np.int32) if with_boundaries else None
        max_seqlen = np.empty(count, dtype=np.int32) if with_boundaries else None
        self.dataset.roles.parts.fill(
            text,
            _dtype_code(text.dtype),
            segments,
            row_offsets,
            self._taken.train_on,
            self._fill_id,
            tokens,
            labels,
            loss_mask,
            position_ids,
            cu_seqlens,
            max_seqlen,
        )
        self._check_read()
        sample: Sample = {"tokens": tokens, "labels": labels, "loss_mask": loss_mask, "position_ids": position_ids}
        return sample | ({"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen} if with_boundaries else {})

    def _check_read(self) -> None:
        """Makes sure that what was read of indices and lengths is what their files held."""
        self.order.check()
        if isinstance(self.dataset, SFTLowLevelDataset):
            self.dataset.pair.check_index()

    def spans(self, idx: int) -> Spans:
        """Returns the conversations that make up a sample, as spans of sequences from their first token on."""
        return self.span_batch((idx,))[0]

    def span_batch(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> SpanBatch:
        """Returns the spans of many samples."""
        rows, _ = self._rows(positions)
        sequences, row_offsets = self.order.conversations(rows)
        lengths = np.ascontiguousarray(self._taken.segments(sequences)[:, 2])
        self._check_read()
        return SpanBatch(sequences, np.zeros_like(sequences), lengths, row_offsets)

    def trained_runs(self, sequence: int) -> list[tuple[int, int, bool]]:
        """Returns what a sample reads of a conversation, cut where loss begins and ends: (start, stop, has loss)."""
        chosen = np.array([sequence], dtype=np.int64)
        [[_, _, available, slots]] = self._taken.segments(chosen).tolist()
        sample = self._fill(chosen, np.array([0, 1], dtype=np.int64), width=max(slots, 1), with_boundaries=False)
        has_loss = np.concatenate([np.zeros(1, dtype=np.bool_), sample["loss_mask"][0] > 0])[:available]
        cuts = [0, *(np.flatnonzero(np.diff(has_loss)) + 1).tolist(), available]
        return [(start, stop, bool(has_loss[start])) for start, stop in itertools.pairwise(cuts) if start < stop]

    # --- accounts ---------------------------------------------------------------------------------------------

    @abstractmethod
    def _num_slots(self, slots: NDArray[np.int64]) -> int:
        """Returns the positions of all samples, given those of their conversations."""

    def ledger(self) -> ChatLedger:
        """Returns what became of every conversation and token; a pass over lengths, roles and indices.

        Raises:
            ConfigError: a class of a user's own changes the samples, which this knows nothing of.
        """
        refuse_hook(self, OUTLINE, "a ledger", hint="count what `dataset[k]` gives")
        exposure = self._taken.exposure()
        stream = self.document_index.astype(np.int64)
        lengths = self.dataset.sequence_lengths[stream].astype(np.int64)
        _, inputs, available, slots = self._taken.segments(stream).T
        trained = np.empty(len(stream), dtype=np.int64)
        self.dataset.roles.parts.count_trained(stream, np.ascontiguousarray(available), self._taken.train_on, trained)
        kept = self.indices[exposure.kept].astype(np.int64)
        num_epochs = max(1, -(-len(stream) // max(len(kept), 1)))
        unread = num_epochs - np.bincount(stream, minlength=len(self.dataset))[kept]
        num_slots = self._num_slots(slots)
        trained_before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(trained)])
        everything = np.ones(len(self.indices), dtype=np.bool_)
        return ChatLedger(
            num_epochs=num_epochs,
            exposed=exposure.count(everything) * num_epochs,
            dropped_empty=exposure.count(exposure.empty) * num_epochs,
            dropped_long=exposure.count(exposure.too_long) * num_epochs,
            dropped_untrainable=exposure.count(exposure.untrainable) * num_epochs,
            not_reached=Count(
                conversations=int(unread.sum()), tokens=int((unread * exposure.lengths[exposure.kept]).sum())
            ),
            read=Count(conversations=len(stream), tokens=int(lengths.sum())),
            truncated=Count(conversations=int((lengths > available).sum()), tokens=int((lengths - available).sum())),
            num_trained_tokens=int(trained.sum()),
            num_masked_tokens=int((available - trained).sum()),
            num_samples=len(self),
            num_untrainable_samples=int((np.diff(trained_before[self.order.starts()]) == 0).sum()),
            num_slots=num_slots,
            num_filled_slots=int(inputs.sum()),
            num_padding_slots=num_slots - int(inputs.sum()),
        )
