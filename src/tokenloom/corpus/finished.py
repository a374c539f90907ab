"""What tells a job that is done: the manifests of its datasets, written with them and compared with the plan."""

from __future__ import annotations

from tokenloom.corpus.plan import CorpusPlan, PlannedDataset, PlannedOutput
from tokenloom.corpus.recording import manifest_maker
from tokenloom.corpus.summary import CorpusSummary, DatasetSummary, OutputSummary, corpus_summary, dataset_summary
from tokenloom.errors import InputError, TokenloomError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest import Manifest
from tokenloom.indexed.manifest_check import manifest_of


def finished_summary(plan: CorpusPlan, *, seconds: float) -> CorpusSummary | None:
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


def _finished_output(plan: CorpusPlan, output: PlannedOutput) -> tuple[OutputSummary, str] | None:
    """Returns what an output holds, and what tokenised it; None if it is not there, or not as planned."""
    datasets: list[DatasetSummary] = []
    manifests: list[Manifest] = []
    for planned in output.datasets:
        dataset = IndexedDataset(planned.prefix)
        manifest = manifest_of(dataset)
        if manifest is None or not _is_of(plan, output, planned, manifest):
            return None
        datasets.append(dataset_summary(planned, dataset))
        manifests.append(manifest)
    return OutputSummary(datasets=tuple(datasets), ledger=manifests[0].ledger), manifests[0].engine or "unknown"


def _is_of(plan: CorpusPlan, output: PlannedOutput, dataset: PlannedDataset, found: Manifest) -> bool:
    key, split, engine = dataset.key, dataset.split, found.engine or ""
    make = manifest_maker(plan, output.files, key=key, split=split, ledger=found.ledger, engine=engine)
    expected = make(found.pair)
    return (expected.tokenizer.fingerprint, expected.options, expected.inputs) == (
        found.tokenizer.fingerprint,
        found.options,
        found.inputs,
    )
