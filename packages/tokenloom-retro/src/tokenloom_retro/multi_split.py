"""Samples for RETRO: GPT samples without masks; a split has only documents that are in the same split of the build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.base import PairSamples
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.protocols import Int64s, Positions
from tokenloom.datasets.sample_arrays import BatchLayout, Output
from tokenloom.datasets.slot_counts import SlotCounts
from tokenloom.datasets.splits import SplitMatrix, split_text
from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer import NO_TOKEN
from tokenloom.errors import ConfigError
from tokenloom.forks import cached_property
from tokenloom.indexed.manifests import optional_number

_INT64 = np.dtype(np.int64)


@dataclass
class MultiSplitGPTDatasetConfig(GPTDatasetConfig):
    """The settings of `MultiSplitGPTDataset`.

    Attributes:
        return_document_ids: whether samples have document ids, which the search for neighbors needs. Required.
        split_preprocessing: the `split` used to build neighbors. Required. A split leaves out
            the documents that `split_preprocessing` puts into another split.
    """

    return_document_ids: bool | None = None
    split_preprocessing: str | Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Validates the settings and computes `split_matrix`."""
        super().__post_init__()
        if self.split is None:
            message = "`blend_per_split` is not supported: neighbors need `split`"
            raise ConfigError(message, hint="pass all data in `blend` and divide it with `split`")
        for name in ("return_document_ids", "split_preprocessing"):
            if getattr(self, name) is None:
                raise ConfigError(f"`{name}` is required, got None")
        assert self.split_preprocessing is not None
        self.split_preprocessing = split_text(self.split_preprocessing)
        shares, within = self._shares_of(str(self.split)), self._shares_of(self.split_preprocessing)
        if not np.allclose(shares, within):
            self.split_matrix: SplitMatrix | None = self._matrix_of(shares, within)

    @property
    def preprocessing_matrix(self) -> SplitMatrix:
        """Returns the interval in [0, 1] of each split of `split_preprocessing`; None for an empty split."""
        return self._matrix_of(self._shares_of(str(self.split_preprocessing)))


class MultiSplitGPTDataset(GPTDataset):
    """Samples of `sequence_length` tokens plus the last label, from one split. The arguments are those of `GPTDataset`.

    `dataset[k]` returns NumPy arrays as in Megatron: text int64[sequence_length + 1], or one token less without
    `add_extra_token_to_sequence`, padded with the pad id (-1 if none); with `return_document_ids` also document_ids
    int64[num_documents], including empty documents. `dataset.batch(positions)` reads many samples with one kernel call.

    Attributes:
        makes_batches: whether `batch` is supported: False for samples with document ids, as their shapes differ.
    """

    config: MultiSplitGPTDatasetConfig

    fills_batches: ClassVar[bool] = False
    digests_tokens: ClassVar[bool] = False

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [*GPTDataset._key_config_attributes(), "split_preprocessing"]

    def _prepare_filling(self) -> None:
        super()._prepare_filling()
        self.makes_batches: bool = not self.config.return_document_ids
        pad = optional_number(self.config.tokenizer, "pad")
        self._pad_token_id = NO_TOKEN if pad is None else pad  # padding is not masked, so any token may be used

    @cached_property
    def layout(self) -> BatchLayout:
        return BatchLayout((Output(name="text", shape=(self.config.sequence_length + self._extra,), dtype=_INT64),))

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as NumPy arrays."""
        return self._sample_for_item(idx)

    def _sample(self, idx: int | None) -> Sample:
        position = self._position(self._not_none(idx))
        if not self.config.return_document_ids:
            sample = {"text": self._texts(np.array([position], dtype=np.int64))[0]}
        else:
            text, documents, *_ = self._query_document_sample_shuffle_indices(position)
            sample = {"text": text, "document_ids": documents}
        self.order.check()
        return sample

    def batch(
        self, positions: Positions, *, out: Sample | None = None, digests: NDArray[np.uint64] | None = None
    ) -> Sample:
        """Returns samples as NumPy arrays with a leading batch axis, read with one kernel call.

        Raises:
            ConfigError: a position is None, `out` is given, or samples have document ids.
        """
        if out is not None:
            raise ConfigError(f"{self._name()} does not support `out`", hint="drop `out`")
        if self.config.return_document_ids:
            message = f"samples of {self._name()} have different numbers of document ids and cannot be batched"
            raise ConfigError(message, hint="read samples one at a time, or set `return_document_ids=False`")
        return PairSamples.batch(self, positions)

    def _batch(self, rows: Int64s) -> Sample:
        return {"text": self._texts(rows)}

    def _rows(self, positions: Positions) -> tuple[Int64s, list[int]]:
        rows, fillers = super()._rows(positions)
        if fillers:
            self._not_none(None)
        return rows, fillers

    def _texts(self, rows: Int64s) -> Int64s:
        """Returns the token ids of the samples `rows`, int64[num_samples, sequence_length + 1]."""
        try:
            tokens, lengths, row_offsets, _ = self._runs(rows)
        except IndexError as error:
            raise self._damaged(error) from error
        width = self.config.sequence_length + self._extra
        if (lengths < 0).any():
            raise ConfigError(f"{self._name()} does not support denied documents: its samples have no loss mask")
        if len(tokens) == len(rows) * width:
            return tokens.astype(np.int64, copy=False).reshape(len(rows), width)
        texts = np.full((len(rows), width), self._pad_token_id, dtype=np.int64)
        sizes = np.diff(np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])[row_offsets])
        texts[np.arange(width) < sizes[:, None]] = tokens
        return texts

    def slot_counts(self, positions: NDArray[np.integer[Any]]) -> SlotCounts:
        """Always raises ConfigError: the samples have no loss mask to count."""
        message = f"samples of {self._name()} have no loss mask"
        raise ConfigError(message, hint="use `GPTDataset` with the same data")

    def _not_none(self, idx: int | None) -> int:
        if idx is None:
            raise ConfigError(f"a position of {self._name()} must not be None (no loss): samples have no loss mask")
        return idx
