"""Several datasets into one pair, or into pairs of a wanted size."""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import overload

from tokenloom.errors import ConfigError, StorageError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path, prefix_of
from tokenloom.indexed.manifest.combining import combined_manifest
from tokenloom.indexed.manifest.contents import CopiedTokens, Manifest, PairFacts
from tokenloom.indexed.opening import inputs_stay
from tokenloom.indexed.writing.checked_inputs import check_inputs, check_output
from tokenloom.indexed.writing.concatenate import (
    is_there,
    tell_nothing_to_do,
    write_concatenated,
    write_pending,
)
from tokenloom.indexed.writing.kept_documents import ConcatenatedPart
from tokenloom.indexed.writing.outputs import MOST_LOCKED, PendingDataset, publish_datasets, should_seal
from tokenloom.progress import NOTHING_WRITTEN, also_told, if_stopped, task
from tokenloom.setting_types import checked_output_prefix, checked_paths
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.publishing import OutputLock, make_folder_of
from tokenloom.storage.resolve import is_missing, names_in

_NUM_DIGITS = 5


_EXAMPLE = 'such as ["books", "web"]'


@overload
def merge_datasets(
    prefixes: Sequence[str | os.PathLike[str]],
    output_prefix: str | os.PathLike[str],
    *,
    multimodal: bool = False,
    part_bytes: None = None,
    progress: Callable[[str], None] | None = None,
    advance: Callable[[int], None] | None = None,
    verify: bool = False,
    durable: bool = True,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
) -> IndexedDataset: ...


@overload
def merge_datasets(
    prefixes: Sequence[str | os.PathLike[str]],
    output_prefix: str | os.PathLike[str],
    *,
    multimodal: bool = False,
    part_bytes: int,
    progress: Callable[[str], None] | None = None,
    advance: Callable[[int], None] | None = None,
    verify: bool = False,
    durable: bool = True,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
) -> list[IndexedDataset]: ...


def merge_datasets(
    prefixes: Sequence[str | os.PathLike[str]],
    output_prefix: str | os.PathLike[str],
    *,
    multimodal: bool = False,
    part_bytes: int | None = None,
    progress: Callable[[str], None] | None = None,
    advance: Callable[[int], None] | None = None,
    verify: bool = False,
    durable: bool = True,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
) -> IndexedDataset | list[IndexedDataset]:
    """Writes the documents of all datasets, in order, as one pair, and returns it opened.

    All inputs are opened and checked before the first byte is written. Token bytes are copied by the operating system,
    rows pass in blocks. What lies beside the inputs is joined too: roles, hashes of documents and manifests if all have
    them, origins if any has.

    With `part_bytes`, writes pairs `OUTPUT_00000`, `OUTPUT_00001`, … of at most so many bytes of tokens and returns all
    of them. They are cut between documents; one that is larger by itself is alone. All appear together in the end.

    An output that is there already is compared with the inputs; where it holds them, there is nothing to do.

    Args:
        prefixes: prefixes of the inputs, in the order wanted.
        output_prefix: prefix of the result; must not be one of the inputs.
        multimodal: whether the datasets hold modes.
        part_bytes: most bytes of tokens in each pair; None writes one pair.
        progress: called with each prefix once it is copied; with `part_bytes`, once per pair that it goes to.
        advance: called with the bytes of tokens copied since the last call.
        verify: compare the tokens of the inputs with their manifests first, then read them back from the disk and
            compare them with those of the inputs. Without, the manifest of the result says that they were not.
        durable: wait until the result would survive a loss of power; without, as `cp` does, it is faster.
        overwrite: replace outputs that are there and hold something else; they stay whole until the new ones are.
        notice: called with a sentence for each output that is there already.

    Raises:
        ConfigError: nothing to merge, the output is also an input, the dtypes or, as manifests tell, the tokenizers
            differ, only some have roles, or pairs of an earlier merge would stay among the new ones.
        OutputExistsError: there is something else under the output prefix, and no `overwrite`.
        OutputBusyError: another process writes the same output.
        DatasetFormatError: an input is damaged.
        StorageError: reading or writing fails; everything is as it was.
    """
    chosen = list(map(prefix_of, checked_paths("prefixes", prefixes, example=_EXAMPLE)))
    output_prefix = checked_output_prefix("output_prefix", output_prefix)
    with inputs_stay(chosen):
        if part_bytes is None:
            return write_concatenated(
                [ConcatenatedPart(prefix=prefix) for prefix in chosen],
                output_prefix,
                multimodal=multimodal,
                progress=progress,
                advance=advance,
                verify=verify,
                durable=durable,
                overwrite=overwrite,
                notice=notice,
                manifest=_manifest(chosen, multimodal=multimodal, verify=verify, whole=True) if chosen else None,
            )
        if part_bytes < 1:
            message = f"expected pairs of at least one byte, got part_bytes={part_bytes!r}"
            raise ConfigError(message)
        check_output(output_prefix, chosen)
        dtype = check_inputs(chosen, multimodal=multimodal, tokens=verify)
        pairs = list(_cut(chosen, part_bytes))
        outputs = [f"{prefix_of(output_prefix)}_{number:0{_NUM_DIGITS}}" for number in range(len(pairs))]
        for output in outputs:
            check_output(output, chosen)
        _check_no_others(prefix_of(output_prefix), outputs)
        combined_manifest(chosen, multimodal=multimodal)  # one tokenizer for all, before the first pair is written
        make_folder_of(outputs[0])
        with ExitStack() as stack:
            stack.enter_context(if_stopped(lambda: NOTHING_WRITTEN))
            total = sum(IndexedDataset(prefix).extents.num_held_bytes for prefix in chosen)
            merged = stack.enter_context(task("merge", unit="bytes", total=total))
            locks = [stack.enter_context(OutputLock(idx_path(output))) for output in outputs[:MOST_LOCKED]]
            new: list[PendingDataset] = []
            for parts, output in zip(pairs, outputs, strict=True):
                if not overwrite and is_there(parts, output, dtype=dtype, multimodal=multimodal):
                    tell_nothing_to_do(notice, output)
                    continue
                pending = write_pending(
                    parts,
                    output,
                    dtype=dtype,
                    multimodal=multimodal,
                    progress=progress,
                    advance=also_told(merged, advance),
                    verify=verify,
                    durable=durable,
                    manifest=_manifest(
                        [part.prefix for part in parts],
                        multimodal=multimodal,
                        verify=verify,
                        whole=all(part.is_whole for part in parts),
                    ),
                )
                stack.callback(pending.discard)
                if should_seal(len(outputs)):
                    pending.seal(durable=durable)
                new.append(pending)
            publish_datasets(new, overwrite=overwrite, durable=durable, locks=locks)
        return [IndexedDataset(output, multimodal=multimodal) for output in outputs]


