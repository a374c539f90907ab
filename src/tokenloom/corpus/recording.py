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
        recipe: of the job.
        files: that were read for it, in order.
        key, split: of the dataset.
        ledger: of its documents.
        engine: that tokenised.
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
