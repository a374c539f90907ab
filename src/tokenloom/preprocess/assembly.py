"""The parts of a job's shards into its datasets: whole parts by their names or bytes, or chosen documents of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, StorageError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path, sidecar_path
from tokenloom.indexed.manifests import DocumentLedger, Manifest, PairFacts, manifest_bytes, manifest_of
from tokenloom.indexed.origins import RUNS, OriginFile, Runs, selected_runs, write_runs
from tokenloom.indexed.sidecars import write_document_hashes
from tokenloom.indexed.writing.concatenate import check_inputs, write_pending
from tokenloom.indexed.writing.kept_documents import ConcatenatedPart
from tokenloom.indexed.writing.outputs import (
    MOST_LOCKED,
    PendingDataset,
    is_published,
    is_same_file,
    publish_datasets,
    should_seal,
)
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.records import documents_between
from tokenloom.preprocess.blocks import json_line, rejected_path
from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.part import DonePart, ShardReport, part_hashes, part_left_out, part_pair
from tokenloom.preprocess.plan import JobPlan, PlannedOutput
from tokenloom.preprocess.recipe import Mask, PlannedDataset, Recipe
from tokenloom.preprocess.selection import DocumentHashes
from tokenloom.preprocess.shard import ALLOW_MORE
from tokenloom.preprocess.summary import OutputSummary, dataset_summary, require_own_outputs
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import PendingFile, pending_link
from tokenloom.storage.publishing import OutputLock
from tokenloom.storage.resolve import exists, open_pending


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOrigins:
    """The origins of all documents of an output, duplicates included.

    Attributes:
        files: the input files, as the manifest names them.
        parts: all parts, in order.
        slices: of each part: the number of the file of each slice, and the records of that file before the slice.
    """

    files: tuple[OriginFile, ...]
    parts: Sequence[DonePart]
    slices: Sequence[Sequence[tuple[int, int]]]

    @classmethod
    def of(cls, recipe: Recipe, output: PlannedOutput, parts: Sequence[DonePart]) -> DocumentOrigins:
        """Returns those of an output, from the reports of its parts."""
        recorded = recipe.recorded(output.files)
        units = {file.path: recipe.unit or FORMATS[file.format].unit for file in output.files}
        numbers = {record.path: number for number, record in enumerate(recorded)}
        num_records: dict[int, int] = defaultdict(int)
        slices: list[list[tuple[int, int]]] = []
        for part in parts:
            slices.append([])
            for slice_, num_rows in zip(part.shard.slices, part.report.slice_rows, strict=True):
                number = numbers[slice_.file.path]
                slices[-1].append((number, num_records[number]))
                num_records[number] += num_rows
        files = [
            OriginFile(
                path=record.path,
                num_bytes=record.num_bytes,
                version=record.version or None,
                unit=units[record.path],
                num_records=num_records[number],
            )
            for number, record in enumerate(recorded)
        ]
        return cls(files=tuple(files), parts=parts, slices=slices)

    def runs(self, split: int | None) -> Iterator[Runs]:
        """Yields the origins of the documents that a dataset takes, part by part."""
        for part, slices in zip(self.parts, self.slices, strict=True):
            runs = _runs_of(part, slices)
            mask = part.chosen(split)
            yield runs if mask is None else selected_runs(runs, mask)


def _with_sidecars(
    pair: PairFacts,
    *,
    make: Callable[[PairFacts], Manifest],
    planned: PlannedDataset,
    parts: Sequence[DonePart],
    origins: DocumentOrigins | None,
    has_hashes: bool,
    files: dict[str, PendingFile],
) -> Manifest:
    """Writes the origins and the hashes of a dataset into `files`, and returns the manifest, with their checksums."""
    _discard(files)  # of an attempt before
    prefix, start = planned.prefix, pair.index_start_crc32
    if origins is not None:
        runs = origins.runs(planned.split_number)
        files["origins"], checksum = write_runs(prefix, origins.files, runs, index_start_crc32=start)
        pair = replace(pair, origins=checksum)
    if has_hashes:
        hashes = _hashes_of(parts, planned)
        files["hashes"], checksum = write_document_hashes(prefix, hashes, index_start_crc32=start)
        pair = replace(pair, hashes=checksum)
    return make(pair)


def _discard(files: dict[str, PendingFile]) -> None:
    for file in files.values():
        file.discard()


def _hashes_of(parts: Sequence[DonePart], planned: PlannedDataset) -> Iterator[DocumentHashes]:
    for part in parts:
        hashes, mask = part_hashes(part.prefix, planned.column), part.chosen(planned.split_number)
        yield hashes if mask is None else hashes[mask]


def _runs_of(part: DonePart, slices: Sequence[tuple[int, int]]) -> Runs:
    """Returns the origins of all documents of a part."""
    left_out = part_left_out(part.prefix, part.report)
    parts = [np.empty(0, dtype=RUNS)]
    start = 0
    for (number, num_before), num_rows in zip(slices, part.report.slice_rows, strict=True):
        between = documents_between(left_out, start, start + num_rows)
        runs = np.empty(len(between), dtype=RUNS)
        runs["file"] = number
        runs["first_record"] = between[:, 0] - start + num_before + 1
        runs["num_documents"] = between[:, 1]
        parts.append(runs)
        start += num_rows
    found = np.concatenate(parts)
    if (num_documents := int(found["num_documents"].sum())) != part.report.num_documents:
        message = f"`{part.prefix}`: expected {part.report.num_documents} documents of its records, "
        message += f"found {num_documents} of {start}"
        raise StorageError(message, hint="its input format counts records wrongly; leave the origins out")
    return found


def assemble(
    plan: JobPlan, folder: JobFolder, reports: Sequence[ShardReport], *, overwrite: bool
) -> tuple[list[OutputSummary], bool]:
    """Makes the datasets of a job appear, all or none, and returns what they hold, and whether they were there before.

    What is there is only looked at where the recipe compares bytes, and it is not to be replaced.

    Raises:
        InputError: there are no documents, or too many bad records.
        OutputExistsError: another job's dataset is there, and no `overwrite`.
        StorageError: reading or writing failed; what was there is there again.
    """
    parts = _parts(plan, folder, reports)
    _require_documents(plan, folder, parts)
    by_number = {part.shard.number: part for part in parts}
    ledgers: list[DocumentLedger] = []
    with ExitStack() as stack:
        keys = [idx_path(planned.prefix) for output in plan.outputs for planned in output.datasets]
        # Nobody else's dataset may appear between this look and our own.
        locks = [stack.enter_context(OutputLock(key)) for key in keys[:MOST_LOCKED]]
        may_replace = require_own_outputs(plan, overwrite=overwrite)
        new: list[PendingDataset] = []
        for output in plan.outputs:
            mine = [by_number[shard.number] for shard in output.shards]
            for pending in _output_files(plan, output, mine):
                stack.callback(pending.discard)
                if should_seal(sum(len(each.datasets) for each in plan.outputs)):
                    pending.seal()
                new.append(pending)
            ledgers.append(_ledger(mine, output.datasets[-1].split_number))
        were_there = plan.recipe.compares_bytes and not overwrite and all(map(is_published, new))
        # What an earlier version made without origins is replaced by the same with them.
        were_there = were_there and all(map(_is_same_beside, new))
        if were_there:
            for file in [file for pending in new for file in pending.beside if not exists(file.path)]:
                file.publish()
        else:
            publish_datasets(new, overwrite=may_replace, locks=locks)
    outputs = [
        OutputSummary(
            datasets=tuple(dataset_summary(planned, plan.open(planned)) for planned in output.datasets), ledger=ledger
        )
        for output, ledger in zip(plan.outputs, ledgers, strict=True)
    ]
    return outputs, were_there


def _parts(plan: JobPlan, folder: JobFolder, reports: Sequence[ShardReport]) -> list[DonePart]:
    prefixes = [folder.part_prefix(shard) for shard in plan.shards]
    kept: Sequence[Mask | None] = [None] * len(prefixes)
    splits: Sequence[NDArray[np.int8] | None] = [None] * len(prefixes)
    if plan.recipe.hashes_documents:  # mapped without descriptors, of which there are few
        kept, splits = plan.recipe.select([part_hashes(prefix) for prefix in prefixes])
    return [
        DonePart(shard=shard, report=report, prefix=prefix, kept=mask, splits=dealt)
        for shard, report, prefix, mask, dealt in zip(plan.shards, reports, prefixes, kept, splits, strict=True)
    ]


def _require_documents(plan: JobPlan, folder: JobFolder, parts: Sequence[DonePart]) -> None:
    num_documents = sum(part.report.num_documents for part in parts)
    num_bad = sum(part.report.num_rejected for part in parts)
    num_blank = sum(part.report.num_blank_lines for part in parts)
    budget = plan.settings.bad_records
    name = f"`{plan.files[0].path}`" if len(plan.files) == 1 else f"{len(plan.files)} files"
    first = next((f"; the first is {record}" for record in map(_in_words, _rejected(parts))), "")
    if not num_documents:
        folder.remove()  # there is nothing to go on with
        message = f"{name} holds no {plan.recipe.documents}: {num_blank} blank lines, {num_bad} bad records{first}"
        raise InputError(message, hint=plan.recipe.expected)
    if budget.is_exceeded(num_bad, num_documents + num_bad):
        message = f"{name}: expected at most {budget} bad records, found {num_bad} of {num_documents + num_bad}"
        raise InputError(message + first, hint=f"{ALLOW_MORE}; nothing is done twice")


def _output_files(plan: JobPlan, output: PlannedOutput, parts: Sequence[DonePart]) -> Iterator[PendingDataset]:
    """Yields the datasets of an output, written and without names; bad records go with the first."""
    engines = ", ".join(dict.fromkeys(part.report.engine for part in parts))
    origins = DocumentOrigins.of(plan.recipe, output, parts) if plan.settings.origins else None
    for number, planned in enumerate(output.datasets):
        split = planned.split_number
        chosen = [
            ConcatenatedPart(prefix=part_pair(part.prefix, planned.column), kept_documents=part.chosen(split))
            for part in parts
        ]
        ledger = _ledger(parts, split)
        make = partial(
            plan.recipe.manifest,
            files=output.files,
            key=planned.key,
            split=planned.split,
            ledger=ledger,
            engine=engines,
        )
        files: dict[str, PendingFile] = {}
        make = partial(
            _with_sidecars,
            make=make,
            planned=planned,
            parts=parts,
            origins=origins,
            has_hashes=plan.settings.document_hashes,
            files=files,
        )
        try:
            pending = _pending_dataset(chosen, planned.prefix, make, plan.recipe)
        except BaseException:
            _discard(files)
            raise
        pending.sidecars |= files
        if number == 0:
            pending.beside, pending.replaced = _rejected_files(output, parts), [rejected_path(output.prefix)]
        yield pending


def _ledger(parts: Sequence[DonePart], split: int | None) -> DocumentLedger:
    """Returns what became of all records, as the dataset of a split sees it; it is an error if it does not balance."""
    num_found = sum(part.report.num_documents for part in parts)
    num_kept = sum(part.num_chosen(split) for part in parts)
    num_duplicates = sum(part.num_duplicates for part in parts)
    num_blank = sum(part.report.num_blank_lines for part in parts)
    num_rejected = sum(part.report.num_rejected for part in parts)
    return DocumentLedger(
        num_read=num_found + num_blank + num_rejected,
        num_kept=num_kept,
        num_duplicates=num_duplicates,
        num_elsewhere=num_found - num_kept - num_duplicates,
        num_blank=num_blank,
        num_rejected=num_rejected,
    )


def _pending_dataset(
    parts: Sequence[ConcatenatedPart],
    prefix: str,
    make: Callable[[PairFacts], Manifest],
    recipe: Recipe,
) -> PendingDataset:
    if len(parts) == 1 and parts[0].is_whole and not is_remote(prefix):
        linked = _linked_pair(parts[0].prefix, prefix, make, multimodal=recipe.is_multimodal)
        if linked is not None:
            return linked
    check_inputs([part.prefix for part in parts], multimodal=recipe.is_multimodal)
    return write_pending(parts, prefix, dtype=recipe.dtype, multimodal=recipe.is_multimodal, manifest=make)


def _is_same_beside(pending: PendingDataset) -> bool:
    """Whether the origins and the hashes of a dataset are there already."""
    return all(exists(file.path) and is_same_file(file) for file in pending.sidecars.values())


def _linked_pair(
    source: str, target: str, make: Callable[[PairFacts], Manifest], *, multimodal: bool
) -> PendingDataset | None:
    """Returns a pair by its second name, with its own manifest; None where that cannot be."""
    found = manifest_of(IndexedDataset(source, multimodal=multimodal))
    tokens = None if found is None else pending_link(bin_path(source), bin_path(target))
    index = None if tokens is None else pending_link(idx_path(source), idx_path(target))
    if found is None or tokens is None or index is None:
        return None
    linked = PendingDataset(prefix=target, tokens=tokens, index=index, manifest=manifest_bytes(make(found.pair)))
    if found.pair.roles is None:
        return linked
    roles = pending_link(sidecar_path(source, "roles"), sidecar_path(target, "roles"))
    if roles is None:
        return None
    linked.sidecars["roles"] = roles
    return linked


def _rejected_files(output: PlannedOutput, parts: Sequence[DonePart]) -> tuple[PendingFile, ...]:
    """Returns the file of the bad records of an output, counted from the beginning of their files, if there are any."""
    if not any(part.report.num_rejected for part in parts):
        return ()
    file = open_pending(rejected_path(output.prefix))
    for record in _rejected(parts):
        file.write(json_line(record))
    return (file,)


def _rejected(parts: Sequence[DonePart]) -> Iterator[dict[str, Any]]:
    """Yields the bad records of some shards, in order."""
    num_before: dict[str, int] = defaultdict(int)  # records of a file that were in earlier slices
    for part in parts:
        if part.report.num_rejected:
            with open(rejected_path(part.prefix), "rb") as stream:
                for line in stream:
                    record = json.loads(line)
                    if "line" in record:
                        record["line"] += num_before[record["file"]]
                    yield record
        for slice_, num_rows in zip(part.shard.slices, part.report.slice_rows, strict=True):
            num_before[slice_.file.path] += num_rows


def _in_words(record: dict[str, Any]) -> str:
    place = next((f" {unit} {record[unit]}" for unit in ("line", "row") if unit in record), "")
    return f"`{record['file']}`{place}: {record['reason']}"
