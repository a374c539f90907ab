"""`megatron.core.datasets.gpt_dataset`: GPT samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom._native import WindowReader
from tokenloom.datasets import config as plain_config
from tokenloom.datasets import gpt as plain_gpt
from tokenloom.datasets import mock
from tokenloom.datasets.mock import MockGPTLowLevelDataset  # noqa: F401
from tokenloom.datasets.shortcuts import QUERY
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets import helpers
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset  # noqa: F401
from tokenloom.megatron.core.datasets.megatron_dataset import (
    NAMES,
    GivenOrder,
    ListedSamples,
    MegatronDataset,
    index_array,
    name_paths,
    open_pair,
    window_reader,
)
from tokenloom.megatron.core.datasets.object_storage_utils import ObjectStorageConfig, is_object_storage_path  # noqa: F401
from tokenloom.megatron.core.datasets.utils import Split, log_single_rank, logger  # noqa: F401
from tokenloom.megatron.installation import reference_version
from tokenloom.order.cache import Arrays
from tokenloom.order.epochs import EpochPlan, WindowEpochs
from tokenloom.order.policies import ArrayOrder, ConcatWindows, OrderPolicy, WindowOrder
from tokenloom.order.protocols import SpanOrder
from tokenloom.overrides import Uncalled, is_ours, overrides

QUERY_HAS_LENGTHS = (0, 19)
"""Since this Megatron version, `_query_document_sample_shuffle_indices` also returns the lengths of documents."""


@dataclass
class GPTDatasetConfig(plain_config.GPTDatasetConfig, BlendedMegatronDatasetConfig):
    """`tokenloom.GPTDatasetConfig` with the settings of all Megatron versions, and Megatron's validation.

    Attributes:
        create_attention_mask: whether samples have a dense attention mask; True by default.
        sft_mock_dataset_config_json: settings of `MockSFTDataset`, as JSON or the path of a JSON file.
        varlen_mock_dataset_config_json: settings of `MockVarlenDataset`, as JSON or the path of a JSON file.
        varlen_sbhd_validation: whether `VarlenDataset` pads its samples to `sequence_length`.
    """

    create_attention_mask: bool = True
    sft_mock_dataset_config_json: str | None = None
    varlen_mock_dataset_config_json: str | None = None
    varlen_sbhd_validation: bool = False

    def __post_init__(self) -> None:
        """Validates the settings and computes `token_dtype_code`."""
        BlendedMegatronDatasetConfig.__post_init__(self)
        for name in ("tokenizer", "reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
            if getattr(self, name) is None:
                raise ConfigError(f"`{name}`: required, got None")
        for name, other in (
            ("varlen_sbhd_validation", "hybrid_context_parallel"),
            ("inter_document_masking", "reset_position_ids"),
            ("inter_document_masking", "reset_attention_mask"),
        ):
            if getattr(self, name) and getattr(self, other):
                raise ConfigError(f"`{name}` and `{other}` exclude each other")
        assert self.tokenizer is not None
        vocab_size = self.tokenizer.vocab_size
        self.token_dtype_code = None if vocab_size is None else 4 if vocab_size > 1 << 16 else 8
        if self.sequences_per_dataset is not None and self.token_dtype_code is None:
            message = "`sequences_per_dataset` needs a tokenizer with `vocab_size`"
            raise ConfigError(message, hint="omit `sequences_per_dataset`")
        self.policy_of(Split.train)


class GPTDataset(ListedSamples, plain_gpt.GPTDataset, MegatronDataset):
    """`tokenloom.GPTDataset` with Megatron's hooks and with assignable index arrays; same arguments and errors.

    Native kernels fill the samples. If a subclass overrides a hook, a program replaces a function of this module, or
    assigned arrays give samples different lengths, each sample is made in Megatron's steps instead, by
    `_query_document_sample_shuffle_indices` and `_get_ltor_masks_and_position_ids`.

    Attributes:
        masks_and_position_ids_are_cached: whether all samples share the three cached tensors.
        cached_attention_mask: bool[1, S, S] with S = `sequence_length`, True = masked; None without an attention mask.
        cached_loss_mask: float32[S].
        cached_position_ids: int64[S].
    """

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {}
    config: GPTDatasetConfig

    document_index = index_array("document_index")
    sample_index = index_array("sample_index")
    shuffle_index = index_array("shuffle_index")

    masks_and_position_ids_are_cached: bool = False
    cached_attention_mask: Any = None
    cached_loss_mask: Any = None
    cached_position_ids: Any = None

    # --- building ---------------------------------------------------------------------------------------------

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        counts = config.sequences_per_dataset
        return open_pair(dataset_path, config, counts[dataset_path] if counts else None, config.token_dtype_code)

    def _get_num_tokens_per_epoch(self) -> int:
        """Returns the number of tokens in one epoch; may be overridden."""
        return self.documents.count_tokens()

    def _get_num_epochs(self, num_tokens_per_epoch: int) -> int:
        """Returns the number of epochs that `num_samples` samples need; may be overridden."""
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
        if config.defer_npy_index_mmap:
            name_paths(self, self._index_folder(), self.index_split, *NAMES)
        has_hook = overrides(self, "_build_document_sample_shuffle_indices")
        has_functions = self.epoch_plan.tokens_per_epoch != self.epochs.num_tokens or not all(
            map(is_ours, (_build_document_index, helpers.build_sample_idx, _build_shuffle_index))
        )
        if has_hook or has_functions:
            if config.window_policy != "concat" or config.block_shuffle is not None:
                message = f"{type(self).__name__}: hooks need Megatron's sample order"
                raise ConfigError(message, hint="omit `window_policy` and `block_shuffle`, or remove the hooks")
            assert isinstance(policy, ConcatWindows)
            if has_functions:
                policy = cast("OrderPolicy", SimpleNamespace(order=partial(_WindowsOfFunctions, policy.shape)))
        if not has_hook:
            return super()._make_order(policy)
        self.order = super()._make_order(policy)
        arrays = dict(zip(NAMES, self._build_document_sample_shuffle_indices(), strict=True))
        if arrays["shuffle_index"] is not None:  # None: loading is deferred
            self._assign(arrays)
        return self.order

    def _build_document_sample_shuffle_indices(self) -> tuple[Any, Any, Any]:
        """Returns document, sample and shuffle index; with `defer_npy_index_mmap`, all are None. May be overridden."""
        if self.config.defer_npy_index_mmap:
            return None, None, None
        assert isinstance(self.order, ArrayOrder)
        document_index, sample_index, shuffle_index = (self.order.arrays[name].copy() for name in NAMES)
        return document_index, sample_index, shuffle_index

    def _assign(self, arrays: dict[str, Any]) -> None:
        """Replaces the index arrays whose names are in `arrays`; other index arrays stay."""
        self.order = GivenOrder(
            {name: arrays[name] if name in arrays else self._index(name) for name in NAMES},
            self.documents,
            sequence_length=self.config.sequence_length,
            extra=self._extra,
            identity=f"{self.unique_description} with other arrays",
        )
        self._mapped_of = None

    # --- samples ----------------------------------------------------------------------------------------------

    @property
    def item_hook(self) -> str | None:
        """The name of the override or array that native kernels would ignore; None if kernels may fill the samples."""
        if QUERY in self._overrides.found:
            return f"{type(self).__name__}.{QUERY}"
        if _get_ltor_masks_and_position_ids is not _MASKS:
            return "_get_ltor_masks_and_position_ids"
        if self.masks_and_position_ids_are_cached:
            return "cached_loss_mask"
        return None if self._is_regular else "sample_index"

    @property
    def _is_regular(self) -> bool:
        """Returns whether all samples are windows of the same length, which native kernels require."""
        order = self.__dict__.get("order")  # unset until the order is built
        return type(order) is not GivenOrder or order.is_regular

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as torch tensors; for index None, a sample with an all-zero loss mask, to pad a batch."""
        return super().__getitem__(idx) if self.item_hook is None else self._item(idx)

    def _item(self, idx: int | None) -> Sample:
        """Returns a sample made by the hooks, in the same steps as Megatron."""
        config, pad = self.config, self._pad_token_id
        text, _, *lengths = self._query_document_sample_shuffle_indices(0 if idx is None else idx)
        given = torch.from_numpy(np.asarray(text)).long()
        if config.add_extra_token_to_sequence:
            tokens, labels = given[:-1].clone(), given[1:].clone()
        else:
            tokens, labels = given.clone(), torch.roll(given, -1)
            labels[-1] = pad
        attention_mask, loss_mask, position_ids = self._masks(tokens)
        loss_mask[labels == pad] = 0.0
        for ids in (tokens, labels):
            ids[ids == pad] = 0  # 0 is a valid row of the embedding
        sample = {"tokens": tokens, "labels": labels}
        if config.create_attention_mask and not config.inter_document_masking:
            sample["attention_mask"] = attention_mask
        sample |= {"loss_mask": torch.zeros_like(loss_mask) if idx is None else loss_mask, "position_ids": position_ids}
        return sample | self._boundaries(lengths[0] if lengths else None) if config.inter_document_masking else sample

    def _boundaries(self, lengths: Sequence[int] | None) -> Sample:
        """Returns `cu_seqlens`, `max_seqlen` and `position_ids`; padding extends the last document."""
        if lengths is None:
            message = f"`{type(self).__name__}.{QUERY}` must return three values with `inter_document_masking`, got two"
            raise ConfigError(message, hint="return a list of the documents' lengths as the third value")
        counts = [int(count) for count in lengths]
        if self.config.add_extra_token_to_sequence:
            counts[-1] -= 1
            if not counts[-1]:
                counts.pop()
        if (missing := self.config.sequence_length - sum(counts)) > 0:
            counts[-1:] = [missing + sum(counts[-1:])]
        size = sum(counts)
        cu_seqlens = torch.full((size + 1,), size, dtype=torch.int32)
        cu_seqlens[: len(counts) + 1] = torch.tensor([0, *accumulate(counts)])
        return {
            "position_ids": torch.cat([torch.arange(count) for count in counts]),
            "cu_seqlens": cu_seqlens,
            "max_seqlen": torch.tensor(max(counts), dtype=torch.int32),
        }

    @property
    def masks_and_position_ids_are_cacheable(self) -> bool:
        """Returns whether all samples have the same attention mask, loss mask and positions."""
        config = self.config
        return not (config.reset_position_ids or config.reset_attention_mask or config.eod_mask_loss)

    def _masks(self, tokens: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """Returns attention mask, loss mask and positions of a sample; the loss mask is a copy."""
        if self.masks_and_position_ids_are_cacheable and self.masks_and_position_ids_are_cached:
            return self.cached_attention_mask, self.cached_loss_mask.clone(), self.cached_position_ids
        config: Any = self.config
        resets = bool(config.reset_position_ids), bool(config.reset_attention_mask), bool(config.eod_mask_loss)
        eod, with_mask = config.tokenizer.eod, config.create_attention_mask
        attention_mask, loss_mask, position_ids = _get_ltor_masks_and_position_ids(tokens, eod, *resets, with_mask)
        if self.masks_and_position_ids_are_cacheable:
            self.cached_attention_mask, self.cached_position_ids = attention_mask, position_ids
            self.cached_loss_mask = loss_mask.clone()  # `_item` writes to the returned mask
            self.masks_and_position_ids_are_cached = True
        return attention_mask, loss_mask, position_ids

    def _query_document_sample_shuffle_indices(self, idx: int) -> tuple[Any, ...]:
        """Returns a sample's tokens, document indices and, since Megatron 0.19, document lengths; may be overridden.

        Returns:
            text: int64[sequence_length + 1], padded; int64[sequence_length] without `add_extra_token_to_sequence`.
            documents: int64[num_documents], index in the pair of each document of the sample, even if empty.
            lengths: list with the number of tokens that each document has in the sample, without padding.
        """
        parts, documents = self._parts(idx)
        lengths = [len(part) for part in parts]
        missing = max(self.config.sequence_length + self._extra - sum(lengths), 0)
        text = np.concatenate([*parts, np.full(missing, self._pad_token_id)], dtype=np.int64)
        values = text, np.array(documents, dtype=np.int64)
        return values if reference_version() < QUERY_HAS_LENGTHS else (*values, lengths)

    def _parts(self, idx: int) -> tuple[list[NDArray[Any]], list[int]]:
        """Returns two lists: the tokens of each document in a sample, and the sequence index of each document."""
        if not self._is_regular:
            assert isinstance(self.order, GivenOrder)
            return self.order.read(self.dataset, idx)
        try:
            spans = self.order.spans(np.array([self._position(idx)], dtype=np.int64), keep_empty=True)
        except IndexError as error:
            raise self._damaged(error) from error
        documents = spans.documents.tolist()
        places = zip(documents, spans.starts.tolist(), spans.lengths.tolist(), strict=True)
        return [self.dataset.get(row, offset=start, length=length) for row, start, length in places], documents


class _WindowsOfFunctions(WindowOrder):
    """An order of windows that builds its arrays with functions of this module, which programs may replace."""

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        random, shape, plan = np.random.RandomState(self._seed), self._shape, self._plan
        last_apart, lengths = plan.separate_final_epoch, self._documents.lengths
        document_index = _build_document_index(self._documents.rows.array(), plan.num_epochs, random, last_apart)
        stream = document_index, shape.sequence_length, plan.num_epochs, plan.tokens_per_epoch
        sample_index = helpers.build_sample_idx(lengths, *stream, not shape.keep_partial, bool(shape.extra))
        num_samples = sample_index.shape[0] - 1
        first = plan.num_samples_sans_final_epoch if last_apart else num_samples
        shuffle_index = _build_shuffle_index(first, num_samples, random)
        yield from zip(NAMES, map(np.ascontiguousarray, (document_index, sample_index, shuffle_index)), strict=True)

    def _read(self, arrays: Arrays) -> WindowReader:
        shape = self._shape
        return window_reader(arrays, self._documents.lengths, window_length=shape.sequence_length, extra=shape.extra)


def _build_document_index(
    documents: NDArray[Any], num_epochs: int, numpy_random_state: np.random.RandomState, separate_final_epoch: bool
) -> NDArray[np.int32]:
    """Returns the shuffled document indices of all epochs, int32[num_epochs * num_documents].

    With `separate_final_epoch`, the last epoch is shuffled separately from the other epochs.
    """
    parts = []
    for epochs in [num_epochs - 1, 1] if separate_final_epoch and num_epochs > 1 else [num_epochs]:
        part = np.tile(np.asarray(documents), epochs).astype(np.int32)
        numpy_random_state.shuffle(part)
        parts.append(part)
    return np.concatenate(parts)


def _build_shuffle_index(num_samples: int, total_size: int, numpy_random_state: np.random.RandomState) -> NDArray[Any]:
    """Returns [0, num_samples) and [num_samples, total_size), each shuffled, as one array: uint32 or int64."""
    dtype = np.int64 if total_size >= np.iinfo(np.uint32).max - 1 else np.uint32
    numbers: NDArray[Any] = np.arange(total_size, dtype=dtype)
    numpy_random_state.shuffle(numbers[:num_samples])
    if num_samples < total_size:
        numpy_random_state.shuffle(numbers[num_samples:])
    return numbers


def _get_ltor_masks_and_position_ids(
    data: torch.Tensor,
    eod_token: int,
    reset_position_ids: bool,
    reset_attention_mask: bool,
    eod_mask_loss: bool,
    create_attention_mask: bool,
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """Returns the attention mask, loss mask (float32[S]) and positions (int64[S]) of the tokens `data`, int64[S].

    The attention mask is bool[1, S, S], True = masked; None without `create_attention_mask`.
    """
    size, device = data.numel(), data.device
    is_end = data == eod_token
    places = torch.arange(size, dtype=torch.long, device=device)
    loss_mask = torch.ones(size, dtype=torch.float, device=device)
    if eod_mask_loss:
        loss_mask[is_end] = 0.0
    before = torch.cumsum(is_end, 0) - is_end.long()  # number of document ends before each token
    attention_mask = None
    if create_attention_mask:
        attention_mask = places[None, :] > places[:, None]
        if reset_attention_mask:
            attention_mask = attention_mask | (before[None, :] != before[:, None])
        attention_mask = attention_mask[None]
    if reset_position_ids:
        begins = torch.cat([places.new_zeros(1), places[is_end] + 1])
        places = places - begins[before]
    return attention_mask, loss_mask, places


_MASKS = _get_ltor_masks_and_position_ids


class MockGPTDataset(mock.MockGPTDataset, GPTDataset):
    """A dataset of GPT samples from mock data; the config must not set `blend` or `blend_per_split`."""

    def __init__(
        self, dataset: Any, dataset_path: str | None, indices: Any, num_samples: int, index_split: Any, config: Any
    ) -> None:
        super().__init__(dataset, dataset_path, indices, num_samples, index_split, config)
