"""The parts of a job's shards into its datasets: whole parts by their names or bytes, or chosen documents of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.corpus.folder import JobFolder
from tokenloom.corpus.plan import CorpusPlan, PlannedOutput, PlannedShard
from tokenloom.corpus.recording import manifest_maker
from tokenloom.corpus.report import ShardReport
from tokenloom.corpus.shard import ALLOW_MORE, part_hashes, part_pair
from tokenloom.corpus.summary import DatasetSummary, OutputSummary, dataset_summary
from tokenloom.errors import InputError, StorageError
from tokenloom.indexed.concatenate import write_concatenated
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.indexed.manifest import DocumentLedger, Manifest, PairFacts
from tokenloom.indexed.manifest_check import manifest_of
from tokenloom.indexed.manifest_file import remove_pair, write_manifest
from tokenloom.indexed.roles import RolesWriter
from tokenloom.indexed.selection import ConcatenatedPart
from tokenloom.preprocess.rejected import json_line, rejected_path
from tokenloom.preprocess.selection import first_occurrences, split_of
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import publish_link
from tokenloom.storage.resolve import open_pending, remove

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class DonePart:
    """A shard that is done.

    Attributes:
        shard: of the job.
        report: of what came out.
        prefix: of its files.
        kept: bool[num_documents], the documents that are no duplicates; None for all.
        splits: int8[num_documents], the number of the split of each; None without splits.
    """

    shard: PlannedShard
    report: ShardReport
    prefix: str
    kept: Mask | None
    splits: NDArray[np.int8] | None

    @property
    def num_duplicates(self) -> int:
        """Documents that are left out."""
        return 0 if self.kept is None else int(np.count_nonzero(~self.kept))

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


def assemble(plan: CorpusPlan, folder: JobFolder, reports: Sequence[ShardReport]) -> list[OutputSummary]:
    """Makes the datasets of a job appear, all or none, and returns what they hold.

    Args:
        plan: of the job.
        folder: with the parts.
        reports: of all shards, in order.

    Raises:
        InputError: there are no documents, or too many bad records.
        StorageError: reading or writing failed.
    """
    parts = _parts(plan, folder, reports)
    _require_documents(plan, folder, parts)
    by_number = {part.shard.number: part for part in parts}
    assembled: list[OutputSummary] = []
    written: list[str] = []
    try:
        for output in plan.outputs:
            mine = [by_number[shard.number] for shard in output.shards]
            assembled.append(_assemble_output(plan, output, mine, written))
    except BaseException:
        for prefix in written:
            remove_pair(prefix)
        for output in plan.outputs[: len(assembled) + 1]:
            with suppress(StorageError):
                remove(rejected_path(output.prefix))
        raise
    return assembled


def _parts(plan: CorpusPlan, folder: JobFolder, reports: Sequence[ShardReport]) -> list[DonePart]:
    prefixes = [folder.part_prefix(shard) for shard in plan.shards]
    kept: Sequence[Mask | None] = [None] * len(prefixes)
    splits: Sequence[NDArray[np.int8] | None] = kept  # type: ignore[assignment]
    if plan.settings.hashes_documents:
        hashes = [part_hashes(prefix) for prefix in prefixes]  # mapped without descriptors, of which there are few
        if plan.settings.drop_duplicates:
            kept = first_occurrences(hashes)
        if plan.settings.shares:
            shares = tuple(plan.settings.shares.values())
            splits = [split_of(each, seed=plan.settings.split_seed, shares=shares) for each in hashes]
    return [
        DonePart(shard=shard, report=report, prefix=prefix, kept=mask, splits=dealt)
        for shard, report, prefix, mask, dealt in zip(plan.shards, reports, prefixes, kept, splits, strict=True)
    ]


def _require_documents(plan: CorpusPlan, folder: JobFolder, parts: Sequence[DonePart]) -> None:
    num_documents = sum(part.report.num_documents for part in parts)
    num_bad = sum(part.report.num_rejected for part in parts)
    num_blank = sum(part.report.num_blank_lines for part in parts)
    budget = plan.settings.bad_records
    name = f"`{plan.files[0].path}`" if len(plan.files) == 1 else f"{len(plan.files)} files"
    first = next((f"; the first is {record}" for record in map(_in_words, _rejected(parts))), "")
    if not num_documents:
        folder.remove()  # there is nothing to go on with
        message = f"{name} holds no documents: {num_blank} blank lines, {num_bad} bad records{first}"
        raise InputError(message, hint="expected one JSON object per line, or another format with its own suffix")
    if budget.is_exceeded(num_bad, num_documents + num_bad):
        message = f"{name}: expected at most {budget} bad records, found {num_bad} of {num_documents + num_bad}"
        raise InputError(message + first, hint=f"{ALLOW_MORE}; nothing is done twice")


def _assemble_output(
    plan: CorpusPlan, output: PlannedOutput, parts: Sequence[DonePart], written: list[str]
) -> OutputSummary:
    _write_rejected(output, parts)  # first: where all datasets are, the job is done
    engines = ", ".join(dict.fromkeys(part.report.engine for part in parts))
    datasets: list[DatasetSummary] = []
    for planned in output.datasets:
        written.append(planned.prefix)
        key, split, number = planned.key, planned.split, planned.split_number
        chosen = [
            ConcatenatedPart(prefix=part_pair(part.prefix, planned.column), kept_documents=part.chosen(number))
            for part in parts
        ]
        ledger = _ledger(parts, number)
        make = manifest_maker(plan, output.files, key=key, split=split, ledger=ledger, engine=engines)
        datasets.append(dataset_summary(planned, _write_dataset(chosen, planned.prefix, make)))
    return OutputSummary(datasets=tuple(datasets), ledger=ledger)


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


def _write_dataset(
    parts: Sequence[ConcatenatedPart], prefix: str, make: Callable[[PairFacts], Manifest]
) -> IndexedDataset:
    if len(parts) == 1 and parts[0].is_whole and not is_remote(prefix) and _link_pair(parts[0].prefix, prefix, make):
        return IndexedDataset(prefix)
    return write_concatenated(parts, prefix, manifest=make)


def _link_pair(source: str, target: str, make: Callable[[PairFacts], Manifest]) -> bool:
    """Gives a pair its final name, with its own manifest and the index last; False where that cannot be."""
    found = manifest_of(IndexedDataset(source))
    if found is None:
        return False
    remove(idx_path(target))
    RolesWriter(target, tokenizer_sha256=None).remove_old()
    if not publish_link(bin_path(source), bin_path(target)):
        return False
    write_manifest(target, make(found.pair))
    return publish_link(idx_path(source), idx_path(target))


def _write_rejected(output: PlannedOutput, parts: Sequence[DonePart]) -> None:
    """Writes the bad records of an output, their numbers counted from the beginning of their files."""
    path = rejected_path(output.prefix)
    if not any(part.report.num_rejected for part in parts):
        remove(path)
        return
    with open_pending(path) as file:
        for record in _rejected(parts):
            file.write(json_line(record))


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
