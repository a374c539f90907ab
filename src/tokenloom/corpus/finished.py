"""What tells a job that is done: the manifests of its datasets, written with them and compared with the plan."""

from __future__ import annotations

import logging

from tokenloom.corpus.plan import JobPlan, PlannedOutput
from tokenloom.corpus.recipe import PlannedDataset
from tokenloom.corpus.summary import CorpusSummary, DatasetSummary, OutputSummary, corpus_summary, dataset_summary
from tokenloom.errors import InputError, TokenloomError
from tokenloom.indexed.document_hashes import hashes_path
from tokenloom.indexed.layout import idx_path
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.manifest.contents import Manifest
from tokenloom.indexed.origins import origins_path
from tokenloom.indexed.writing.outputs import existing_path
from tokenloom.preprocess.recording import is_of_same_run
from tokenloom.preprocess.rejected import rejected_path
from tokenloom.storage.publishing import exists_error, tidy
from tokenloom.storage.resolve import exists

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
                tidy(idx_path(planned.prefix))
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
        (manifest.pair.origins is not None and not exists(origins_path(planned.prefix)))
        or (manifest.pair.hashes is not None and not exists(hashes_path(planned.prefix)))
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
    key, split, engine = dataset.key, dataset.split, found.engine or ""
    make = plan.recipe.manifest_maker(output.files, key=key, split=split, ledger=found.ledger, engine=engine)
    return is_of_same_run(found, make(found.pair))
