"""The parts of a job's shards into its datasets: whole parts by their bytes, or chosen documents of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, StorageError
from tokenloom.indexed.columns import ColumnWriter, WrittenColumn, written_column
from tokenloom.indexed.layout import idx_path
from tokenloom.indexed.manifests import DocumentLedger, Manifest, PairFacts
from tokenloom.indexed.origins import NAME, RUNS, OriginFile, Runs, selected_runs, write_origins
from tokenloom.indexed.writing.concatenate import check_inputs, write_pending
from tokenloom.indexed.writing.kept_documents import ConcatenatedPart
from tokenloom.indexed.writing.outputs import MOST_LOCKED, PendingDataset, publish_datasets, should_seal
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.records import documents_between, none_left_out
from tokenloom.preprocess.blocks import json_line, rejected_path
from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.part import ALLOW_MORE, HASHES, RECORDS, ShardReport, part_array, part_pair
from tokenloom.preprocess.plan import JobPlan, PlannedOutput, PlannedShard
from tokenloom.preprocess.recipe import Mask, PlannedDataset
from tokenloom.preprocess.summary import require_own_outputs
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.publishing import OutputLock
from tokenloom.storage.resolve import open_pending


@dataclass(frozen=True, slots=True, kw_only=True)
class DonePart:
    """A shard that is done.

    Attributes:
        shard: shard of the job.
        report: what came out.
        prefix: prefix of its files.
        kept: bool[num_documents], the documents that are no duplicates; None for all.
        splits: int8[num_documents], the number of the split of each; None without splits.
    """

    shard: PlannedShard
    report: ShardReport
    prefix: str
    kept: Mask | None
    splits: NDArray[np.int8] | None

    def num_chosen(self, split: int | None) -> int:
        """Returns how many documents a dataset takes."""
        mask = self.chosen(split)
        return self.report.num_documents if mask is None else int(np.count_nonzero(mask))

    def chosen(self, split: int | None) -> Mask | None:
        """Returns the documents that a dataset takes: bool[num_documents], None for all."""
        if split is None or self.splits is None:
            return self.kept
        mine: Mask = self.splits == split
        return mine if self.kept is None else mine & self.kept


def assemble(plan: JobPlan, folder: JobFolder, reports: Sequence[ShardReport], *, overwrite: bool) -> None:
    """Makes the datasets of a job appear, all or none."""
    parts = _parts(plan, folder, reports)
    _require_documents(plan, folder, parts)
    by_number = {part.shard.number: part for part in parts}
    planned = [dataset for output in plan.outputs for dataset in output.datasets]
    with ExitStack() as stack:
        # Nobody else's dataset may appear between this look and our own.
        locks = [stack.enter_context(OutputLock(idx_path(each.prefix))) for each in planned[:MOST_LOCKED]]
        may_replace = require_own_outputs(plan, overwrite=overwrite)
        new: list[PendingDataset] = []
        for output in plan.outputs:
            for pending in _output_files(plan, output, [by_number[shard.number] for shard in output.shards]):
                stack.callback(pending.discard)
                if should_seal(len(planned)):
                    pending.seal()
                new.append(pending)
        publish_datasets(new, overwrite=may_replace, locks=locks)


def _parts(plan: JobPlan, folder: JobFolder, reports: Sequence[ShardReport]) -> list[DonePart]:
    prefixes = [folder.part_prefix(shard) for shard in plan.shards]
    kept: Sequence[Mask | None] = [None] * len(prefixes)
    splits: Sequence[NDArray[np.int8] | None] = [None] * len(prefixes)
    if plan.recipe.hashes_documents:  # mapped without descriptors, of which there are few
        kept, splits = plan.recipe.select([part_array(prefix, HASHES, np.uint64) for prefix in prefixes])
    return [
        DonePart(shard=shard, report=report, prefix=prefix, kept=mask, splits=dealt)
        for shard, report, prefix, mask, dealt in zip(plan.shards, reports, prefixes, kept, splits, strict=True)
    ]


def _require_documents(plan: JobPlan, folder: JobFolder, parts: Sequence[DonePart]) -> None:
    ledger = _ledger(parts, None)
    num_documents, num_bad = ledger.num_kept + ledger.num_duplicates, ledger.num_rejected
    budget = plan.settings.bad_records
    name = f"`{plan.files[0].path}`" if len(plan.files) == 1 else f"{len(plan.files)} files"
    first = next((f"; the first is {record}" for record in map(_in_words, _rejected(parts))), "")
    if not num_documents:
        folder.remove()  # there is nothing to go on with
        found = f"{ledger.num_blank} blank lines, {num_bad} bad records{first}"
        message = f"{name} holds no {plan.recipe.documents}: {found}"
        raise InputError(message, hint=plan.recipe.expected)
    if budget.is_exceeded(num_bad, num_documents + num_bad):
        message = f"{name}: expected at most {budget} bad records, found {num_bad} of {num_documents + num_bad}"
        raise InputError(message + first, hint=f"{ALLOW_MORE}; nothing is done twice")


def _output_files(plan: JobPlan, output: PlannedOutput, parts: Sequence[DonePart]) -> Iterator[PendingDataset]:
    """Yields the datasets of an output, written and without names; bad records go with the first."""
    origins = _origins(plan, output, parts) if plan.settings.origins else None
    for number, planned in enumerate(output.datasets):
        columns: dict[str, WrittenColumn] = {}
        try:
            pending = _pending_dataset(plan, output, planned, parts, origins, columns)
        except BaseException:
            for file, _ in columns.values():
                file.discard()
            raise
        if number == 0:
            pending.beside, pending.replaced = _rejected_files(output, parts), [rejected_path(output.prefix)]
        yield pending


Origins = tuple[Sequence[OriginFile], Sequence[Sequence[tuple[int, int]]]]
"""The input files, as the manifest names them; of each slice of each part the number of its file, and the records of
that before it."""


def _pending_dataset(
    plan: JobPlan,
    output: PlannedOutput,
    planned: PlannedDataset,
    parts: Sequence[DonePart],
    origins: Origins | None,
    columns: dict[str, WrittenColumn],
) -> PendingDataset:
    """Returns a dataset; puts its origins and hashes into `columns` as they are written."""
    chosen = [part.chosen(planned.split_number) for part in parts]
    if origins is not None:
        every = zip(map(_runs_of, parts, origins[1]), chosen, strict=True)
        runs = (each if mask is None else selected_runs(each, mask) for each, mask in every)
        columns[NAME] = write_origins(planned.prefix, origins[0], runs)
    if plan.settings.document_hashes:
        arrays = (part_array(part.prefix, f"{HASHES}_{planned.column}", np.uint64) for part in parts)
        hashes = (each if mask is None else each[mask] for each, mask in zip(arrays, chosen, strict=True))
        writer = ColumnWriter(planned.prefix, HASHES, kind="document", dtype=np.uint64, made_by="tokenloom")
        columns[HASHES] = written_column(writer, hashes)

    def manifest(pair: PairFacts) -> Manifest:
        return plan.recipe.manifest(
            pair,
            files=output.files,
            key=planned.key,
            split=planned.split,
            ledger=_ledger(parts, planned.split_number),
            engine=", ".join(dict.fromkeys(part.report.engine for part in parts)),
        )

    pairs = [
        ConcatenatedPart(prefix=part_pair(part.prefix, planned.column), kept_documents=mask)
        for part, mask in zip(parts, chosen, strict=True)
    ]
    recipe = plan.recipe
    check_inputs([pair.prefix for pair in pairs], multimodal=recipe.is_multimodal)
    return write_pending(
        pairs, planned.prefix, dtype=recipe.dtype, multimodal=recipe.is_multimodal, manifest=manifest, columns=columns
    )


def _ledger(parts: Sequence[DonePart], split: int | None) -> DocumentLedger:
    """Returns what became of all records, as the dataset of a split sees it; it is an error if it does not balance."""
    num_found = sum(part.report.num_documents for part in parts)
    num_kept = sum(part.num_chosen(split) for part in parts)
    num_duplicates = sum(part.report.num_documents - part.num_chosen(None) for part in parts)
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


def _origins(plan: JobPlan, output: PlannedOutput, parts: Sequence[DonePart]) -> Origins:
    """Returns the origins of all documents of an output, from the reports of its parts."""
    recorded = plan.recipe.recorded(output.files)
    numbers = {record.path: number for number, record in enumerate(recorded)}
    units = {file.path: plan.recipe.unit or FORMATS[file.format].unit for file in output.files}
    num_records = [0] * len(recorded)
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
            num_records=num,
        )
        for record, num in zip(recorded, num_records, strict=True)
    ]
    return files, slices


def _runs_of(part: DonePart, slices: Sequence[tuple[int, int]]) -> Runs:
    """Returns the origins of all documents of a part."""
    left_out = part_array(part.prefix, RECORDS, np.int64) if RECORDS in part.report.arrays else none_left_out()
    found = [np.empty(0, dtype=RUNS)]
    start = 0
    for (number, num_before), num_rows in zip(slices, part.report.slice_rows, strict=True):
        between = documents_between(left_out, start, start + num_rows)
        runs = np.empty(len(between), dtype=RUNS)
        runs["file"] = number
        runs["first_record"] = between[:, 0] - start + num_before + 1
        runs["num_documents"] = between[:, 1]
        found.append(runs)
        start += num_rows
    joined = np.concatenate(found)
    if (num_documents := int(joined["num_documents"].sum())) != part.report.num_documents:
        message = f"`{part.prefix}`: expected {part.report.num_documents} documents of its records, "
        message += f"found {num_documents} of {start}"
        raise StorageError(message, hint="its input format counts records wrongly; leave the origins out")
    return joined


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
