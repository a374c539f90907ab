"""GPT samples: windows over a shuffled stream of documents, or packs of them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.counted import CountedSamples
from tokenloom.datasets.data_match import check_eod, check_kind
from tokenloom.datasets.data_origin import PairOrigin
from tokenloom.datasets.filled import FilledSamples
from tokenloom.datasets.pair_samples import PairSamples, has_own_lengths
from tokenloom.datasets.protocols import pair_of
from tokenloom.datasets.shortcuts import QUERY, UNCALLED_BY_ITEM
from tokenloom.datasets.splits import Split
from tokenloom.datasets.tokenizer_match import check_tokenizer
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.later import SetLater
from tokenloom.order.block_shuffle import Mixing, mixing_of
from tokenloom.order.epochs import EpochPlan, Epochs
from tokenloom.order.packs import PackEpochs
from tokenloom.order.policies import ArrayOrder, OrderPolicy
from tokenloom.order.protocols import SpanOrder
from tokenloom.order.short_datasets import warn_of_short
from tokenloom.order.windows import SpanBatch, Spans
from tokenloom.overrides import Uncalled

_BY_NUMBER = Uncalled(f"choose the samples in `{QUERY}` or `__getitem__`")
_BY_LENGTH = Uncalled("say how many samples there are by `num_samples`, or in a `__len__`")


class GPTDataset(CountedSamples, FilledSamples, PairSamples, MegatronDataset):
    """Samples of `sequence_length` tokens from the documents of one split.

    `dataset[k]` gives torch tensors as the reference does; `dataset.sample(k)` the same as NumPy arrays, without torch;
    `dataset.batch(positions)` many samples by one kernel call; `dataset.spans(k)` the pieces of documents in it.
    Safe from several threads, after a fork, and picklable (indices are opened again from the cache where there is one).
    `dataset.epoch_plan` says how many samples come from how many epochs, `dataset.epochs` what others would take.

    A sample holds tokens int64[S], labels int64[S], loss_mask float32[S], position_ids int64[S], and
    attention_mask bool[1, S, S] (True = masked) with `create_attention_mask`, or cu_seqlens int32[S + 1] (document
    starts in the sample, filled up with S) and max_seqlen int32 with `inter_document_masking`. Only a mask that does
    not depend on the sample is shared between samples; everything else is the caller's to change.

    Args:
        indexed_dataset: the low-level dataset.
        dataset_path: its path, for the cache key; None for made-up data.
        indexed_indices: integers[num_documents], the documents to expose.
        num_samples: how many samples at least, from as many epochs as that takes; None for one epoch.
        index_split: which split this is.
        config: the settings.

    Raises:
        ConfigError: samples are wanted from a split without tokens.
        IndexCacheError: `path_to_cache` cannot be written, or deferred or fast loading finds no usable cache.
    """

    config: GPTDatasetConfig

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {
        "_build_document_sample_shuffle_indices": _BY_NUMBER,
        "_build_document_index": _BY_NUMBER,
        "_build_shuffle_index": _BY_NUMBER,
        "_get_num_epochs": _BY_LENGTH,
        "_get_num_tokens_per_epoch": _BY_LENGTH,
        "_get_ltor_masks_and_position_ids": UNCALLED_BY_ITEM,
    }
    if TYPE_CHECKING:
        order: SpanOrder
        epochs: Epochs
        epoch_plan: EpochPlan
    else:
        order = SetLater("_plan", when="_plans_later")
        epochs = SetLater("_plan", when="_plans_later")
        epoch_plan = SetLater("_plan", when="_plans_later")

    def __init__(
        self,
        indexed_dataset: Any,
        dataset_path: str | None,
        indexed_indices: NDArray[Any],
        num_samples: int | None,
        index_split: Split,
        config: GPTDatasetConfig,
    ) -> None:
        if isinstance(indexed_dataset, (str, os.PathLike)):
            message = f"expected an open pair, found the text {os.fspath(indexed_dataset)!r}"
            raise ConfigError(message, hint="open it with `IndexedDataset`, or make the samples with `tokenloom.load`")
        super().__init__(indexed_dataset, dataset_path, indexed_indices, num_samples, index_split, config)
        self._prepare_filling()
        self._verification = None
        if self._opens_later and (config.defer_npy_index_mmap or self._has_entry()):
            self._plans_later = True
        else:
            self._plan()

    @property
    def _opens_later(self) -> bool:
        """Whether nothing of the data is opened, checked or planned before the length or a sample is asked for.

        So it is where their counts are known, and that all is built.
        """
        pair = pair_of(self.dataset)
        return self.config.fast_cache_load and self.config.verify == "quick" and pair is not None and not pair.is_open

    def _has_entry(self) -> bool:
        """Whether the index cache has an entry of this dataset; one stat."""
        cache = self._array_store(PairOrigin(dataset=self.dataset)).cache
        return cache is not None and cache.exists()

    def _plan(self) -> None:
        """Checks the data, counts their tokens, and finds the order of the samples."""
        config, index_split = self.config, self.index_split
        name = f"`{self.dataset_path or type(self).__name__}`"
        check_tokenizer(self.dataset, config, name=name)
        self._check_pair()
        check_kind(self.dataset, config, name=name, reads="documents")
        check_eod(self.dataset, config, name=name)
        documents = self.documents
        num_tokens = documents.count_tokens()
        self._check_sum(num_tokens)
        policy = config.policy_of(index_split)
        self.epochs = policy.epochs(num_tokens, documents.length_blocks())
        self.epoch_plan = self._plan_epochs()
        if self.epoch_plan.num_samples == 0:
            warn_of_short(
                f"{self._name()} holds {self.epoch_plan.tokens_per_epoch} tokens, too few for one sample of "
                f"{config.sequence_length + self._extra}"
            )
        self.order = self._make_order(policy)

    @classmethod
    def in_order(cls, low_level: Any, order: SpanOrder, config: GPTDatasetConfig, *, name: str) -> Self:
        """Returns samples in an order that is given: nothing is counted, built or stored, and no epochs are planned.

        Args:
            low_level: gives tokens of spans.
            order: which spans are sample i.
            config: the settings; those of splits, epochs and the index cache have no effect.
            name: name of the data, for messages.

        Raises:
            ConfigError: the class overrides what would have no effect.
        """
        dataset = cls.__new__(cls)
        MegatronDataset.__init__(dataset, low_level, name, range(0), None, Split.train, config)
        dataset._check_pair()
        dataset._prepare_filling()
        dataset.order = order
        return dataset

    # --- building ---------------------------------------------------------------------------------------------

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: IndexedDataset) -> int:
        """Returns the number of sequences: GPT data is split by sequence."""
        if has_own_lengths(low_level_dataset):
            return len(low_level_dataset.sequence_lengths)
        return len(low_level_dataset)  # which opens nothing

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> IndexedDataset:
        """Opens the pair at a path."""
        counts = None
        if config.sequences_per_dataset is not None:
            if dataset_path not in config.sequences_per_dataset:
                message = f"expected `{dataset_path}` in `sequences_per_dataset`, found no such entry"
                raise ConfigError(message, hint="record the counts of all datasets of the blend")
            counts = tuple(config.sequences_per_dataset[dataset_path])
        return IndexedDataset(
            dataset_path,
            mmap=config.mmap_bin_files,
            fast_cache_load=config.fast_cache_load,
            sequences_per_dataset=counts,
            object_storage=config.storage_settings,
        )

    def _make_order(self, policy: OrderPolicy) -> SpanOrder:
        config = self.config
        further = {
            "add_extra_token_to_sequence": bool(self._extra),
            "drop_last_partial_validation_sequence": config.drop_last_partial_validation_sequence,
        }
        return policy.order(
            self.documents,
            self.epochs,
            self.epoch_plan,
            seed=config.random_seed,
            store=self._array_store(PairOrigin(dataset=self.dataset, further=further)),
        )

    def _plan_epochs(self) -> EpochPlan:
        try:
            return self.epochs.plan(self.num_samples)
        except ConfigError as error:
            message = f"{self._name()}: {error.message}"
            raise ConfigError(message, hint=error.hint) from None

    def _further_identifiers(self) -> dict[str, Any]:
        policy, blocks = self.config.window_policy, self.config.block_shuffle
        further: dict[str, Any] = {} if policy == "concat" else {"window_policy": policy}
        return further if blocks is None else {**further, "block_shuffle": dataclasses.asdict(blocks)}

    @property
    def document_index(self) -> NDArray[Any]:
        """int32[num_epochs * num_documents], the shuffled stream of documents; windows only."""
        return self._index("document_index")

    @property
    def sample_index(self) -> NDArray[Any]:
        """[num_windows + 1, 2], (position in `document_index`, token offset) where each window starts; windows only."""
        return self._index("sample_index")

    @property
    def piece_index(self) -> NDArray[Any]:
        """[num_pieces, 2], (document, first token taken) of every piece, pack by pack; packs only."""
        return self._index("piece_index")

    @property
    def pack_index(self) -> NDArray[Any]:
        """[num_packs + 1], the first piece of each pack, and the end; packs only."""
        return self._index("pack_index")

    @property
    def shuffle_index(self) -> NDArray[Any]:
        """uint32[num_samples], the window or pack behind each sample."""
        return self._index("shuffle_index")

    def _index(self, name: str) -> NDArray[Any]:
        arrays = self.order.arrays if isinstance(self.order, ArrayOrder) else {}
        if name not in arrays:
            message = f"{self._name()} has no {name}: its `window_policy` is {self.config.window_policy!r}"
            raise ConfigError(message)
        return arrays[name]

    def mixing(self) -> Mixing:
        """Returns how far the order of documents in the first epoch is from that in the file."""
        return mixing_of(np.searchsorted(np.sort(self.indices), self.document_index[: len(self.indices)]))

    def _sample_facts(self) -> dict[str, Any]:
        is_built, plan = "order" in self.__dict__, self.__dict__.get("epoch_plan")
        return {
            "samples" if is_built else "samples, at least": len(self) if is_built else self.num_samples,
            "epochs": None if plan is None else plan.num_epochs,
            "tokens of an epoch": None if plan is None else plan.tokens_per_epoch,
            "documents exposed": f"{len(self.rows):,} of {len(self.dataset):,}" if len(self.rows) else None,
            "windows": self.config.window_policy,
        }

    # --- samples ----------------------------------------------------------------------------------------------

    @property
    def _block_bytes(self) -> int | None:
        blocks = self.config.block_shuffle
        return None if blocks is None else blocks.block_bytes

    def __len__(self) -> int:
        """The number of samples, without opening the indices."""
        return self.order.num_samples

    def spans(self, idx: int) -> Spans:
        """Returns the pieces of documents that make up a sample, the extra token included."""
        return self.span_batch((idx,))[0]

    def span_batch(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> SpanBatch:
        """Returns the spans of many samples by one kernel call."""
        rows, _ = self._rows(positions)
        try:
            return self.order.spans(rows, keep_empty=False)
        except IndexError as error:
            raise self._damaged(error) from error

    def epochs_of(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Returns the epoch that each sample begins in, int64[num_positions], from 0; -1 where the order tells none.

        Of windows that is a stretch of `document_index` as long as there are documents. The reference shuffles all
        epochs but the last as one stream, so that a document may come twice in one of these, and not at all in another.
        """
        rows, _ = self._rows(positions)
        arrays = self.order.arrays if isinstance(self.order, ArrayOrder) else {}
        if "sample_index" in arrays:
            first, offset = arrays["sample_index"][arrays["shuffle_index"][rows]].astype(np.int64).T
            first += offset >= self.documents.lengths[arrays["document_index"][first]]  # it begins at the next one
            found: NDArray[np.int64] = first // max(len(self.documents), 1)
            return found
        if "pack_index" in arrays and isinstance(self.epochs, PackEpochs):
            return arrays["shuffle_index"][rows].astype(np.int64) // max(self.epochs.report.num_packs, 1)
        return np.full(len(rows), -1, dtype=np.int64)
