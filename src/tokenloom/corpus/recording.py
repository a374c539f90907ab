"""What the manifests of a job's datasets say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from tokenloom.corpus.plan import CorpusPlan
from tokenloom.indexed.manifest.contents import DocumentLedger, Manifest, PairFacts
from tokenloom.inputs import InputFile
from tokenloom.preprocess.recording import input_records, manifest_of_run


def manifest_maker(
    plan: CorpusPlan,
    files: Iterable[InputFile],
    *,
    key: str,
    split: str | None,
    ledger: DocumentLedger,
    engine: str,
) -> Callable[[PairFacts], Manifest]:
    """Returns what makes the manifest of a dataset once its files are written.

    Args:
        plan: of the job.
        files: that were read for it, in order.
        key, split: of the dataset.
        ledger: of its documents.
        engine: that tokenised.
    """
    added = plan.document_tokens
    return partial(
        manifest_of_run,
        tokenizer=plan.tokenizer,
        options=plan.settings.of_datasets() | {"key": key, "split": split},
        ledger=ledger,
        inputs=input_records(files),
        engine=engine,
        bos=added.bos,
        eod=added.eod,
    )
