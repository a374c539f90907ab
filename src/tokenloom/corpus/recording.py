"""What the manifests of a job's datasets say of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tokenloom.corpus.recipe import Recipe
from tokenloom.indexed.manifest.contents import DocumentLedger, Manifest, PairFacts
from tokenloom.inputs import InputFile
from tokenloom.preprocess.recording import manifest_of_run


def manifest_maker(
    recipe: Recipe,
    files: Sequence[InputFile],
    *,
    key: str,
    split: str | None,
    ledger: DocumentLedger,
    engine: str,
) -> Callable[[PairFacts], Manifest]:
    """Returns what makes the manifest of a dataset once its files are written.

    Args:
        recipe: recipe of the job.
        files: files that were read for it, in order.
        key, split: key and split of the dataset.
        ledger: ledger of its documents.
        engine: name of the engine that tokenized.
    """
    added = recipe.document_tokens
    return partial(
        manifest_of_run,
        tokenizer=recipe.tokenizer,
        options=recipe.options(key, split),
        ledger=ledger,
        inputs=recipe.recorded(files),
        engine=engine or None,
        bos=added.bos,
        eod=added.eod,
    )
