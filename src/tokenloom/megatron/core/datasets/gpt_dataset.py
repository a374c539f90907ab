"""`megatron.core.datasets.gpt_dataset`: samples of GPT models."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.datasets import config as plain_config
from tokenloom.datasets import gpt as plain_gpt
from tokenloom.datasets.mock import MockGPTLowLevelDataset, check_names_no_data
from tokenloom.datasets.shortcuts import QUERY
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError
from tokenloom.indexed.later import SetLater
from tokenloom.megatron import index_hooks
from tokenloom.megatron.core.datasets import reference_samples
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.megatron_dataset import MegatronDataset
from tokenloom.megatron.core.datasets.object_storage_utils import ObjectStorageConfig, is_object_storage_path
from tokenloom.megatron.core.datasets.utils import Split, log_single_rank
from tokenloom.megatron.given_order import NAMES, GivenOrder
from tokenloom.megatron.listed_samples import ListedSamples
from tokenloom.megatron.versions import reference_version
from tokenloom.order.epochs import EpochPlan, WindowEpochs
from tokenloom.order.policies import ArrayOrder, OrderPolicy
from tokenloom.order.protocols import SpanOrder
from tokenloom.overrides import Uncalled, is_ours, overrides

__all__ = [
    "BlendedMegatronDatasetConfig",
    "GPTDataset",
    "GPTDatasetConfig",
    "IndexedDataset",
    "MegatronDataset",
    "MockGPTDataset",
    "MockGPTLowLevelDataset",
    "ObjectStorageConfig",
    "Split",
    "is_object_storage_path",
    "log_single_rank",
]

logger: logging.Logger = logging.getLogger(__name__)

_THREE_VALUES = (0, 19)
"""The version from which on a query gives the tokens of each document too."""


@dataclass
class GPTDatasetConfig(plain_config.GPTDatasetConfig, BlendedMegatronDatasetConfig):
    """`tokenloom.GPTDatasetConfig` with the settings of all versions of the reference, checked as it checks them.

    Attributes:
        create_attention_mask: True, as in the reference.
        sft_mock_dataset_config_json: how long made-up conversations are: JSON, or the path of a file with it.
        varlen_mock_dataset_config_json: the same of made-up samples of all lengths.
        varlen_sbhd_validation: whether `VarlenDataset` fills its samples up to `sequence_length`.
    """

    create_attention_mask: bool = True
    sft_mock_dataset_config_json: str | None = None
    varlen_mock_dataset_config_json: str | None = None
    varlen_sbhd_validation: bool = False

    def __post_init__(self) -> None:
        """Checks the settings and computes `token_dtype_code`."""
        BlendedMegatronDatasetConfig.__post_init__(self)
        if self.varlen_sbhd_validation and self.hybrid_context_parallel:
            message = "`varlen_sbhd_validation` and `hybrid_context_parallel` exclude each other, found both"
            raise ConfigError(message)
        for name in ("tokenizer", "reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
            if getattr(self, name) is None:
                message = f"expected `{name}`, found None"
                raise ConfigError(message)
        for name in ("reset_position_ids", "reset_attention_mask"):
            if self.inter_document_masking and getattr(self, name):
                message = f"`inter_document_masking` and `{name}` exclude each other, found both"
                raise ConfigError(message)
        assert self.tokenizer is not None
        vocab_size = self.tokenizer.vocab_size
        self.token_dtype_code = None if vocab_size is None else 4 if vocab_size > 1 << 16 else 8
        if self.sequences_per_dataset is not None and self.token_dtype_code is None:
            message = "expected a tokenizer with `vocab_size` for `sequences_per_dataset`, found none"
            raise ConfigError(message, hint="leave `sequences_per_dataset` out")
        self.policy_of(Split.train)


def _index_array(name: str) -> Any:
    """Returns an attribute that is the index array of a dataset, and that may be assigned."""
    return property(lambda dataset: dataset._index(name), lambda dataset, array: dataset._assign({name: array}))


class GPTDataset(ListedSamples, plain_gpt.GPTDataset, MegatronDataset):
    """`tokenloom.GPTDataset` in which every hook of the reference is called, and every index array may be assigned.

    Kernels fill its samples unless its class overrides what decides them, or a function of this module is replaced, or
    arrays are assigned that kernels cannot read; then each sample is made as the reference makes it, by
    `_query_document_sample_shuffle_indices` and `_get_ltor_masks_and_position_ids`.

    Args and errors are those of that class.

    Attributes:
        masks_and_position_ids_are_cacheable: whether they are the same for all samples.
        masks_and_position_ids_are_cached: whether the next three are what all samples get.
        cached_attention_mask: bool[1, S, S], True = masked; or None.
        cached_loss_mask: float32[S].
        cached_position_ids: int64[S].
    """

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {}
    config: GPTDatasetConfig

    document_index = _index_array("document_index")
    sample_index = _index_array("sample_index")
    shuffle_index = _index_array("shuffle_index")

    if TYPE_CHECKING:
        masks_and_position_ids_are_cacheable: bool
    else:
        masks_and_position_ids_are_cacheable = SetLater("_plan", when="_plans_later")
    masks_and_position_ids_are_cached: bool = False
    cached_attention_mask: torch.Tensor | None = None
    cached_loss_mask: torch.Tensor | None = None
    cached_position_ids: torch.Tensor | None = None

    _given: dict[str, NDArray[Any]] | None = None

    # --- building ---------------------------------------------------------------------------------------------

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        """Opens the pair at a path."""
        counts = None
        if config.sequences_per_dataset:
            counts = config.sequences_per_dataset[dataset_path]
        return IndexedDataset(
            dataset_path,
            mmap=config.mmap_bin_files,
            fast_cache_load=config.fast_cache_load,
            sequences_per_dataset=counts,
            dtype_code=config.token_dtype_code,
            object_storage=config.storage_settings,
        )

    def _get_num_tokens_per_epoch(self) -> int:
        """Returns the tokens of one epoch; a class may override it."""
        return self.documents.count_tokens()

    def _get_num_epochs(self, num_tokens_per_epoch: int) -> int:
        """Returns how many epochs of so many tokens the samples take; a class may override it."""
        policy = self.config.policy_of(self.index_split)
        return policy.epochs(num_tokens_per_epoch, self.documents.length_blocks()).plan(self.num_samples).num_epochs

    def _plan_epochs(self) -> EpochPlan:
        if not overrides(self, "_get_num_tokens_per_epoch", "_get_num_epochs"):
            return super()._plan_epochs()
        config, num_tokens = self.config, self._get_num_tokens_per_epoch()
        epochs = WindowEpochs(
            num_tokens=num_tokens,
            sequence_length=config.sequence_length,
            extra=config.num_extra_tokens,
            keep_partial=config.keeps_partial_sample(self.index_split),
        )
        return epochs.plan_of(self._get_num_epochs(num_tokens), self.num_samples)

    def _make_order(self, policy: OrderPolicy) -> SpanOrder:
        config = self.config
        resets = config.reset_position_ids, config.reset_attention_mask, config.eod_mask_loss
        self.masks_and_position_ids_are_cacheable = not any(resets)
        self._policy = policy
        if config.defer_npy_index_mmap:
            for name in NAMES:
                path = f"{self._index_folder()}/{index_hooks.index_base(self)}-{name}.npy"
                setattr(self, f"path_to_{name}", path)
        if (hook := self._index_hook()) is None:
            return super()._make_order(policy)
        if config.window_policy != "concat" or config.block_shuffle is not None:
            message = f"expected the order of the reference for `{hook}`, found an order of ours"
            raise ConfigError(message, hint="leave `window_policy` and `block_shuffle` out, or the hook")
        arrays = dict(zip(NAMES, self._build_document_sample_shuffle_indices(), strict=True))
        own = self.__dict__.get("order")
        if isinstance(own, ArrayOrder) and _are_those(own, arrays):
            return own
        self._assign(arrays)
        return self.order

    def _index_hook(self) -> str | None:
        """Returns what a user has to say in how the index arrays are built; None if nobody has."""
        if overrides(self, "_build_document_sample_shuffle_indices"):
            return f"{type(self).__name__}._build_document_sample_shuffle_indices"
        return self._building_hook()

    def _building_hook(self) -> str | None:
        functions = _index_functions()
        for name in ("documents", "windows", "shuffle"):
            if not is_ours(getattr(functions, name)):
                return f"a function that builds the {name} of an index"
        if self.epoch_plan.tokens_per_epoch != self.epochs.num_tokens:
            return f"{type(self).__name__}._get_num_tokens_per_epoch"
        return None

    def _build_document_sample_shuffle_indices(self) -> tuple[Any, Any, Any]:
        """Returns document, sample and shuffle index, from the cache or built; None where that is deferred."""
        config = self.config
        if config.defer_npy_index_mmap:
            self.order = super()._make_order(self._policy)
            return None, None, None
        if self._building_hook() is not None:
            folder = None if config.mock and config.path_to_cache is None else self._index_folder()
            return index_hooks.hooked_arrays(self, _index_functions(), folder)
        order = super()._make_order(self._policy)
        assert isinstance(order, ArrayOrder)
        self.order = order
        document_index, sample_index, shuffle_index = (order.arrays[name].copy() for name in NAMES)
        return document_index, sample_index, shuffle_index

    def _index(self, name: str) -> Any:
        if self._given is not None:
            return self._given[name]
        if self.config.defer_npy_index_mmap and isinstance(self.order, ArrayOrder) and self.order.opened is None:
            return None  # until the first sample, as in the reference
        return super()._index(name)

    def _assign(self, arrays: dict[str, Any]) -> None:
        """Takes index arrays that somebody made; all that come from somewhere else stay as they are."""
        if all(array is None for array in arrays.values()):
            self._given = None
            return
        rest = [name for name in NAMES if name not in arrays]
        given = {**{name: self._index(name) for name in rest}, **arrays}
        self._given = {name: given[name] for name in NAMES}
        self.order = GivenOrder(
            self._given,
            self.documents,
            sequence_length=self.config.sequence_length,
            extra=self._extra,
            identity=f"{self.unique_description} with other arrays",
        )
        self._mapped_of = None

    # --- samples ----------------------------------------------------------------------------------------------

    @property
    def item_hook(self) -> str | None:
        """What kernels would pass by, so that each sample is made by itself; None if there is nothing."""
        if QUERY in self._overrides.found:
            return f"{type(self).__name__}.{QUERY}"
        if _get_ltor_masks_and_position_ids is not _MASKS:
            return "_get_ltor_masks_and_position_ids"
        if self.masks_and_position_ids_are_cached:
            return "cached_loss_mask"
        order = self.__dict__.get("order")  # one that is not there yet is ours
        return "sample_index" if type(order) is GivenOrder and not order.is_regular else None

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as torch tensors; None gives one with an all-zero loss mask, for filling up a batch."""
        return super().__getitem__(idx) if self.item_hook is None else self._item(idx)

    def _item(self, idx: int | None) -> Sample:
        """Returns a sample made of what the hooks give."""
        text, _, *lengths = self._query_document_sample_shuffle_indices(0 if idx is None else idx)
        sample = reference_samples.sample_of_text(self, text, lengths[0] if lengths else None, self._masks)
        if idx is None:
            sample["loss_mask"] = torch.zeros_like(sample["loss_mask"])
        return sample

    def _masks(self, tokens: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """Returns attention mask, loss mask and positions of a text, the loss mask to be written into."""
        if self.masks_and_position_ids_are_cacheable and self.masks_and_position_ids_are_cached:
            assert self.cached_loss_mask is not None
            assert self.cached_position_ids is not None
            return self.cached_attention_mask, self.cached_loss_mask.clone(), self.cached_position_ids
        config = self.config
        assert config.tokenizer is not None
        attention_mask, loss_mask, position_ids = _get_ltor_masks_and_position_ids(
            tokens,
            config.tokenizer.eod,
            bool(config.reset_position_ids),
            bool(config.reset_attention_mask),
            bool(config.eod_mask_loss),
            config.create_attention_mask,
        )
        if self.masks_and_position_ids_are_cacheable:
            self.cached_attention_mask, self.cached_position_ids = attention_mask, position_ids
            self.cached_loss_mask = loss_mask.clone()  # what a sample masks in it is that sample's own
            self.masks_and_position_ids_are_cached = True
        return attention_mask, loss_mask, position_ids

    def _query_document_sample_shuffle_indices(self, idx: int) -> tuple[Any, ...]:
        """Returns the text of a sample, its documents, and from 0.19 of the reference on the tokens of each.

        Returns:
            text: int64[sequence_length + 1], filled up with the padding id; without the 1 where no extra token is read.
            documents: int64[num_documents], the rows in the `.idx` file, empty ones included.
            lengths: list of the tokens of each document, the padding not counted; of newer versions only.
        """
        order = self.order
        lengths: list[int]
        if isinstance(order, GivenOrder) and not order.is_regular:
            parts, found = order.read(self.dataset, idx)
            lengths = [len(part) for part in parts]
            room = max(self.config.sequence_length + self._extra - sum(lengths), 0)
            filling = np.full(room, self._pad_token_id, dtype=np.int64)
            text, documents = np.concatenate([*parts, filling], dtype=np.int64), np.array(found, dtype=np.int64)
        else:
            text, documents = super()._query_document_sample_shuffle_indices(idx)
            rows = np.array([self._position(idx)], dtype=np.int64)
            lengths = self.order.spans(rows, keep_empty=True).lengths.tolist()
        return (text, documents) if reference_version() < _THREE_VALUES else (text, documents, lengths)


def _are_those(order: ArrayOrder, arrays: dict[str, Any]) -> bool:
    """Whether arrays are those of an order; where that is deferred, none of them is there."""
    if all(array is None for array in arrays.values()):
        return True
    own = order.arrays
    return all(np.array_equal(own[name], array) and own[name].dtype == array.dtype for name, array in arrays.items())


def _index_functions() -> index_hooks.IndexFunctions:
    """Returns the functions that build index arrays, as these modules have them now."""
    from tokenloom.megatron.core.datasets import helpers

    return index_hooks.IndexFunctions(
        documents=_build_document_index, windows=helpers.build_sample_idx, shuffle=_build_shuffle_index
    )


def _build_document_index(
    documents: NDArray[Any],
    num_epochs: int,
    numpy_random_state: np.random.RandomState,
    separate_final_epoch: bool,  # noqa: FBT001 - the reference's signature
) -> NDArray[np.int32]:
    """Returns the shuffled stream of documents: int32[num_epochs * num_documents]; the last epoch apart if asked to."""
    apart = separate_final_epoch and num_epochs > 1
    parts = []
    for epochs in [num_epochs - 1, 1] if apart else [num_epochs]:
        part = np.tile(np.asarray(documents), epochs).astype(np.int32)
        numpy_random_state.shuffle(part)
        parts.append(part)
    return np.concatenate(parts)


def _build_shuffle_index(num_samples: int, total_size: int, numpy_random_state: np.random.RandomState) -> NDArray[Any]:
    """Returns [0, total_size), of which [0, num_samples) and the rest are shuffled apart: uint32, or int64 for more."""
    dtype = np.int64 if total_size >= np.iinfo(np.uint32).max - 1 else np.uint32
    numbers: NDArray[Any] = np.arange(total_size, dtype=dtype)
    numpy_random_state.shuffle(numbers[:num_samples])
    if num_samples < total_size:
        numpy_random_state.shuffle(numbers[num_samples:])
    return numbers


_get_ltor_masks_and_position_ids = reference_samples.masks_and_position_ids
_MASKS = _get_ltor_masks_and_position_ids


class MockGPTDataset(GPTDataset):
    """GPT samples from made-up data; takes the place of `GPTDataset` when a config names no data."""

    def __init__(
        self,
        dataset: MockGPTLowLevelDataset,
        dataset_path: str | None,
        indices: NDArray[Any],
        num_samples: int | None,
        index_split: Any,
        config: GPTDatasetConfig,
    ) -> None:
        check_names_no_data(config, otherwise=GPTDataset)
        super().__init__(dataset, dataset_path, indices, num_samples, index_split, config)

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Returns the number of documents."""
        return len(low_level_dataset)

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> Any:
        """Returns the made-up documents; the path does not matter."""
        return MockGPTLowLevelDataset(config.tokenizer)
