"""Whether a manifest is that of the pair beside it: at a glance for every reader, and completely for `verify`."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.indexed.manifest import Manifest, PairFacts, index_start_crc32
from tokenloom.indexed.manifest_file import ManifestHead, manifest_path, read_manifest


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


def fact_problems(prefix: str, expected: PairFacts, found: PairFacts) -> Iterator[str]:
    """Yields one sentence for each difference between what a manifest says of a pair and what was read.

    Args:
        prefix: of the pair.
        expected: by the manifest.
        found: in the files.
    """
    path = manifest_path(prefix)
    for name in ("dtype", "num_documents", "num_sequences", "num_tokens", "largest_token"):
        if (wanted := getattr(expected, name)) != (value := getattr(found, name)):
            yield f"`{path}`: expected {name} to be {value!r}, as in the pair, found {wanted!r}"
    for file, wanted, value in (
        (bin_path(prefix), expected.tokens, found.tokens),
        (idx_path(prefix), expected.index, found.index),
    ):
        if wanted != value:
            yield (
                f"`{file}`: expected {wanted.num_bytes} bytes with CRC-32 {wanted.crc32:08x}, as `{path}` says, "
                f"found {value.num_bytes} with {value.crc32:08x}"
            )
