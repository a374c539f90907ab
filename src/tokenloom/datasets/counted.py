"""Counts of the slots of samples of documents: from their spans where these tell, else from their tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.outputs import INTEGERS, recycled_empty
from tokenloom.datasets.shortcuts import check_hooks
from tokenloom.datasets.slot_counts import SlotCounts, TextCounts, count_spans
from tokenloom.datasets.tensors import Sample

if TYPE_CHECKING:
    from tokenloom.datasets.filled import FilledSamples

    _Base = FilledSamples
else:
    _Base = object


class CountedSamples(_Base):
    """What datasets of documents have beside `FilledSamples`: what is in the slots of their samples."""

    @property
    def counts_need_tokens(self) -> bool:
        """Whether the tokens themselves decide which slots have loss."""
        return bool(self.config.eod_mask_loss) or self._pad_token_id >= 0 or self._changes_texts

    @property
    def _changes_texts(self) -> bool:
        """Whether samples hold other tokens than their spans."""
        return False

    def slot_counts(self, positions: NDArray[np.integer[Any]]) -> SlotCounts:
        """Returns what became of the slots of samples, and of the tokens that these read.

        Raises:
            ConfigError: a class of a user's own changes the samples, which this knows nothing of.
        """
        check_hooks(self, "outline", "counts")
        rows, _ = self._rows(positions)
        config = self.config
        counts = count_spans(
            self.order.spans(rows, keep_empty=False),
            sequence_length=config.sequence_length,
            extra=self._extra,
            are_packs=config.window_policy == "best_fit",
        )
        if not self.counts_need_tokens:
            return counts
        sample: Sample = {
            output.name: recycled_empty((len(rows), *output.shape), output.dtype or INTEGERS[0])
            for output in self.layout.outputs
            if output.name != "attention_mask"
        }
        if self._all_have_labels(counts):
            self._fill(rows, sample)
            return self._without_loss(counts, sample)
        tokens, run_lengths, row_offsets = self._runs(rows)
        self._fill_from_runs(tokens, run_lengths, row_offsets, sample, None)
        sizes = np.abs(run_lengths)
        bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])[row_offsets]
        texts = TextCounts(
            text=tokens,
            is_denied=np.repeat(run_lengths < 0, sizes),
            bounds=bounds,
            loss=np.count_nonzero(sample["loss_mask"], axis=1),
            eod=self._eod_token_id if config.eod_mask_loss else None,
        )
        return texts.of(counts, sequence_length=config.sequence_length)

    def _all_have_labels(self, counts: SlotCounts) -> bool:
        """Whether samples tell by themselves why slots have no loss: they are full, and as their spans say.

        Places without a token, and those of the padding id, hold a 0.
        """
        blank = counts.denied_slots + counts.no_label + counts.padding
        eod, pad = self._eod_token_id, self._pad_token_id
        return not blank and not self._changes_texts and (pad < 0 or eod not in (0, pad))

    def _without_loss(self, counts: SlotCounts, sample: Sample) -> SlotCounts:
        """Returns the counts of samples in which every slot has a label, and none is denied."""
        with_loss = int(np.count_nonzero(sample["loss_mask"]))
        ended = int(np.count_nonzero(sample["tokens"] == self._eod_token_id)) if self.config.eod_mask_loss else 0
        return replace(counts, with_loss=with_loss, eod_masked=ended, pad_id=counts.with_loss - with_loss - ended)
