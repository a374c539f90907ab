"""What tells a job that is done: the manifests of its datasets, written with them and compared with the plan."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.corpus.plan import CorpusPlan, PlannedDataset, PlannedOutput
from tokenloom.corpus.recording import manifest_maker
from tokenloom.corpus.summary import CorpusSummary, DatasetSummary, dataset_summary
from tokenloom.errors import InputError, TokenloomError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest import Manifest
from tokenloom.indexed.manifest_check import manifest_of
from tokenloom.preprocess.rejected import rejected_path


def finished_summary(plan: CorpusPlan, *, seconds: float) -> CorpusSummary | None:
    """Returns the summary of a job whose datasets are all there, made of the same inputs in the same way; else None.

    A dataset or manifest that cannot be read counts as not there: it will be written anew.

    Raises:
        InputError: more bad records were set aside than are allowed now.
    """
    if plan.reads_streams:
        return None
    datasets: list[DatasetSummary] = []
    manifests: list[Manifest] = []
    try:
        for output in plan.outputs:
            for planned in output.datasets:
                dataset = IndexedDataset(planned.prefix)
                manifest = manifest_of(dataset)
                if manifest is None or not _is_of(plan, output, planned, manifest):
                    return None
                manifests.append(manifest)
                datasets.append(dataset_summary(dataset, key=planned.key, split=planned.split))
    except (TokenloomError, OSError):
        return None
    summary = _summary_of_done(plan, datasets, manifests, seconds)
    num_records = summary.num_documents + summary.num_rejected
    if plan.settings.bad_records.is_exceeded(summary.num_rejected, num_records):
        message = (
            f"expected at most {plan.settings.bad_records} bad records, found {summary.num_rejected} of "
            f"{num_records} when `{datasets[0].prefix}` was made"
        )
        raise InputError(message, hint="the datasets are there, and may be used without them; or correct the input")
    return summary


def _is_of(plan: CorpusPlan, output: PlannedOutput, dataset: PlannedDataset, found: Manifest) -> bool:
    key, split, engine = dataset.key, dataset.split, found.engine or ""
    make = manifest_maker(plan, output.files, key=key, split=split, ledger=found.ledger, engine=engine)
    expected = make(found.pair)
    return (expected.tokenizer.fingerprint, expected.options, expected.inputs) == (
        found.tokenizer.fingerprint,
        found.options,
        found.inputs,
    )


def _summary_of_done(
    plan: CorpusPlan, datasets: Sequence[DatasetSummary], manifests: Sequence[Manifest], seconds: float
) -> CorpusSummary:
    # The datasets of one output were made of the same records, so that one of them tells what was found.
    num_of_output = len(datasets) // len(plan.outputs)
    ledgers = [manifest.ledger for manifest in manifests[::num_of_output]]
    rejected = [
        rejected_path(output.prefix)
        for output, ledger in zip(plan.outputs, ledgers, strict=True)
        if ledger.num_rejected
    ]
    return CorpusSummary(
        datasets=tuple(datasets),
        num_files=len(plan.files),
        num_ignored=len(plan.ignored),
        num_shards=len(plan.shards),
        num_shards_reused=len(plan.shards),
        was_complete=True,
        num_documents=sum(ledger.num_kept + ledger.num_duplicates + ledger.num_elsewhere for ledger in ledgers),
        num_duplicates=sum(ledger.num_duplicates for ledger in ledgers),
        num_doubled=0,
        num_blank_lines=sum(ledger.num_blank for ledger in ledgers),
        num_rejected=sum(ledger.num_rejected for ledger in ledgers),
        rejected_paths=tuple(rejected),
        num_text_bytes=0,
        dtype=plan.dtype.name,
        engine=manifests[0].engine or "unknown",
        engine_reason="as the manifest tells",
        seconds=seconds,
    )
