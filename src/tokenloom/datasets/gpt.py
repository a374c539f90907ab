"""The dataset class of GPT samples: windows over shuffled documents, or packs, filled by one kernel call."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenloom._native import GptFiller, MappedSamples
from tokenloom.datasets.attention import attention_outputs
from tokenloom.datasets.base import MegatronDataset, PairOrigin, PairSamples, has_own_lengths, open_pair
from tokenloom.datasets.columns import SampleColumns, weigh_loss
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.data_match import check_eod, check_tokenizer
from tokenloom.datasets.protocols import Int64s, Positions, pair_of
from tokenloom.datasets.sample_arrays import (
    INTEGERS,
    LARGE_BYTES,
    TOKEN_DIGESTS,
    BatchLayout,
    MakeArray,
    Output,
    causal_mask,
    integers_of,
    recycled_empty,
    sample_outputs,
)
from tokenloom.datasets.shortcuts import QUERY, UNCALLED_BY_ITEM, check_hooks
from tokenloom.datasets.slot_counts import SlotCounts, Texts, count_spans
from tokenloom.datasets.splits import Split
from tokenloom.datasets.tensors import Sample, tensors_of, to_tensors
from tokenloom.datasets.tokenizer import NO_TOKEN
from tokenloom.errors import ConfigError, TokenloomError, TokenRangeError
from tokenloom.forks import cached_property
from tokenloom.indexed.dataset import IndexedDataset, LazyAttribute, check_source, mapped_bytes
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.indexed.verify import check_sum
from tokenloom.kernels.samples import block_lists
from tokenloom.order.array_store import warn_short
from tokenloom.order.epochs import EpochPlan, Epochs
from tokenloom.order.packs import PackEpochs
from tokenloom.order.policies import ArrayOrder, OrderPolicy
from tokenloom.order.protocols import SpanOrder
from tokenloom.order.windows import SpanBatch
from tokenloom.overrides import Uncalled, overrides

_FLOAT32 = np.dtype(np.float32)


class Runs(NamedTuple):
    """The tokens of several samples, as runs: a run is the piece of one document in one sample.

    Sample i has runs [row_offsets[i], row_offsets[i + 1]). A run of a denied document has a negative length, and zeros
    as tokens. `spans` say where tokens are stored; spans of tokens that are not stored have a document index below 0.
    """

    tokens: NDArray[Any]
    run_lengths: Int64s
    row_offsets: Int64s
    spans: SpanBatch

    @property
    def bounds(self) -> Int64s:
        """int64[samples + 1]; sample i has tokens [bounds[i], bounds[i + 1])."""
        ends = np.cumsum(np.abs(self.run_lengths))
        return np.concatenate([np.zeros(1, dtype=np.int64), ends])[self.row_offsets]


_BY_NUMBER = Uncalled(f"override `{QUERY}` or `__getitem__` to choose the samples")
_BY_LENGTH = Uncalled("pass `num_samples`, or override `__len__`, to set the number of samples")


def _stored(name: str, doc: str) -> Any:
    return property(lambda dataset: dataset._index(name), doc=doc)


class GPTDataset(PairSamples):
    """A dataset of GPT samples: `sequence_length` tokens each, from the documents of one split.

    `dataset[k]` returns torch tensors as the reference does; `dataset.sample(k)` returns NumPy arrays, without torch;
    `dataset.batch(positions)` fills many samples by one kernel call; `dataset.spans(k)` returns the document pieces of
    a sample. `dataset.epoch_plan` has the numbers of samples and epochs; `dataset.epochs` plans epochs for any other
    `num_samples`. Thread-safe, fork-safe and picklable; unpickling opens cached indices again.

    A sample has tokens int64[S], labels int64[S], loss_mask float32[S], position_ids int64[S] (S: `sequence_length`);
    with `create_attention_mask` also attention_mask bool[1, S, S] (True = masked); with `inter_document_masking` also
    cu_seqlens int32[S + 1] (document starts in the sample, then padded with S) and max_seqlen int32; and the arrays of
    the setting `attention`. Samples share only a constant attention mask; all other arrays belong to the caller.

    Args:
        indexed_dataset: the low-level dataset.
        dataset_path: path of the low-level dataset, for the cache key; None for mock data.
        indexed_indices: integers[num_documents], the documents of the split.
        num_samples: minimum number of samples, which sets the number of epochs; None for one epoch.
        index_split: the split that these samples belong to.
        config: the settings.

    Raises:
        ConfigError: `num_samples` is above 0 and the split has no tokens.
        IndexCacheError: `path_to_cache` cannot be written; or no valid index is cached and settings forbid building.
    """

    config: GPTDatasetConfig
    fills_batches: ClassVar[bool] = True
    """Whether `batch` can fill given arrays."""
    digests_tokens: ClassVar[bool] = True
    """Whether `batch` can return digests of tokens."""

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {
        "_build_document_sample_shuffle_indices": _BY_NUMBER,
        "_build_document_index": _BY_NUMBER,
        "_build_shuffle_index": _BY_NUMBER,
        "_get_num_epochs": _BY_LENGTH,
        "_get_num_tokens_per_epoch": _BY_LENGTH,
        "_get_ltor_masks_and_position_ids": UNCALLED_BY_ITEM,
    }
    order: SpanOrder = LazyAttribute("_plan", when="_plans_later")  # type: ignore[assignment]
    epochs: Epochs = LazyAttribute("_plan", when="_plans_later")  # type: ignore[assignment]
    epoch_plan: EpochPlan = LazyAttribute("_plan", when="_plans_later")  # type: ignore[assignment]

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
            hint = "pass `IndexedDataset(path)`, or call `tokenloom.load`"
            message = f"`indexed_dataset`: must be an open dataset, got the path {os.fspath(indexed_dataset)!r}"
            raise ConfigError(message, hint=hint)
        super().__init__(indexed_dataset, dataset_path, indexed_indices, num_samples, index_split, config)
        self._prepare_filling()
        self._verification = None
        cache = self._array_store(PairOrigin(dataset=self.dataset)).cache if self._opens_later else None
        if self._opens_later and (config.defer_npy_index_mmap or (cache is not None and cache.exists())):
            self._plans_later = True
        else:
            self._plan()

    @cached_property
    def _columns(self) -> SampleColumns | None:
        if not self.config.columns:
            return None
        self._refuse_query("columns")
        return SampleColumns(self.dataset, self.config.columns, elsewhere=self.config.prefixes)

    def _refuse_query(self, setting: str) -> None:
        """Raises if the class overrides the method that returns the text of samples, which `setting` forbids."""
        if QUERY in self._overrides.found:
            message = f"`{setting}`: needs unchanged texts, but the class overrides `{type(self).__name__}.{QUERY}`"
            raise ConfigError(message, hint="override `sample` or `__getitem__` instead")

    @property
    def _loss_weight(self) -> float:
        return self.config.loss_weights.get(self.dataset_path or "", 1.0)

    @cached_property
    def _is_plain(self) -> bool:
        return self._columns is None and self._loss_weight == 1

    @property
    def _opens_later(self) -> bool:
        pair = pair_of(self.dataset)
        return self.config.fast_cache_load and self.config.verify == "quick" and pair is not None and not pair.is_open

    def _plan(self) -> None:
        config = self.config
        name = f"`{self.dataset_path or type(self).__name__}`"
        check_tokenizer(self.dataset, config, name=name)
        self._check_pair()
        check_eod(self.dataset, config, name=name)
        documents = self.documents
        num_tokens = documents.count_tokens()
        rows, pair = self.rows.consecutive, pair_of(self.dataset)
        if rows and pair is not None and not has_own_lengths(pair):
            check_sum(pair, rows, num_tokens)  # O(1) for a range, so it runs at every start
        _ = self._columns  # raises errors of columns now
        policy = config.policy_of(self.index_split)
        self.epochs = policy.epochs(num_tokens, documents.length_blocks())
        self.epoch_plan = self._plan_epochs()
        if self.epoch_plan.num_samples == 0:
            warn_short(
                f"{self._name()} has {self.epoch_plan.tokens_per_epoch} tokens, too few for one sample of "
                f"{config.sequence_length + self._extra} tokens"
            )
        self.order = self._make_order(policy)

    @classmethod
    def in_order(cls, low_level: Any, order: SpanOrder, config: GPTDatasetConfig, *, name: str) -> Self:
        """Returns a dataset whose samples follow an existing order, without building indices or planning epochs.

        Settings of splits, epochs and the index cache have no effect. `name` is the name of the data in errors.
        """
        dataset = cls.__new__(cls)
        MegatronDataset.__init__(dataset, low_level, name, range(0), None, Split.train, config)
        dataset._check_pair()
        dataset._prepare_filling()
        _ = dataset._columns
        dataset.order = order
        return dataset

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: IndexedDataset) -> int:
        """Returns the number of sequences; the split weights divide these sequences among the splits."""
        if has_own_lengths(low_level_dataset):
            return len(low_level_dataset.sequence_lengths)
        return len(low_level_dataset)  # does not open the data

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> IndexedDataset:
        """Opens the pair at a path."""
        counts = None
        if config.sequences_per_dataset is not None:
            if dataset_path not in config.sequences_per_dataset:
                message = f"`sequences_per_dataset`: no entry for `{dataset_path}`"
                raise ConfigError(message, hint="add an entry for each dataset of the blend")
            counts = tuple(config.sequences_per_dataset[dataset_path])
        return open_pair(dataset_path, config, sequences_per_dataset=counts)

    def _make_order(self, policy: OrderPolicy) -> SpanOrder:
        config = self.config
        further = {
            "add_extra_token_to_sequence": bool(self._extra),
            "drop_last_partial_validation_sequence": config.drop_last_partial_validation_sequence,
        }
        store = self._array_store(PairOrigin(dataset=self.dataset, further=further))
        return policy.order(self.documents, self.epochs, self.epoch_plan, seed=config.random_seed, store=store)

    def _plan_epochs(self) -> EpochPlan:
        try:
            return self.epochs.plan(self.num_samples)
        except ConfigError as error:
            raise ConfigError(f"{self._name()}: {error.message}", hint=error.hint) from None

    def _further_identifiers(self) -> dict[str, Any]:
        policy, blocks = self.config.window_policy, self.config.block_shuffle
        further: dict[str, Any] = {} if policy == "concat" else {"window_policy": policy}
        if self.config.most_documents is not None:
            further["most_documents"] = self.config.most_documents
        return further if blocks is None else {**further, "block_shuffle": dataclasses.asdict(blocks)}

    document_index: property = _stored("document_index", "integers[num_epochs * num_documents], shuffled; for windows.")
    sample_index: property = _stored(
        "sample_index", "integers[num_windows + 1, 2], (index in `document_index`, token) per start; only for windows."
    )
    piece_index: property = _stored("piece_index", "integers[num_pieces, 2], (document, first token); only for packs.")
    pack_index: property = _stored("pack_index", "integers[num_packs + 1], starts in `piece_index`; only for packs.")
    shuffle_index: property = _stored("shuffle_index", "integers[num_samples], the window or pack of each sample.")

    def _index(self, name: str) -> NDArray[Any]:
        arrays = self.order.arrays if isinstance(self.order, ArrayOrder) else {}
        if name not in arrays:
            raise ConfigError(f"{self._name()} has no {name}: its `window_policy` is {self.config.window_policy!r}")
        return arrays[name]

    def _sample_facts(self) -> dict[str, Any]:
        is_built, plan = "order" in self.__dict__, self.__dict__.get("epoch_plan")
        return {
            "samples" if is_built else "samples, at least": len(self) if is_built else self.num_samples,
            "epochs": None if plan is None else plan.num_epochs,
            "tokens of an epoch": None if plan is None else plan.tokens_per_epoch,
            "documents exposed": f"{len(self.rows):,} of {len(self.dataset):,}" if len(self.rows) else None,
            "windows": self.config.window_policy,
        }

    def __len__(self) -> int:
        """Returns the number of samples, without opening the indices."""
        return self.order.num_samples

    def span_batch(self, positions: Positions) -> SpanBatch:
        """Returns the spans of many samples, by one kernel call."""
        rows, _ = self._rows(positions)
        try:
            return self.order.spans(rows, keep_empty=False)
        except IndexError as error:
            raise self._damaged(error) from error

    def epochs_of(self, positions: Positions) -> Int64s:
        """Returns the epoch, from 0, in which each sample begins: int64[num_positions]; -1 if the order has no epochs.

        For windows, an epoch is `num_documents` consecutive elements of `document_index`. As in the reference, several
        epochs are shuffled together, so an epoch may contain a document twice or not at all.
        """
        rows, _ = self._rows(positions)
        arrays = self.order.arrays if isinstance(self.order, ArrayOrder) else {}
        if "sample_index" in arrays:
            first, offset = arrays["sample_index"][arrays["shuffle_index"][rows]].astype(np.int64).T
            # An offset at the end of a document means the start of the next document.
            first += offset >= self.documents.lengths[arrays["document_index"][first]]
            found: Int64s = first // max(len(self.documents), 1)
            return found
        if "pack_index" in arrays and isinstance(self.epochs, PackEpochs):
            return arrays["shuffle_index"][rows].astype(np.int64) // max(self.epochs.report.num_packs, 1)
        return np.full(len(rows), -1, dtype=np.int64)

    def _prepare_filling(self) -> None:
        config = self.config
        check_source(self.dataset)
        self._reads_pair = issubclass(type(self.dataset), IndexedDataset)  # `isinstance` would accept a wrapper
        assert config.tokenizer is not None  # validated by the config
        uses_eod = config.reset_position_ids or config.reset_attention_mask or config.eod_mask_loss
        self._eod_token_id = config.tokenizer.eod if uses_eod else NO_TOKEN
        self._extra = config.num_extra_tokens
        # Decided once, as computing the size of each array takes longer than allocating a small array.
        self._make_array: MakeArray = np.empty if config.sequence_length < LARGE_BYTES // 8 else recycled_empty
        self._mapped: MappedSamples | None = None
        self._mapped_of: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_mapped": None, "_mapped_of": None}

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as torch tensors; for None, a sample with an all-zero loss mask."""
        if found := self._overrides.found:
            return to_tensors(self._sample_for_item(idx), copy_shared="__getitem__" in found)
        sample = self._sample(idx)
        return tensors_of(sample) if self._all_filled else to_tensors(sample)

    def _sample(self, idx: int | None) -> Sample:
        if idx is None:
            return super()._sample(None)
        if type(idx) is int and self._verification is None and 0 <= idx < len(self):
            position = idx
        else:
            position = self._position(idx)
        if self._is_text and (source := self._mapped_samples()) is not None:
            return self._text_sample(source, position)
        sample = self.layout.allocate((), integers=INTEGERS[0], empty=recycled_empty)
        if (source := self._mapped_samples()) is None or not self._is_plain:
            self._fill(np.array([position], dtype=np.int64), sample)
        else:
            try:
                self._filler.fill_one(source, position, *_outputs(sample)[:-1])
            except IndexError as error:
                raise self._reworded(error) from error
        if not self._all_filled and "max_seqlen" in sample:
            sample["max_seqlen"] = sample["max_seqlen"][()]
        return sample

    def _text_sample(self, source: MappedSamples, position: int) -> Sample:
        """Returns a sample of only tokens, labels, loss mask and position ids; faster than `BatchLayout.allocate`."""
        empty, shape, integers = self._make_array, (self.config.sequence_length,), INTEGERS[0]
        tokens, labels = empty(shape, integers), empty(shape, integers)
        loss_mask, position_ids = empty(shape, _FLOAT32), empty(shape, integers)
        try:
            self._filler.fill_one(source, position, tokens, labels, loss_mask, position_ids, None, None, None)
        except IndexError as error:
            raise self._reworded(error) from error
        return {"tokens": tokens, "labels": labels, "loss_mask": loss_mask, "position_ids": position_ids}

    def batch(
        self, positions: Positions, *, out: Sample | None = None, digests: NDArray[np.uint64] | None = None
    ) -> Sample:
        """Returns many samples as NumPy arrays with a leading batch axis, filled by one kernel call.

        Args:
            positions: positions in any order, repeats allowed; an element None gives a sample without loss.
            out: arrays from `allocate_batch` to fill and return, one row per position; None for new arrays. After
                an error, the content of `out` is undefined.
            digests: uint64[num_samples, 2], filled with a digest of the tokens of each sample; see `FillsBatches`.

        Raises:
            IndexError: a position is out of range.
            ConfigError: `out` has wrong names, shapes or dtypes.
            TokenRangeError: a token does not fit into an int32 array of `out`.
        """
        if out is None and (digests is None or not self.digests_tokens):
            return super().batch(positions)
        if self._needs_items("batch"):
            check_hooks(self, "batch")
        if out is None:
            out = self.layout.allocate((len(positions),), integers=INTEGERS[0], empty=recycled_empty)
        else:
            self.layout.check(out, len(positions), name=self._name())
        self.fill_rows(positions, out if digests is None else {**out, TOKEN_DIGESTS: digests})
        return out

    def allocate_batch(self, count: int, *, integer_dtype: DTypeLike = np.int64, empty: MakeArray = np.empty) -> Sample:
        """Returns uninitialised, reusable arrays for `batch(positions, out=…)`.

        Args:
            count: samples per batch.
            integer_dtype: dtype of tokens, labels and position ids, int64 or int32.
            empty: function that allocates an array of a shape and dtype, for example in page-locked memory.
        """
        return self.layout.allocate((count,), integers=integers_of(integer_dtype), empty=empty)

    def fill_rows(self, positions: Positions, out: Sample, rows: Int64s | None = None) -> None:
        """Fills rows of `out`, a batch of `allocate_batch`: sample i goes into row `rows[i]`, by default into row i."""
        known, fillers = self._rows(positions)
        self._fill(known, out, rows)
        if fillers:
            out["loss_mask"][fillers if rows is None else rows[fillers]] = 0

    def _batch(self, rows: Int64s) -> Sample:
        batch = self.layout.allocate((len(rows),), integers=INTEGERS[0], empty=recycled_empty)
        self._fill(rows, batch)
        return batch

    def _reworded(self, error: IndexError | OverflowError) -> TokenloomError:
        if isinstance(error, IndexError):  # the positions are validated, so the indices are wrong
            return self._damaged(error)
        return TokenRangeError(f"{self._name()}: {error}", hint="use integer_dtype=np.int64")

    @cached_property
    def layout(self) -> BatchLayout:
        """The names, shapes and dtypes of the arrays of a sample."""
        config, mask = self.config, None
        length, boundaries = config.sequence_length, config.inter_document_masking
        if config.create_attention_mask and not boundaries:
            constant = None if config.reset_attention_mask else causal_mask(length)
            shape = (1, length, length)
            mask = Output(name="attention_mask", shape=shape, dtype=np.dtype(np.bool_), constant=constant)
        outputs = sample_outputs(length, boundaries=boundaries, mask=mask)
        if boundaries:
            outputs += attention_outputs(config.attention, length=length, block_size=config.attention_block_size)
        outputs += [] if self._columns is None else self._columns.outputs(length)
        return BatchLayout(tuple(outputs))

    @cached_property
    def _all_filled(self) -> bool:
        return all(output.constant is None and output.shape for output in self.layout.outputs)

    @cached_property
    def _is_text(self) -> bool:
        names = [output.name for output in self.layout.outputs]
        return names == ["tokens", "labels", "loss_mask", "position_ids"] and self._is_plain

    @cached_property
    def _filler(self) -> GptFiller:
        config = self.config
        return GptFiller(
            sequence_length=config.sequence_length,
            extra=self._extra,
            pad_id=self._pad_token_id,
            eod_id=self._eod_token_id,
            reset_position_ids=bool(config.reset_position_ids),
            reset_attention_mask=bool(config.reset_attention_mask),
            eod_mask_loss=bool(config.eod_mask_loss),
            inter_document_masking=config.inter_document_masking,
            folds_last_token=config.window_policy == "concat",  # as the reference does for short windows
            attention_block=config.attention_block_size,
            attention_window=config.attention_window or 0,
        )

    def _mapped_samples(self) -> MappedSamples | None:
        """Returns the memory-mapped tokens for the kernel; None if tokens must first be read or changed."""
        source = self.dataset
        reader = source.byte_source if self._reads_pair else source
        if reader is not self._mapped_of:  # the reader may be replaced
            self._mapped = self._find_mapped(source)
            self._mapped_of = reader
        return self._mapped

    def _find_mapped(self, source: Any) -> MappedSamples | None:
        if QUERY in self._overrides.found or (reader := self.order.native_reader()) is None:
            return None
        if type(source) is JoinedPairs:
            return None if source.sections is None else MappedSamples(reader, source.sections)
        if (
            not self._reads_pair
            or overrides(source, "get", "gather", "sequence_lengths")
            or (data := mapped_bytes(source.byte_source)) is None
        ):
            return None
        index = source.index
        return MappedSamples(reader, data, index.sequence_pointers, index.header.dtype_code)

    def _fill(self, positions: Int64s, out: Sample, rows: Int64s | None = None) -> None:
        """Fills rows by one kernel call, which reads mapped bytes, or gets tokens that were read span by span."""
        columns = self._columns
        try:
            if (source := self._mapped_samples()) is not None:
                further: dict[str, Any] = {} if columns is None else {"columns": columns.arrays(out)}
                self._filler.fill(source, positions, rows, *_outputs(out), **further)
            else:
                runs = self._runs(positions)
                self._fill_from_runs(runs, out, rows)
                if columns is not None:
                    columns.fill(runs.spans, out, rows, self.config.sequence_length)
        except (IndexError, OverflowError) as error:
            raise self._reworded(error) from error
        if not self._is_plain:
            weigh_loss(out, rows, self._loss_weight)

    def _query_document_sample_shuffle_indices(self, idx: int) -> tuple[Int64s, Int64s]:
        """Returns the text and the documents of a sample, as the reference does; subclasses may override this method.

        Returns:
            text: int64[sequence_length + 1], padded with the pad id; int64[sequence_length] without an extra token.
            documents: int64[num_documents], rows of the `.idx` file, including empty documents.
        """
        rows = np.array([self._position(idx)], dtype=np.int64)
        try:
            tokens = self._gather(rows).tokens
            documents = self.order.spans(rows, keep_empty=True).documents
        except IndexError as error:
            raise self._damaged(error) from error
        text = np.full(self.config.sequence_length + self._extra, self._pad_token_id, dtype=np.int64)
        text[: len(tokens)] = tokens
        return text, documents

    def _runs(self, rows: Int64s) -> Runs:
        """Returns the tokens of samples, from `_query_document_sample_shuffle_indices` if this method is overridden."""
        if QUERY not in self._overrides.found:
            return self._gather(rows)
        if self.config.inter_document_masking:
            self._refuse_query("inter_document_masking")
        capacity = self.config.sequence_length + self._extra
        texts = [np.empty(0, dtype=np.int64)]
        for row in rows.tolist():
            text = np.asarray(self._query_document_sample_shuffle_indices(row)[0], dtype=np.int64)
            if text.ndim != 1 or len(text) > capacity:
                name = f"{type(self).__name__}.{QUERY}"
                raise ConfigError(f"`{name}`: must return up to {capacity} tokens, got shape {list(text.shape)}")
            texts.append(text)
        lengths = np.array([len(text) for text in texts[1:]], dtype=np.int64)
        offsets = np.arange(len(texts), dtype=np.int64)
        spans = SpanBatch(np.full_like(lengths, -1), np.zeros_like(lengths), lengths, offsets)
        return Runs(np.concatenate(texts), lengths, offsets, spans)

    def _gather(self, rows: Int64s) -> Runs:
        spans = self.order.spans(rows, keep_empty=self.config.inter_document_masking)
        if (allowed := spans.documents >= 0).all():
            tokens = self._read_spans(self.dataset, spans.documents, spans.starts, spans.lengths)
            return Runs(tokens, spans.lengths, spans.row_offsets, spans)
        read = (each[allowed] for each in (spans.documents, spans.starts, spans.lengths))
        found = self._read_spans(self.dataset, *read)
        tokens = np.zeros(int(spans.lengths.sum()), dtype=found.dtype)
        tokens[np.repeat(allowed, spans.lengths)] = found
        return Runs(tokens, np.where(allowed, spans.lengths, -spans.lengths), spans.row_offsets, spans)

    def _fill_from_runs(self, runs: Runs, out: Sample, rows: Int64s | None) -> None:
        """Fills `rows` of `out` with the tokens of `runs`; pads samples that have too few tokens."""
        text = np.empty((len(runs.row_offsets) - 1, self.config.sequence_length + self._extra), dtype=np.int64)
        for row, (begin, end) in enumerate(itertools.pairwise(runs.bounds.tolist())):
            text[row, : end - begin] = runs.tokens[begin:end]
        self._filler.fill_from_text(text, runs.run_lengths, runs.row_offsets, rows, *_outputs(out))

    @property
    def counts_need_tokens(self) -> bool:
        """Whether the loss mask depends on token ids, so that tokens must be read to count slots."""
        return bool(self.config.eod_mask_loss) or self._pad_token_id >= 0

    def slot_counts(self, positions: NDArray[np.integer[Any]]) -> SlotCounts:
        """Counts the slots of samples and the tokens that these samples read.

        Raises:
            ConfigError: a user's class changes the samples.
        """
        check_hooks(self, "outline", "counts")
        rows, _ = self._rows(positions)
        config = self.config
        spans, texts = self.order.spans(rows, keep_empty=False), None
        if self.counts_need_tokens:
            texts = self._counted_texts(rows)
        are_packs, length = config.window_policy == "best_fit", config.sequence_length
        return count_spans(spans, sequence_length=length, extra=self._extra, are_packs=are_packs, texts=texts)

    def _counted_texts(self, rows: Int64s) -> Texts:
        runs = self._runs(rows)
        sample: Sample = {
            output.name: recycled_empty((len(rows), *output.shape), output.dtype or INTEGERS[0])
            for output in self.layout.outputs
            if output.name not in ("attention_mask", *self.config.columns)
        }
        self._fill_from_runs(runs, sample, None)
        denied, loss = np.repeat(runs.run_lengths < 0, abs(runs.run_lengths)), sample["loss_mask"]
        eod = self._eod_token_id if self.config.eod_mask_loss else None
        return Texts(runs.tokens, denied, runs.bounds, np.count_nonzero(loss, axis=1), eod)


def _outputs(sample: Sample) -> tuple[Any, ...]:
    """Returns the arrays of a sample in the order of the kernel's parameters; None for missing arrays."""
    mask = sample.get("attention_mask")
    return (  # twice as fast as joining tuples
        sample["tokens"],
        sample["labels"],
        sample["loss_mask"],
        sample["position_ids"],
        mask if mask is not None and mask.flags.writeable else None,  # the constant mask is not filled
        sample.get("cu_seqlens"),
        sample.get("max_seqlen"),
        sample.get("document_ids"),
        block_lists(sample),
        sample.get(TOKEN_DIGESTS),
    )
