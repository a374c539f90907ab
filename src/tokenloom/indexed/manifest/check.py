"""Whether a manifest is that of the pair beside it, at a glance; `audit` looks at every byte."""

from __future__ import annotations

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest.contents import Manifest, index_start_crc32
from tokenloom.indexed.manifest.file import ManifestHead, manifest_path, read_manifest


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
