"""Several pairs into one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.indexed.builder import IndexedDatasetBuilder
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path, prefix_of
from tokenloom.storage.addresses import canonical_path
from tokenloom.storage.resolve import names_in


def prefixes_in(folder: str) -> list[str]:
    """Returns the prefixes of all pairs in a folder, sorted by name; an incomplete pair is an error.

    Raises:
        DatasetNotFoundError: the folder holds no pair, or half of one.
    """
    names = [name for name in names_in(folder) if not name.startswith(".")]
    prefixes = sorted({prefix_of(name) for name in names if name.endswith((".bin", ".idx"))})
    for prefix in prefixes:
        if missing := [name for name in (bin_path(prefix), idx_path(prefix)) if name not in names]:
            message = f"`{folder}` holds half of the pair `{prefix}`: `{missing[0]}` is missing"
            raise DatasetNotFoundError(message, hint="remove the half, or finish writing the pair")
    if not prefixes:
        message = f"`{folder}` holds no .bin/.idx pair"
        raise DatasetNotFoundError(message)
    return [os.path.join(folder, prefix) for prefix in prefixes]


def merge_datasets(
    prefixes: Sequence[str],
    output_prefix: str,
    *,
    multimodal: bool = False,
    progress: Callable[[str], None] | None = None,
) -> IndexedDataset:
    """Writes the documents of all pairs, in order, as one pair, and returns it opened.

    All inputs are opened and checked before the first byte is written. Token bytes are copied by the operating system.

    Args:
        prefixes: of the inputs, in the order wanted.
        output_prefix: of the result; must not be one of the inputs.
        multimodal: whether the pairs hold modes.
        progress: called with each prefix once it is copied.

    Raises:
        ConfigError: nothing to merge, the output is also an input, or the dtypes differ.
        DatasetFormatError: an input is damaged.
    """
    if not prefixes:
        message = "expected at least one dataset to merge, got none"
        raise ConfigError(message)
    chosen = [prefix_of(prefix) for prefix in prefixes]
    target = prefix_of(output_prefix)
    if canonical_path(target) in map(canonical_path, chosen):
        message = f"the output `{target}` is also an input"
        raise ConfigError(message, hint="choose another output prefix")
    first = IndexedDataset(chosen[0], multimodal=multimodal)
    for prefix in chosen[1:]:
        found = IndexedDataset(prefix, multimodal=multimodal).dtype
        if found != first.dtype:
            message = f"`{prefix}` holds {found} tokens, but `{chosen[0]}` holds {first.dtype}"
            raise ConfigError(message, hint="datasets of one dtype only can be merged; tokenise one of them again")
    with IndexedDatasetBuilder(bin_path(target), dtype=first.dtype, multimodal=multimodal) as builder:
        for prefix in chosen:
            builder.add_index(prefix)
            if progress is not None:
                progress(prefix)
        builder.finalize(idx_path(target))
    return IndexedDataset(target, multimodal=multimodal)
