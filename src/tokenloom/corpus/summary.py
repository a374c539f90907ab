"""What a job did, in numbers that must balance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.corpus.plan import JobPlan
from tokenloom.corpus.recipe import PlannedDataset
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest.contents import DocumentLedger
from tokenloom.preprocess.rejected import rejected_path
from tokenloom.rendering.card import HasFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """One of the datasets that came out.

    Attributes:
        key: key of the texts.
        split: its name; None without splits.
        prefix: prefix of the pair.
        num_documents: those without tokens included.
        num_empty: number of these without tokens.
        num_sequences, num_tokens, num_bytes: counts of it.
    """

    key: str
    split: str | None
    prefix: str
    num_documents: int
    num_empty: int
    num_sequences: int
    num_tokens: int
    num_bytes: int


def dataset_summary(planned: PlannedDataset, dataset: IndexedDataset) -> DatasetSummary:
    """Returns what a dataset holds."""
    return DatasetSummary(
        key=planned.key,
        split=planned.split,
        prefix=dataset.path_prefix,
        num_documents=dataset.num_documents,
        num_empty=int(np.count_nonzero(np.diff(dataset.document_indices) == 0)),
        num_sequences=len(dataset),
        num_tokens=dataset.num_tokens,
        num_bytes=dataset.num_tokens * dataset.dtype.itemsize,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSummary:
    """What became of the records of an output.

    Attributes:
        datasets: one per key and split.
        ledger: ledger of any of them: all were made of the same records.
    """

    datasets: tuple[DatasetSummary, ...]
    ledger: DocumentLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSummary(HasFacts):
    """What a job did.

    Attributes:
        datasets: one per output, key and split.
        num_files, num_ignored: input files read, and other files in folders.
        num_shards: number of shards of the job.
        num_shards_reused: number of these that were done before this call.
        was_complete: whether there was nothing to do at all.
        num_documents: found in the input; each was written once per key, or was a duplicate.
        num_duplicates: number of these that were left out because the same texts came before.
        num_doubled: number of these whose text already spells out a token that was added; 0 if `was_complete`.
        num_blank_lines: lines of nothing but white space.
        num_rejected: bad records, set aside in the files `rejected_paths`.
        num_text_bytes: read, after decompression; 0 if `was_complete`.
        dtype: dtype of the tokens.
        engine, engine_reason: what tokenized, and why.
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

    def facts(self) -> dict[str, Any]:
        """Returns what was read and written; see `HasFacts`."""
        paths = ", ".join(self.rejected_paths)
        return {
            "problems": [f"{self.num_rejected:,} bad records are set aside in {paths}"] if self.num_rejected else [],
            "documents": self.num_documents,
            "tokens": self.num_tokens,
            "input files": self.num_files,
            "bytes of text": self.num_text_bytes or None,
            "duplicates left out": self.num_duplicates or None,
            "texts that spell out added tokens": self.num_doubled or None,
            "blank lines": self.num_blank_lines or None,
            "shards": f"{self.num_shards:,}, {self.num_shards_reused:,} of them done before",
            "dtype": self.dtype,
            "engine": f"{self.engine}: {self.engine_reason}",
            "seconds": None if self.was_complete else self.seconds,
            "datasets": [
                {
                    "pair": each.prefix,
                    "split": each.split,
                    "documents": each.num_documents,
                    "tokens": each.num_tokens,
                    "bytes": each.num_bytes,
                }
                for each in self.datasets
            ],
        }


def corpus_summary(
    plan: JobPlan,
    outputs: Sequence[OutputSummary],
    *,
    num_shards_reused: int,
    was_complete: bool,
    num_doubled: int,
    num_text_bytes: int,
    engine: str,
    engine_reason: str,
    seconds: float,
) -> CorpusSummary:
    """Returns the summary of a job that is done.

    Args:
        plan: plan of the job.
        outputs: all of them, in its order.
        num_shards_reused, was_complete, num_doubled, num_text_bytes: see `CorpusSummary`; datasets do not tell them.
        engine, engine_reason, seconds: likewise.
    """
    ledgers = [output.ledger for output in outputs]
    num_blank = sum(ledger.num_blank for ledger in ledgers)
    num_rejected = sum(ledger.num_rejected for ledger in ledgers)
    return CorpusSummary(
        datasets=tuple(dataset for output in outputs for dataset in output.datasets),
        num_files=len(plan.files),
        num_ignored=len(plan.ignored),
        num_shards=len(plan.shards),
        num_shards_reused=num_shards_reused,
        was_complete=was_complete,
        num_documents=sum(ledger.num_read for ledger in ledgers) - num_blank - num_rejected,
        num_duplicates=sum(ledger.num_duplicates for ledger in ledgers),
        num_doubled=num_doubled,
        num_blank_lines=num_blank,
        num_rejected=num_rejected,
        rejected_paths=tuple(
            rejected_path(planned.prefix)
            for planned, ledger in zip(plan.outputs, ledgers, strict=True)
            if ledger.num_rejected
        ),
        num_text_bytes=num_text_bytes,
        dtype=plan.recipe.dtype.name,
        engine=engine,
        engine_reason=engine_reason,
        seconds=seconds,
    )
