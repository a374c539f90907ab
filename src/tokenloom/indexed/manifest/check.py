"""The manifests of opened pairs: whether each is that of its pair, at a glance, and what many say as one."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.manifest.contents import (
    CopiedTokens,
    Manifest,
    PairFacts,
    check_one_tokenizer,
    combine_manifests,
    index_start_crc32,
)
from tokenloom.indexed.manifest.file import ManifestHead, manifest_path, read_manifest

_LOGGER = logging.getLogger(__name__)


def manifest_head_of(pair: IndexedDataset) -> ManifestHead | None:
    """Returns the head of the manifest of a pair, None if there is none; costs nothing when it is asked for again.

    Raises:
        DatasetFormatError: the manifest is damaged, or belongs to other data.
    """
    if (head := pair.manifest_head) is not None:
        _check_start(pair, head.index_start_crc32)
    return head


def manifest_of(pair: IndexedDataset) -> Manifest | None:
    """Returns the manifest of a pair, None if there is none.

    Raises:
        DatasetFormatError: the manifest is damaged, or belongs to other data.
    """
    if (manifest := read_manifest(pair.path_prefix, settings=pair.object_storage)) is not None:
        _check_start(pair, manifest.pair.index_start_crc32)
    return manifest


def _check_start(pair: IndexedDataset, expected: int) -> None:
    """Compares the start of the index, which is in memory: counts, and the lengths of the first documents.

    Writers that know of manifests never leave one beside other data; other writers are found out here.
    """
    if index_start_crc32(pair.index.header, pair.index.arrays.lengths) != expected:
        message = f"`{manifest_path(pair.path_prefix)}` was written for another pair than the one that is there"
        raise DatasetFormatError(message, hint="if the data were replaced on purpose, remove it; else write them again")


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

        def combine(pair: PairFacts) -> Manifest:
            return combine_manifests(chosen, pair=dataclasses.replace(pair, copied_tokens=copied_tokens))

        return combine
    if manifests:
        lacking = next(prefix for prefix in found if prefix not in manifests)
        _LOGGER.warning("the result has no manifest, because `%s` has none", lacking)
    return None
