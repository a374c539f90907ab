"""What a job did, in numbers that must balance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenloom.indexed.dataset import IndexedDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """One of the datasets that came out.

    Attributes:
        key: of the texts.
        split: its name; None without splits.
        prefix: of the pair.
        num_documents: those without tokens included.
        num_empty: of these, without tokens.
        num_sequences, num_tokens, num_bytes: in it.
    """

    key: str
    split: str | None
    prefix: str
    num_documents: int
    num_empty: int
    num_sequences: int
    num_tokens: int
    num_bytes: int


def dataset_summary(dataset: IndexedDataset, *, key: str, split: str | None) -> DatasetSummary:
    """Returns what a dataset holds."""
    return DatasetSummary(
        key=key,
        split=split,
        prefix=dataset.path_prefix,
        num_documents=dataset.num_documents,
        num_empty=int(np.count_nonzero(np.diff(dataset.document_indices) == 0)),
        num_sequences=len(dataset),
        num_tokens=dataset.num_tokens,
        num_bytes=dataset.num_tokens * dataset.dtype.itemsize,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSummary:
    """What a job did.

    Attributes:
        datasets: one per output, key and split.
        num_files, num_ignored: input files read, and other files in folders.
        num_shards: of the job.
        num_shards_reused: of these, done before this call.
        was_complete: whether there was nothing to do at all.
        num_documents: found in the input; each was written once per key, or was a duplicate.
        num_duplicates: of these, left out because the same texts came before.
        num_doubled: of these, with a text that already spells out a token that was added; 0 if `was_complete`.
        num_blank_lines: lines of nothing but white space.
        num_rejected: bad records, set aside in the files `rejected_paths`.
        num_text_bytes: read, after decompression; 0 if `was_complete`.
        dtype: of the tokens.
        engine, engine_reason: what tokenised, and why.
        seconds: this call took.
    """

    datasets: tuple[DatasetSummary, ...]
    num_files: int
    num_ignored: int
    num_shards: int
    num_shards_reused: int
    was_complete: bool
    num_documents: int
    num_duplicates: int
    num_doubled: int
    num_blank_lines: int
    num_rejected: int
    rejected_paths: tuple[str, ...]
    num_text_bytes: int
    dtype: str
    engine: str
    engine_reason: str
    seconds: float

    @property
    def num_tokens(self) -> int:
        """Tokens written, over all datasets."""
        return sum(dataset.num_tokens for dataset in self.datasets)
