"""What a job did, in numbers that must balance."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.errors import InputError, TokenloomError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import idx_path, sidecar_path
from tokenloom.indexed.manifests import DocumentLedger, Manifest, manifest_of
from tokenloom.indexed.writing.outputs import existing_path
from tokenloom.preprocess.blocks import rejected_path
from tokenloom.preprocess.plan import JobPlan, PlannedOutput
from tokenloom.preprocess.recipe import PlannedDataset
from tokenloom.rendering.card import HasFacts
from tokenloom.storage.publishing import exists_error, recover
from tokenloom.storage.resolve import exists


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
    """Returns the summary of a job that is done."""
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


_LOGGER = logging.getLogger(__name__)


def finished_summary(plan: JobPlan, *, seconds: float) -> CorpusSummary | None:
    """Returns the summary of a job whose datasets are all there, made of the same inputs in the same way; else None.

    A dataset or manifest that cannot be read counts as not there: it will be written anew.

    Raises:
        InputError: more bad records were set aside than are allowed now.
    """
    if plan.reads_streams:
        return None
    outputs: list[OutputSummary] = []
    engines: list[str] = []
    try:
        for output in plan.outputs:
            for planned in output.datasets:
                recover(idx_path(planned.prefix))
            found = _finished_output(plan, output)
            if found is None:
                return None
            outputs.append(found[0])
            engines.append(found[1])
    except (TokenloomError, OSError):
        return None
    summary = corpus_summary(
        plan,
        outputs,
        num_shards_reused=len(plan.shards),
        was_complete=True,
        num_doubled=0,
        num_text_bytes=0,
        engine=engines[0],
        engine_reason="as the manifest tells",
        seconds=seconds,
    )
    num_records = summary.num_documents + summary.num_rejected
    if plan.settings.bad_records.is_exceeded(summary.num_rejected, num_records):
        message = (
            f"expected at most {plan.settings.bad_records} bad records, found {summary.num_rejected} of "
            f"{num_records} when `{summary.datasets[0].prefix}` was made"
        )
        raise InputError(message, hint="the datasets are there, and may be used without them; or correct the input")
    return summary


def _finished_output(plan: JobPlan, output: PlannedOutput) -> tuple[OutputSummary, str] | None:
    """Returns what an output holds, and what tokenized it; None if it is not there, or not as planned."""
    datasets: list[DatasetSummary] = []
    manifests: list[Manifest] = []
    for planned in output.datasets:
        if existing_path(planned.prefix) is None:  # which also finishes what a process left as it appeared
            return None
        dataset = plan.open(planned)
        manifest = manifest_of(dataset)
        if manifest is None or not _is_of(plan, output, planned, manifest):
            return None
        datasets.append(dataset_summary(planned, dataset))
        manifests.append(manifest)
    if not all(map(_has_its_files, output.datasets, manifests)):
        return None
    if plan.settings.origins and not all(manifest.pair.origins for manifest in manifests):
        _LOGGER.warning(
            "`%s` was made without origins and stays so: `overwrite=True` with `restart=True` writes them",
            output.datasets[0].prefix,
        )
    if manifests[0].ledger.num_rejected and not exists(rejected_path(output.prefix)):
        return None
    return OutputSummary(datasets=tuple(datasets), ledger=manifests[0].ledger), manifests[0].engine or "unknown"


def _has_its_files(planned: PlannedDataset, manifest: Manifest) -> bool:
    """Whether the origins and the hashes that a manifest tells of are there."""
    return not (
        (manifest.pair.origins is not None and not exists(sidecar_path(planned.prefix, "origins")))
        or (manifest.pair.hashes is not None and not exists(sidecar_path(planned.prefix, "hashes")))
    )


def require_own_outputs(plan: JobPlan, *, overwrite: bool) -> bool:
    """Checks that what is there under the names of the datasets, if anything, was made by this very job.

    A job that was killed while its datasets appeared finds some of them.

    Returns:
        Whether what is there may be replaced: it is of this job, or the caller wants it so.

    Raises:
        OutputExistsError: something else is there, and is not to be replaced.
    """
    may_replace = overwrite
    for output in plan.outputs if not overwrite else ():
        for planned in output.datasets:
            if (path := existing_path(planned.prefix)) is not None:
                if own_manifest(plan, output, planned) is None:
                    raise exists_error(path)
                may_replace = True
        if exists(path := rejected_path(output.prefix)) and existing_path(output.datasets[0].prefix) is None:
            raise exists_error(path)
    return may_replace


def own_manifest(plan: JobPlan, output: PlannedOutput, planned: PlannedDataset) -> Manifest | None:
    """Returns the manifest of a dataset that this very job made; None if it is not there, or somebody else's."""
    try:
        found = manifest_of(plan.open(planned))
    except (TokenloomError, OSError):
        return None
    is_unknown = plan.reads_streams and not plan.recipe.compares_bytes
    return None if found is None or is_unknown or not _is_of(plan, output, planned, found) else found


def _is_of(plan: JobPlan, output: PlannedOutput, dataset: PlannedDataset, found: Manifest) -> bool:
    expected = plan.recipe.manifest(
        found.pair,
        files=output.files,
        key=dataset.key,
        split=dataset.split,
        ledger=found.ledger,
        engine=found.engine or "",
    )
    return (found.tokenizer.fingerprint, found.options, found.inputs) == (
        expected.tokenizer.fingerprint,
        expected.options,
        expected.inputs,
    )