def _manifest(
    prefixes: Sequence[str], *, multimodal: bool, verify: bool, whole: bool
) -> Callable[[PairFacts], Manifest] | None:
    """Returns what makes the manifest of a merged pair; with `verify`, their tokens were compared."""
    copied: CopiedTokens = "compared" if verify else "inherited" if whole else "unverified"
    return combined_manifest(prefixes, multimodal=multimodal, copied_tokens=copied)


def _cut(prefixes: Sequence[str], part_bytes: int) -> Iterator[list[ConcatenatedPart]]:
    """Yields what each pair is made of: as many whole documents as fit, at least one; O(log documents) per cut."""
    parts: list[ConcatenatedPart] = []
    room = part_bytes
    for prefix in prefixes:
        dataset = IndexedDataset(prefix)
        first = 0
        while first < dataset.num_documents:
            last = _last_that_fits(dataset, first, room)
            if last <= first and parts:
                yield parts
                parts, room = [], part_bytes
                continue
            last = max(last, first + 1)
            parts.append(ConcatenatedPart(prefix=prefix, documents=range(first, last)))
            room -= _bytes_before(dataset, last) - _bytes_before(dataset, first)
            first = last
    if parts:
        yield parts
    elif not any(IndexedDataset(prefix).num_documents for prefix in prefixes):
        yield [ConcatenatedPart(prefix=prefixes[0])]


def _last_that_fits(dataset: IndexedDataset, first: int, room: int) -> int:
    """Returns one past the last document that ends within so many bytes from the start of another."""
    most = _bytes_before(dataset, first) + room
    documents = range(dataset.num_documents + 1)
    return bisect.bisect_right(documents, most, lo=first, key=lambda document: _bytes_before(dataset, document)) - 1


def _bytes_before(dataset: IndexedDataset, document: int) -> int:
    """Returns the bytes of all documents before one."""
    row = int(dataset.document_indices[document])
    return dataset.count_tokens(range(row)) * dataset.dtype.itemsize


def _check_no_others(output_prefix: str, outputs: Sequence[str]) -> None:
    """Refuses to write among the pairs of an earlier merge that had more of them."""
    folder, name = output_prefix.rpartition("/")[::2] if is_remote(output_prefix) else os.path.split(output_prefix)
    try:
        names = names_in(folder or ".")
    except StorageError as error:
        if is_missing(error):
            return  # writing will say so
        raise
    numbered = re.compile(rf"{re.escape(name)}_\d{{{_NUM_DIGITS},}}\.(bin|idx)")
    ours = {os.path.basename(output) for output in outputs}
    others = sorted({prefix_of(each) for each in names if numbered.fullmatch(each)} - ours)
    if others:
        message = f"`{bin_path(os.path.join(folder, others[0]))}` would stay among the {len(outputs)} new pairs"
        raise ConfigError(message, hint="it is left from an earlier merge; remove it, or choose another output prefix")
