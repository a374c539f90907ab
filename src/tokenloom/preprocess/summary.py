"""What a job did, in numbers that must balance; and whether it was done before, as manifests say."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tokenloom.errors import InputError, TokenloomError
from tokenloom.indexed.columns import columns_there
from tokenloom.indexed.layout import column_path, idx_path
from tokenloom.indexed.manifests import Manifest, manifest_of
from tokenloom.indexed.writing.outputs import existing_path
from tokenloom.preprocess.blocks import rejected_path
from tokenloom.preprocess.part import ShardReport
from tokenloom.preprocess.plan import JobPlan, PlannedOutput
from tokenloom.preprocess.recipe import PlannedDataset
from tokenloom.storage.publishing import exists_error, tidy
from tokenloom.storage.resolve import exists

_LOGGER = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSummary:
    """What a job did.

    Attributes:
        datasets: one per output, key and split.
        num_files, num_ignored: input files read, and other files in folders.
        num_shards: number of shards of the job.
        num_shards_reused: number of these that were done before this call.
        was_complete: whether there was nothing to do at all.
        num_documents: found in the input; each was written once per key, or was a duplicate.
        num_duplicates: number of these that were left out because the same texts came before.
        num_blank_lines: lines of nothing but white space.
        num_rejected: bad records, set aside in the files `rejected_paths`.
        num_text_bytes: read, after decompression; 0 if `was_complete`.
        numbers: further counts, none if `was_complete`. Of text `num_doubled`: texts that already spell out an added
            token. Of conversations `num_answer_tokens`: tokens that the assistant says, or of plain text. Of images
            `num_text_tokens`, `num_image_bytes`, and `num_truncated`: texts that were cut off at `pad_length`.
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
    num_blank_lines: int
    num_rejected: int
    rejected_paths: tuple[str, ...]
    num_text_bytes: int
    numbers: Mapping[str, int]
    dtype: str
    engine: str
    engine_reason: str
    seconds: float

    @property
    def prefix(self) -> str:
        """Prefix of the first dataset."""
        return self.datasets[0].prefix

    @property
    def num_tokens(self) -> int:
        """Tokens written, over all datasets; of images with their bytes."""
        return sum(dataset.num_tokens for dataset in self.datasets)


def corpus_summary(
    plan: JobPlan, reports: Sequence[ShardReport] = (), *, num_shards_reused: int | None = None, seconds: float
) -> CorpusSummary:
    """Returns the summary of a job whose datasets are there.

    Args:
        plan: plan of the job.
        reports: reports of its shards; none where all was done before.
        num_shards_reused: shards that this call did not do; None for all.
        seconds: this call took.
    """
    datasets: list[DatasetSummary] = []
    manifests: list[Manifest] = []
    for planned in (planned for output in plan.outputs for planned in output.datasets):
        dataset = plan.open(planned)
        datasets.append(
            DatasetSummary(
                key=planned.key,
                split=planned.split,
                prefix=dataset.path_prefix,
                num_documents=dataset.num_documents,
                num_empty=int(np.count_nonzero(np.diff(dataset.document_indices) == 0)),
                num_sequences=len(dataset),
                num_tokens=dataset.num_tokens,
                num_bytes=dataset.num_tokens * dataset.dtype.itemsize,
            )
        )
        if planned in [output.datasets[0] for output in plan.outputs]:  # all of an output are of the same records
            manifest = manifest_of(dataset)
            assert manifest is not None
            manifests.append(manifest)
    numbers = Counter[str]()
    for report in reports:
        numbers.update(report.numbers)
    ledgers = [manifest.ledger for manifest in manifests]
    num_blank = sum(ledger.num_blank for ledger in ledgers)
    num_rejected = sum(ledger.num_rejected for ledger in ledgers)
    reasons = dict.fromkeys(report.engine_reason for report in reports)
    outputs = [output.prefix for output, ledger in zip(plan.outputs, ledgers, strict=True) if ledger.num_rejected]
    return CorpusSummary(
        datasets=tuple(datasets),
        num_files=len(plan.files),
        num_ignored=len(plan.ignored),
        num_shards=len(plan.shards),
        num_shards_reused=len(plan.shards) if num_shards_reused is None else num_shards_reused,
        was_complete=not reports,
        num_documents=sum(ledger.num_read for ledger in ledgers) - num_blank - num_rejected,
        num_duplicates=sum(ledger.num_duplicates for ledger in ledgers),
        num_blank_lines=num_blank,
        num_rejected=num_rejected,
        rejected_paths=tuple(map(rejected_path, outputs)),
        num_text_bytes=sum(report.num_text_bytes for report in reports),
        numbers=numbers,
        dtype=plan.recipe.dtype.name,
        engine=manifests[0].engine or "unknown",
        engine_reason="; ".join(reasons) if reports else "as the manifest tells",
        seconds=seconds,
    )


def is_finished(plan: JobPlan) -> bool:
    """Whether the datasets of a job are all there, made of the same inputs in the same way.

    A dataset or manifest that cannot be read counts as not there: it will be written anew.
    """
    if plan.reads_streams:
        return False
    num_bad = num_documents = 0
    try:
        for output in plan.outputs:
            for planned in output.datasets:
                tidy(idx_path(planned.prefix))
            manifests = [_finished_manifest(plan, output, planned) for planned in output.datasets]
            if None in manifests or manifests[0] is None:
                return False
            ledger = manifests[0].ledger
            if ledger.num_rejected and not exists(rejected_path(output.prefix)):
                return False
            num_bad += ledger.num_rejected
            num_documents += ledger.num_read - ledger.num_blank - ledger.num_rejected
    except (TokenloomError, OSError):
        return False
    if plan.settings.bad_records.is_exceeded(num_bad, num_documents + num_bad):
        message = (
            f"expected at most {plan.settings.bad_records} bad records, found {num_bad} of {num_documents + num_bad} "
            f"when `{plan.outputs[0].datasets[0].prefix}` was made"
        )
        raise InputError(message, hint="the datasets are there, and may be used without them; or correct the input")
    return True


def _finished_manifest(plan: JobPlan, output: PlannedOutput, planned: PlannedDataset) -> Manifest | None:
    """Returns the manifest of a dataset that is there as planned, with the files that it tells of; else None."""
    if existing_path(planned.prefix) is None:  # which also finishes what a process left as it appeared
        return None
    manifest = own_manifest(plan, output, planned)
    if manifest is None:
        return None
    columns = columns_there(planned.prefix)
    if not all(exists(column_path(planned.prefix, name)) for name in columns):
        return None
    if plan.settings.origins and "origins" not in columns:
        hint = "`overwrite=True` with `restart=True` writes them"
        _LOGGER.warning("`%s` was made without origins and stays so: %s", planned.prefix, hint)
    return manifest


def require_own_outputs(plan: JobPlan, *, overwrite: bool) -> bool:
    """Checks that what is there under the names of the datasets, if anything, was made by this very job.

    A job that was killed while its datasets appeared finds some of them.

    Returns:
        Whether what is there may be replaced: it is of this job, or the caller wants it so.
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
    if plan.reads_streams:
        return None
    try:
        found = manifest_of(plan.open(planned))
    except (TokenloomError, OSError):
        return None
    if found is None:
        return None
    expected = plan.recipe.manifest(
        found.pair,
        files=output.files,
        key=planned.key,
        split=planned.split,
        ledger=found.ledger,
        engine=found.engine or "",
    )
    made, wanted = ((each.tokenizer.fingerprint, each.options, each.inputs) for each in (found, expected))
    return found if made == wanted else None
