"""What tells a job that is done: the manifests of its datasets, written with them and compared with the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from tokenloom.corpus.plan import CorpusPlan, PlannedOutput
from tokenloom.corpus.summary import CorpusSummary, DatasetSummary
from tokenloom.errors import TokenloomError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest import (
    DocumentLedger,
    InputRecord,
    Manifest,
    PairFacts,
    SpecialToken,
    TokenizerIdentity,
)
from tokenloom.indexed.manifest_file import read_manifest
from tokenloom.preprocess.rejected import rejected_path


def tokenizer_identity(plan: CorpusPlan) -> TokenizerIdentity:
    """Returns which tokenizer makes the tokens of a job, and what it adds to documents."""
    tokenizer = plan.tokenizer
    added = plan.document_tokens
    bos, eod = (
        None if number is None else SpecialToken(id=number, text=tokenizer.detokenize([number]))
        for number in (added.bos, added.eod)
    )
    return TokenizerIdentity(
        kind=tokenizer.kind,
        sha256=tokenizer.sha256,
        path=tokenizer.path,
        vocab_size=tokenizer.vocab_size,
        bos=bos,
        eod=eod,
    )


def dataset_options(plan: CorpusPlan, *, key: str, split: str | None) -> dict[str, Any]:
    """Returns what decided the bytes of a dataset, for its manifest."""
    return plan.settings.of_datasets() | {"key": key, "split": split}


def input_records(plan: CorpusPlan, output: PlannedOutput) -> tuple[InputRecord, ...]:
    """Returns the input files of an output, each once, in order."""
    files = dict.fromkeys(slice_.file for shard in output.shards for slice_ in shard.slices)
    return tuple(InputRecord(path=file.path, num_bytes=file.num_bytes, version=file.version) for file in files)


def finished_summary(plan: CorpusPlan, *, seconds: float) -> CorpusSummary | None:
    """Returns the summary of a job whose datasets are all there, made of the same inputs in the same way; else None.

    A dataset or manifest that cannot be read counts as not there: it will be written anew.
    """
    if plan.reads_streams:
        return None
    datasets: list[DatasetSummary] = []
    manifests: list[Manifest] = []
    try:
        for output in plan.outputs:
            for split in tuple(plan.settings.shares) or (None,):
                for key in plan.settings.keys:
                    prefix = output.dataset_prefix(key, level=plan.settings.level, split=split)
                    manifest = read_manifest(prefix)
                    if manifest is None or not _is_of(plan, output, manifest, key=key, split=split):
                        return None
                    manifests.append(manifest)
                    datasets.append(summary_of(prefix, key=key, split=split))
                    if (manifest.pair.num_tokens, manifest.pair.num_documents) != (
                        datasets[-1].num_tokens,
                        datasets[-1].num_documents,
                    ):
                        return None
    except (TokenloomError, OSError):
        return None
    return _summary_of_done(plan, datasets, manifests, seconds)


def _is_of(plan: CorpusPlan, output: PlannedOutput, manifest: Manifest, *, key: str, split: str | None) -> bool:
    return (
        manifest.tokenizer.fingerprint == tokenizer_identity(plan).fingerprint
        and manifest.options == dataset_options(plan, key=key, split=split)
        and manifest.inputs == input_records(plan, output)
    )


def summary_of(prefix: str, *, key: str, split: str | None) -> DatasetSummary:
    """Returns what a dataset holds."""
    dataset = IndexedDataset(prefix)
    return DatasetSummary(
        key=key,
        split=split,
        prefix=prefix,
        num_documents=dataset.num_documents,
        num_empty=int(np.count_nonzero(np.diff(dataset.document_indices) == 0)),
        num_sequences=len(dataset),
        num_tokens=dataset.num_tokens,
        num_bytes=dataset.num_tokens * dataset.dtype.itemsize,
    )


def manifest_maker(
    plan: CorpusPlan, output: PlannedOutput, *, key: str, split: str | None, ledger: DocumentLedger, engine: str
) -> Callable[[PairFacts], Manifest]:
    """Returns what makes the manifest of a dataset once its files are known."""

    def make(pair: PairFacts) -> Manifest:
        return Manifest(
            pair=pair,
            tokenizer=tokenizer_identity(plan),
            options=dataset_options(plan, key=key, split=split),
            ledger=ledger,
            inputs=input_records(plan, output),
            engine=engine,
            tokenloom_version=version("tokenloom"),
        )

    return make


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
