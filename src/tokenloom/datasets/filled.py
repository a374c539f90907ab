"""Samples filled by one kernel call: tokens, labels, loss mask, positions and masks, from the spans of a sample."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.outputs import (
    INTEGERS,
    LARGE_BYTES,
    TOKEN_DIGESTS,
    BatchLayout,
    MakeArray,
    Output,
    causal_mask,
    integers_of,
    recycled_empty,
)
from tokenloom.datasets.pair_samples import PairSamples
from tokenloom.datasets.shortcuts import QUERY, check_hooks
from tokenloom.datasets.tensors import Sample, tensors_of, to_tensors
from tokenloom.datasets.tokenizer import NO_TOKEN
from tokenloom.errors import ConfigError, TokenloomError, TokenRangeError
from tokenloom.forks import cached_property
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.indexed.token_source import check_source, mapped_bytes
from tokenloom.kernels import GptFiller, MappedSamples
from tokenloom.order.protocols import SpanOrder
from tokenloom.order.windows import SpanBatch
from tokenloom.overrides import overrides

_FLOAT32 = np.dtype(np.float32)

Runs = tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]
"""Tokens, the tokens of each run, and the runs of each sample; see `FilledSamples._gather`."""


if TYPE_CHECKING:
    _Base = PairSamples  # beside which a dataset class has this
else:
    _Base = object


class FilledSamples(_Base):
    """What datasets have beside `PairSamples` whose samples are `sequence_length` tokens, as spans of sequences.

    From mapped bytes the kernel fills the final arrays by itself. Tokens that must be read, or changed, first are
    gathered span by span, and the same kernel finishes the rows.
    """

    config: GPTDatasetConfig
    order: SpanOrder
    fills_batches: ClassVar[bool] = True
    """Whether `batch` fills given arrays."""
    digests_tokens: ClassVar[bool] = True
    """Whether `batch` gives digests of tokens."""

    def _prepare_filling(self) -> None:
        """Sets what samples are filled with; part of making a dataset."""
        config = self.config
        check_source(self.dataset)
        self._reads_pair = issubclass(type(self.dataset), IndexedDataset)  # `isinstance` would believe a wrapper
        assert config.tokenizer is not None  # the config has checked it
        uses_eod = config.reset_position_ids or config.reset_attention_mask or config.eod_mask_loss
        self._eod_token_id = config.tokenizer.eod if uses_eod else NO_TOKEN
        self._extra = config.num_extra_tokens
        # Asking for the size of each array of a sample would take longer than making those that are small.
        self._make_array: MakeArray = np.empty if config.sequence_length < LARGE_BYTES // 8 else recycled_empty
        self._filler: GptFiller | None = None
        self._mapped: MappedSamples | None = None
        self._mapped_of: Any = None

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.update(_filler=None, _mapped=None, _mapped_of=None)
        for name in ("layout", "_single_arrays", "_all_filled", "_is_text"):
            state.pop(name, None)
        return state

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample as torch tensors; None gives one with an all-zero loss mask, for filling up a batch."""
        if found := self._overrides.found:
            return to_tensors(self._sample_for_item(idx), copy_shared="__getitem__" in found)
        sample = self._sample(idx)
        return tensors_of(sample) if self._all_filled else to_tensors(sample)

    def _sample(self, idx: int | None) -> Sample:
        """Returns a sample as NumPy arrays, made here."""
        if idx is None:
            return super()._sample(None)
        if type(idx) is int and self._verification is None and 0 <= idx < len(self):
            position = idx
        else:
            position = self._position(idx)
        empty = self._make_array
        if self._is_text and (source := self._mapped_samples()) is not None:
            return self._text_sample(source, position)
        sample = {
            name: empty(shape, dtype) if constant is None else constant
            for name, shape, dtype, constant in self._single_arrays
        } or self.layout.allocate((), integers=INTEGERS[0], empty=empty)
        if (source := self._mapped_samples()) is None:
            self._fill(np.array([position], dtype=np.int64), sample)
        else:
            try:
                self._sample_filler().fill_one(source, position, *_outputs(sample)[:-1])
            except IndexError as error:
                raise self._reworded(error) from error
        if not self._all_filled and "max_seqlen" in sample:
            sample["max_seqlen"] = sample["max_seqlen"][()]
        return sample

    def _text_sample(self, source: MappedSamples, position: int) -> Sample:
        """Returns a sample of nothing but what all have, which is most of them; two dicts less are made."""
        empty, shape, integers = self._make_array, (self.config.sequence_length,), INTEGERS[0]
        tokens, labels = empty(shape, integers), empty(shape, integers)
        loss_mask, position_ids = empty(shape, _FLOAT32), empty(shape, integers)
        filler = self._filler or self._sample_filler()
        try:
            filler.fill_one(source, position, tokens, labels, loss_mask, position_ids, None, None, None)
        except IndexError as error:
            raise self._reworded(error) from error
        return {"tokens": tokens, "labels": labels, "loss_mask": loss_mask, "position_ids": position_ids}

    def batch(
        self,
        positions: Sequence[int | None] | NDArray[np.integer[Any]],
        *,
        out: Sample | None = None,
        digests: NDArray[np.uint64] | None = None,
    ) -> Sample:
        """Returns many samples as NumPy arrays with a leading batch axis, by one kernel call.

        Args:
            positions: positions of the samples, in any order, repeats allowed; None for a sample without loss.
            out: the arrays to fill and return, as `allocate_batch` gives them, one row per position; without them new
                ones are made. What their rows held is gone, also after an error.
            digests: uint64[num_samples, 2], where to put a digest of the tokens of each sample; see `DigestsTokens`.

        Raises:
            IndexError: there is no such sample.
            ConfigError: `out` cannot take these samples.
            TokenRangeError: a token does not fit into an `out` of int32.
        """
        if out is None and (digests is None or not self.digests_tokens):
            return super().batch(positions)
        if self._must_ask("batch"):
            check_hooks(self, "batch")
        if out is None:
            out = self.layout.allocate((len(positions),), integers=INTEGERS[0], empty=recycled_empty)
        else:
            self.layout.check(out, len(positions), name=self._name())
        self.fill_rows(positions, out if digests is None else {**out, TOKEN_DIGESTS: digests})
        return out

    def allocate_batch(self, count: int, *, integer_dtype: DTypeLike = np.int64, empty: MakeArray = np.empty) -> Sample:
        """Returns arrays for `batch(positions, out=…)`, not filled yet, to be used as often as one likes.

        Args:
            count: samples of a batch.
            integer_dtype: dtype of tokens, labels and positions, int64 or int32.
            empty: makes an array of a shape and dtype; for memory of a certain kind.

        Raises:
            ConfigError: integer_dtype is another one.
        """
        return self.layout.allocate((count,), integers=integers_of(integer_dtype), empty=empty)

    def fill_rows(
        self,
        positions: Sequence[int | None] | NDArray[np.integer[Any]],
        out: Sample,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Fills rows of a batch of arrays that fit: sample i goes into row `rows[i]`, or into row i.

        Args:
            positions: positions of the samples, as for `batch`.
            out: arrays as `allocate_batch` gives them.
            rows: int64[len(positions)]; without, there are as many positions as rows.
        """
        known, fillers = self._rows(positions)
        self._fill(known, out, rows)
        if fillers:
            out["loss_mask"][fillers if rows is None else rows[fillers]] = 0

    def _batch(self, rows: NDArray[np.int64]) -> Sample:
        """Returns the samples at positions that are known to exist: int64[count]."""
        batch = self.layout.allocate((len(rows),), integers=INTEGERS[0], empty=recycled_empty)
        self._fill(rows, batch)
        return batch

    def _reworded(self, error: IndexError | OverflowError) -> TokenloomError:
        """Returns what an error of the kernel means."""
        if isinstance(error, IndexError):  # the positions exist, so it is the indices that do not fit
            return self._damaged(error)
        message = f"{self._name()}: {error}"
        return TokenRangeError(message, hint="ask for samples of int64")

    @cached_property
    def layout(self) -> BatchLayout:
        """The arrays of a sample."""
        length, config = self.config.sequence_length, self.config
        int32 = np.dtype(np.int32)
        outputs = [Output(name=name, shape=(length,), dtype=None) for name in ("tokens", "labels")]
        if config.create_attention_mask and not config.inter_document_masking:
            constant = None if config.reset_attention_mask else causal_mask(length)
            shape = (1, length, length)
            outputs.append(Output(name="attention_mask", shape=shape, dtype=np.dtype(np.bool_), constant=constant))
        outputs.append(Output(name="loss_mask", shape=(length,), dtype=np.dtype(np.float32)))
        outputs.append(Output(name="position_ids", shape=(length,), dtype=None))
        if config.inter_document_masking:
            outputs.append(Output(name="cu_seqlens", shape=(length + 1,), dtype=int32))
            outputs.append(Output(name="max_seqlen", shape=(), dtype=int32))
        return BatchLayout(tuple(outputs))

    @cached_property
    def _single_arrays(self) -> list[tuple[str, tuple[int, ...], Any, NDArray[Any] | None]]:
        """Name, shape, dtype and what is constant of each array of a sample, to make them faster than `layout` does.

        Empty where arrays begin with a value.
        """
        if any(output.initial is not None for output in self.layout.outputs):
            return []
        return [(each.name, each.shape, each.dtype or INTEGERS[0], each.constant) for each in self.layout.outputs]

    @cached_property
    def _all_filled(self) -> bool:
        """Whether all arrays of a sample are filled for it: none is constant, none a single number."""
        return all(output.constant is None and output.shape for output in self.layout.outputs)

    @cached_property
    def _is_text(self) -> bool:
        """Whether a sample is four rows of new arrays."""
        length, layout = (self.config.sequence_length,), self.layout
        ours = [Output(name=name, shape=length, dtype=None) for name in ("tokens", "labels", "position_ids")]
        ours.insert(2, Output(name="loss_mask", shape=length, dtype=_FLOAT32))
        return type(layout) is BatchLayout and list(layout.outputs) == ours

    def _sample_filler(self) -> GptFiller:
        if self._filler is None:
            config = self.config
            self._filler = GptFiller(
                sequence_length=config.sequence_length,
                extra=self._extra,
                pad_id=self._pad_token_id,
                eod_id=self._eod_token_id,
                reset_position_ids=bool(config.reset_position_ids),
                reset_attention_mask=bool(config.reset_attention_mask),
                eod_mask_loss=bool(config.eod_mask_loss),
                inter_document_masking=config.inter_document_masking,
                folds_last_token=config.window_policy == "concat",  # windows that end early, as the reference's
            )
        return self._filler

    def _mapped_samples(self) -> MappedSamples | None:
        """Returns what the kernel fills samples from by itself; None if tokens have to be read, or changed, first."""
        source = self.dataset
        reader = source.byte_source if self._reads_pair else source
        if reader is not self._mapped_of:  # another one may take its place
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

    def _fill(self, positions: NDArray[np.int64], out: Sample, rows: NDArray[np.int64] | None = None) -> None:
        """Fills rows from mapped bytes in one call, or from tokens that are read span by span."""
        try:
            if (source := self._mapped_samples()) is not None:
                self._sample_filler().fill(source, positions, rows, *_outputs(out))
            else:
                self._fill_from_runs(*self._runs(positions), out, rows)
        except (IndexError, OverflowError) as error:
            raise self._reworded(error) from error

    def _query_document_sample_shuffle_indices(self, idx: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the text of a sample and its documents, as the reference does; a class may override it.

        Returns:
            text: int64[sequence_length + 1], filled up with the padding id; without the 1 where no extra token is read.
            documents: int64[num_documents], the rows in the `.idx` file, empty ones included.
        """
        rows = np.array([self._position(idx)], dtype=np.int64)
        try:
            tokens, _, _ = self._gather(rows)
            documents = self.order.spans(rows, keep_empty=True).documents
        except IndexError as error:
            raise self._damaged(error) from error
        text = np.full(self.config.sequence_length + self._extra, self._pad_token_id, dtype=np.int64)
        text[: len(tokens)] = tokens
        return text, documents

    def _runs(self, rows: NDArray[np.int64]) -> Runs:
        """Returns the tokens that samples are filled with: those of `_gather`, or of a user's own query."""
        if QUERY not in self._overrides.found:
            return self._gather(rows)
        name = f"{type(self).__name__}._query_document_sample_shuffle_indices"
        if self.config.inter_document_masking:
            message = f"expected a class that leaves texts alone, for `inter_document_masking`, found `{name}`"
            raise ConfigError(message, hint="override `sample` or `__getitem__` instead")
        capacity = self.config.sequence_length + self._extra
        texts = [np.empty(0, dtype=np.int64)]
        for row in rows.tolist():
            text = np.asarray(self._query_document_sample_shuffle_indices(row)[0], dtype=np.int64)
            if text.ndim != 1 or len(text) > capacity:
                message = (
                    f"expected at most {capacity} tokens of a sample from `{name}`, found shape {list(text.shape)}"
                )
                raise ConfigError(message)
            texts.append(text)
        lengths = np.array([len(text) for text in texts[1:]], dtype=np.int64)
        return np.concatenate(texts), lengths, np.arange(len(texts), dtype=np.int64)

    def _gather(self, rows: NDArray[np.int64]) -> Runs:
        """Returns the tokens of samples, back to back.

        Returns:
            tokens: integers[sum(abs(run_lengths))].
            run_lengths: int64[num_runs], tokens of each span; below 0 those of a denied document, which are zeros.
            row_offsets: int64[samples + 1]; sample i owns runs [row_offsets[i], row_offsets[i + 1]).
        """
        spans = self.order.spans(rows, keep_empty=self.config.inter_document_masking)
        if (denied := spans.documents < 0).any():
            return self._gather_allowed(spans, ~denied)
        tokens = self._read_spans(self.dataset, spans.documents, spans.starts, spans.lengths)
        return tokens, spans.lengths, spans.row_offsets

    def _gather_allowed(self, spans: SpanBatch, allowed: NDArray[np.bool_]) -> Runs:
        """Returns what `_gather` does, without reading a token of a denied document."""
        found = self._read_spans(self.dataset, spans.documents[allowed], spans.starts[allowed], spans.lengths[allowed])
        tokens = np.zeros(int(spans.lengths.sum()), dtype=found.dtype)
        tokens[np.repeat(allowed, spans.lengths)] = found
        return tokens, np.where(allowed, spans.lengths, -spans.lengths), spans.row_offsets

    def _fill_from_runs(
        self,
        tokens: NDArray[Any],
        run_lengths: NDArray[np.int64],
        row_offsets: NDArray[np.int64],
        out: Sample,
        rows: NDArray[np.int64] | None,
    ) -> None:
        """Fills the outputs from what `_gather` gives; a sample with too few tokens is filled up with padding."""
        bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.abs(run_lengths))])[row_offsets]
        text = np.empty((len(row_offsets) - 1, self.config.sequence_length + self._extra), dtype=np.int64)
        for row, (begin, end) in enumerate(itertools.pairwise(bounds.tolist())):
            text[row, : end - begin] = tokens[begin:end]
        self._sample_filler().fill_from_text(text, run_lengths, row_offsets, rows, *_outputs(out))


def _outputs(sample: Sample) -> tuple[Any, ...]:
    """Returns the arrays that the kernel fills, in the order of its parameters; None for one that a sample lacks."""
    mask = sample.get("attention_mask")
    return (
        sample["tokens"],
        sample["labels"],
        sample["loss_mask"],
        sample["position_ids"],
        mask if mask is not None and mask.flags.writeable else None,  # else the constant one
        sample.get("cu_seqlens"),
        sample.get("max_seqlen"),
        sample.get(TOKEN_DIGESTS),
    )
