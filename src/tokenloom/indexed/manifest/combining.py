"""The manifest of many datasets as one: what theirs say together, if all of them have one."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from functools import partial

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.manifest.contents import (
    CopiedTokens,
    Manifest,
    PairFacts,
    check_one_tokenizer,
    combine_manifests,
)

_LOGGER = logging.getLogger(__name__)


def combined_manifest(
    prefixes: Sequence[str], *, multimodal: bool, copied_tokens: CopiedTokens = "inherited"
) -> Callable[[PairFacts], Manifest] | None:
    """Returns what makes the manifest of datasets that become one, or of some of their documents.

    None if no dataset has a manifest, or only some do; the latter is logged.

    Args:
        prefixes: prefixes of the datasets, in order; one may be there several times.
        multimodal: whether they hold modes.
        copied_tokens: what is known of their tokens, for the manifest; see there. What one of theirs says counts, too.

    Raises:
        ConfigError: they were made by different tokenizers, as far as manifests tell.
        DatasetFormatError: a manifest is damaged, or belongs to other data.
    """
    datasets = (IndexedDataset(prefix, multimodal=multimodal) for prefix in dict.fromkeys(prefixes))
    found = {dataset.path_prefix: manifest_of(dataset) for dataset in datasets}
    manifests = {prefix: manifest for prefix, manifest in found.items() if manifest is not None}
    check_one_tokenizer(manifests)
    if len(manifests) == len(found):
        chosen = [manifests[prefix_of(prefix)] for prefix in prefixes]
        if any(each.pair.copied_tokens == "unverified" for each in chosen):
            copied_tokens = "unverified"
        return partial(_combine, chosen, copied_tokens)
    if manifests:
        lacking = next(prefix for prefix in found if prefix not in manifests)
        _LOGGER.warning("the result has no manifest, because `%s` has none", lacking)
    return None


def _combine(manifests: Sequence[Manifest], copied_tokens: CopiedTokens, pair: PairFacts) -> Manifest:
    return combine_manifests(manifests, pair=dataclasses.replace(pair, copied_tokens=copied_tokens))
