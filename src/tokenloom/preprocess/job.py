"""A job from its plan to the last file, whatever its recipe: the work, parts into datasets, a summary in numbers.

A dataset takes whole parts by their bytes, or chosen documents of them. Manifests say whether a job was done before.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, StorageError, TokenloomError
from tokenloom.indexed.columns import ColumnFacts, ColumnWriter, WrittenColumn, columns_there, written_column
from tokenloom.indexed.layout import bin_path, column_path, idx_path
from tokenloom.indexed.manifests import DocumentLedger, Manifest, PairFacts, manifest_of
from tokenloom.indexed.origins import NAME, RUNS, OriginFile, Runs, selected_runs, write_origins
from tokenloom.indexed.writing.concatenate import ConcatenatedPart, check_inputs, write_pending
from tokenloom.indexed.writing.outputs import MOST_LOCKED, MOST_OPEN, PendingDataset, existing_path, publish_datasets
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.records import documents_between, left_out_of
from tokenloom.preprocess.blocks import json_line, rejected_path
from tokenloom.preprocess.folder import FolderGoneError, JobFolder
from tokenloom.preprocess.plan import JobPlan, Mask, PlannedDataset, PlannedOutput, PlannedShard
from tokenloom.preprocess.processes import local_runner
from tokenloom.preprocess.shard import ALLOW_MORE, HASHES, RECORDS, ShardReport, damaged_parts, part_array, part_pair
from tokenloom.preprocess.sharded import JobProgress, ProgressBook, Runner, do_and_assemble
from tokenloom.progress import if_stopped
from tokenloom.storage.addresses import canonical_path, is_remote, short_hash
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.objects import scratch_folder
from tokenloom.storage.publishing import OutputLock, exists_error, make_folder_of, tidy
from tokenloom.storage.resolve import exists, open_pending

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """A dataset of a job.

    Attributes:
        key: key of the texts.
        split: name of the split; None without splits.
        prefix: prefix of the pair.
        num_documents, num_empty: number of documents, and of those without tokens among them.
        num_sequences, num_tokens, num_bytes: counts of the dataset.
    """

    key: str
    split: str | None
    prefix: str
    num_documents: int
    num_empty: int
    num_sequences: int
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSummary:
    """What a job did.

    Attributes:
        datasets: one per output, key and split.
        num_files, num_ignored: input files read, and other files in folders.
        num_shards, num_shards_reused: shards of the job, and those among them that were done before this call.
        was_complete: whether there was nothing to do at all.
        num_documents: documents of the input; each was written once per key, or was a duplicate.
        num_duplicates: documents that were dropped because the same texts came before.
        num_blank_lines: lines of white space.
        num_rejected: bad records, set aside in the files `rejected_paths`.
        num_text_bytes: size of the input in bytes, after decompression; 0 if `was_complete`.
        numbers: further counts, none if `was_complete`. Of text `num_doubled`: texts that already spell out an added
            token. Of conversations `num_answer_tokens`: tokens of answers, or of plain text. Of images
            `num_text_tokens`, `num_image_bytes`, and `num_truncated`: texts that were cut off at `pad_length`.
        dtype: dtype of the tokens.
        engine, engine_reason: name of the engine, and why it was chosen.
        seconds: time that the job took, planning apart.
    """

    datasets: tuple[DatasetSummary, ...]
    num_files: int
    num_ignored: int
    num_shards: int
    num_shards_reused: int
    was_complete: bool
    num_documents: int
    num_duplicates: int
    num_blank_lines: int
    num_rejected: int
    rejected_paths: tuple[str, ...]
    num_text_bytes: int
    numbers: Mapping[str, int]
    dtype: str
    engine: str
    engine_reason: str
    seconds: float

    @property
    def prefix(self) -> str:
        """Prefix of the first dataset."""
        return self.datasets[0].prefix

    @property
    def num_tokens(self) -> int:
        """Tokens written, over all datasets; of images with their bytes."""
        return sum(dataset.num_tokens for dataset in self.datasets)


class JobArguments(TypedDict, total=False):
    """How a job runs, and what happens to earlier ones; see `preprocess_corpus`."""

    num_processes: int | None
    num_workers: int | None
    runner: Runner | None
    work_folder: str | os.PathLike[str] | None
    restart: bool
    overwrite: bool
    progress: Callable[[JobProgress], None] | None


def run_job(
    plan: JobPlan,
    *,
    num_processes: int | None = None,
    num_workers: int | None = None,
    runner: Runner | None = None,
    work_folder: str | os.PathLike[str] | None = None,
    restart: bool = False,
    overwrite: bool = False,
    progress: Callable[[JobProgress], None] | None = None,
) -> CorpusSummary:
    """Does the missing shards of a job, alone or with others that share its folder; see `preprocess_corpus`."""
    started = time.monotonic()
    total = sum(shard.num_bytes for shard in plan.shards)
    book = ProgressBook(plan, "preprocess", unit="bytes", measure="num_file_bytes", total=total, show=progress)
    run = runner or local_runner(
        most_processes=1 if plan.reads_streams else len(plan.shards),
        num_processes=num_processes,
        num_workers=num_workers,
        threads_per_process=plan.recipe.threads_per_process,
    )
    folder = JobFolder(_folder_path(plan, work_folder), plan)
    with if_stopped(lambda: book.done_words):
        if not is_remote(plan.prefix):  # checks before the work that the folder of the datasets can be written
            make_folder_of(plan.outputs[0].prefix)
            PendingFile(bin_path(plan.outputs[0].prefix)).discard()
        if restart or not _is_finished(plan):
            _require_own_outputs(plan, overwrite=overwrite)
            if restart:
                folder.restart()
            try:
                with folder.joined():
                    num_reused = book.tell_done(folder)
                    # Where nothing is done, others may have finished it meanwhile.
                    if restart or num_reused or not _is_finished(plan):
                        with book.shown():
                            reports = do_and_assemble(
                                plan,
                                folder,
                                book,
                                run=run,
                                damaged=lambda: damaged_parts(plan, folder),
                                assemble=lambda reports: _assemble(plan, folder, reports, overwrite=overwrite),
                                pending=[] if is_remote(plan.prefix) else [output.prefix for output in plan.outputs],
                            )
                        return _summary(plan, reports, num_shards_reused=num_reused, started=started)
            except FolderGoneError as error:
                if not _is_finished(plan):
                    message = f"`{folder.path}` was removed while this job was working in it"
                    raise StorageError(message, hint="run the same command again") from error
        folder.remove_remains()
    return _summary(plan, [], num_shards_reused=len(plan.shards), started=started)


def _folder_path(plan: JobPlan, work_folder: str | os.PathLike[str] | None) -> str:
    """Returns the job's folder: beside the outputs, so that parts can become datasets without a copy."""
    name = f"{os.path.basename(plan.prefix) or 'corpus'}.job"
    if work_folder is not None:  # which jobs of other prefixes may share
        return os.path.join(os.fspath(work_folder), f"{short_hash(canonical_path(plan.prefix))[:8]}-{name}")
    if is_remote(plan.prefix):
        return os.path.join(scratch_folder(plan.prefix), name)
    return f"{plan.prefix.rstrip(os.sep)}.job"


def _summary(plan: JobPlan, reports: Sequence[ShardReport], *, num_shards_reused: int, started: float) -> CorpusSummary:
    """Returns the summary of a job whose datasets are there; without reports, all was done before."""
    datasets: list[DatasetSummary] = []
    ledgers: list[DocumentLedger] = []
    engine = ""
    for output in plan.outputs:
        for planned in output.datasets:
            dataset = plan.open(planned)
            datasets.append(
                DatasetSummary(
                    key=planned.key,
                    split=planned.split,
                    prefix=dataset.path_prefix,
                    num_documents=dataset.num_documents,
                    num_empty=int(np.count_nonzero(np.diff(dataset.document_indices) == 0)),
                    num_sequences=len(dataset),
                    num_tokens=dataset.num_tokens,
                    num_bytes=dataset.num_tokens * dataset.dtype.itemsize,
                )
            )
            if planned is output.datasets[0]:  # all datasets of an output are of the same records
                manifest = manifest_of(dataset)
                assert manifest is not None
                ledgers.append(manifest.ledger)
                engine = engine or manifest.engine or ""
    numbers = Counter[str]()
    for report in reports:
        numbers.update(report.numbers)
    reasons = dict.fromkeys(report.engine_reason for report in reports)
    num_blank = sum(ledger.num_blank for ledger in ledgers)
    num_rejected = sum(ledger.num_rejected for ledger in ledgers)
    outputs = [output.prefix for output, ledger in zip(plan.outputs, ledgers, strict=True) if ledger.num_rejected]
    return CorpusSummary(
        datasets=tuple(datasets),
        num_files=len(plan.files),
        num_ignored=len(plan.ignored),
        num_shards=len(plan.shards),
        num_shards_reused=num_shards_reused,
        was_complete=not reports,
        num_documents=sum(ledger.num_read for ledger in ledgers) - num_blank - num_rejected,
        num_duplicates=sum(ledger.num_duplicates for ledger in ledgers),
        num_blank_lines=num_blank,
        num_rejected=num_rejected,
        rejected_paths=tuple(map(rejected_path, outputs)),
        num_text_bytes=sum(report.num_text_bytes for report in reports),
        numbers=numbers,
        dtype=plan.recipe.dtype.name,
        engine=engine or "unknown",
        engine_reason="; ".join(reasons) if reports else "read from the manifest",
        seconds=time.monotonic() - started,
    )


def _is_finished(plan: JobPlan) -> bool:
    """Whether all datasets of a job are there, of the same inputs and settings; a damaged one is not there."""
    if plan.reads_streams:
        return False
    num_bad = num_documents = 0
    try:
        for output in plan.outputs:
            for planned in output.datasets:
                tidy(idx_path(planned.prefix))
            manifests = [_finished_manifest(plan, output, planned) for planned in output.datasets]
            if None in manifests or manifests[0] is None:
                return False
            ledger = manifests[0].ledger
            if ledger.num_rejected and not exists(rejected_path(output.prefix)):
                return False
            num_bad += ledger.num_rejected
            num_documents += ledger.num_read - ledger.num_blank - ledger.num_rejected
    except (TokenloomError, OSError):
        return False
    if plan.settings.bad_records.is_exceeded(num_bad, num_documents + num_bad):
        found = f"`{plan.outputs[0].datasets[0].prefix}` was made of {num_documents + num_bad} records, {num_bad} of "
        found += f"them bad: `bad_records` allows {plan.settings.bad_records}"
        raise InputError(found, hint="use the datasets without the bad records, or correct the input")
    return True


def _finished_manifest(plan: JobPlan, output: PlannedOutput, planned: PlannedDataset) -> Manifest | None:
    """Returns the manifest of a dataset that is there as planned, with all its files; else None."""
    if existing_path(planned.prefix) is None:  # which also finishes a publication that was killed
        return None
    manifest, columns = _own_manifest(plan, output, planned), columns_there(planned.prefix)
    if manifest is None or not all(exists(column_path(planned.prefix, name)) for name in columns):
        return None
    if plan.settings.origins and NAME not in columns:
        hint = "`overwrite=True` with `restart=True` writes them"
        _LOGGER.warning("`%s` was made without origins and stays so: %s", planned.prefix, hint)
    return manifest


def _require_own_outputs(plan: JobPlan, *, overwrite: bool) -> bool:
    """Returns whether datasets that are there may be replaced: a killed publication of this job left some of them.

    An `OutputExistsError` for those of another job, unless `overwrite`.
    """
    may_replace = overwrite
    for output in plan.outputs if not overwrite else ():
        for planned in output.datasets:
            if (path := existing_path(planned.prefix)) is not None:
                if _own_manifest(plan, output, planned) is None:
                    raise exists_error(path)
                may_replace = True
        if exists(path := rejected_path(output.prefix)) and existing_path(output.datasets[0].prefix) is None:
            raise exists_error(path)
    return may_replace


def _own_manifest(plan: JobPlan, output: PlannedOutput, planned: PlannedDataset) -> Manifest | None:
    """Returns the manifest of a dataset that this very job made; None for any other, or none."""
    try:
        found = None if plan.reads_streams else manifest_of(plan.open(planned))
    except (TokenloomError, OSError):
        found = None
    if found is None:
        return None
    expected = plan.recipe.manifest(found.pair, planned, files=output.files, ledger=found.ledger, engine="")
    made, wanted = ((each.tokenizer.fingerprint, each.options, each.inputs) for each in (found, expected))
    return found if made == wanted else None


# --- parts into datasets ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A shard that is done, and what datasets take of it.

    Attributes:
        num_before: records of the file of each slice that earlier slices hold.
        kept: bool[num_documents], the documents that are no duplicates; None for all.
        splits: int8[num_documents], number of the split of each; None without splits.
    """

    shard: PlannedShard
    report: ShardReport
    prefix: str
    num_before: tuple[int, ...]
    kept: Mask | None
    splits: NDArray[np.int8] | None

    def num_chosen(self, split: int | None) -> int:
        mask = self.chosen(split)
        return self.report.num_documents if mask is None else int(np.count_nonzero(mask))

    def chosen(self, split: int | None) -> Mask | None:
        """Returns the documents that a dataset takes: bool[num_documents], None for all."""
        if split is None or self.splits is None:
            return self.kept
        mine: Mask = self.splits == split
        return mine if self.kept is None else mine & self.kept


def _assemble(
    plan: JobPlan, folder: JobFolder, reports: Sequence[ShardReport], *, overwrite: bool
) -> Sequence[ShardReport]:
    """Publishes the datasets of a job, all or none; returns the reports."""
    parts = _parts(plan, folder, reports)
    _require_documents(plan, folder, parts)
    planned = [dataset for output in plan.outputs for dataset in output.datasets]
    with ExitStack() as stack:
        # No dataset of another job may appear between this check and our publication.
        locks = [stack.enter_context(OutputLock(idx_path(each.prefix))) for each in planned[:MOST_LOCKED]]
        may_replace = _require_own_outputs(plan, overwrite=overwrite)
        new: list[PendingDataset] = []
        for output in plan.outputs:
            own = [parts[shard.number] for shard in output.shards]
            for each in output.datasets:
                pending = _pending_dataset(plan, output, each, own, stack)
                stack.callback(pending.discard)
                if each is output.datasets[0]:  # bad records are published with the first dataset
                    pending.beside, pending.replaced = _rejected_files(output, own), [rejected_path(output.prefix)]
                if len(planned) > MOST_OPEN:
                    pending.seal()
                new.append(pending)
        publish_datasets(new, overwrite=may_replace, locks=locks)
    return reports


def _parts(plan: JobPlan, folder: JobFolder, reports: Sequence[ShardReport]) -> list[_Part]:
    prefixes = [folder.part_prefix(shard) for shard in plan.shards]
    kept: Sequence[Mask | None] = [None] * len(prefixes)
    splits: Sequence[NDArray[np.int8] | None] = [None] * len(prefixes)
    if plan.recipe.hashes_documents:  # mapped without descriptors, of which there are few
        kept, splits = plan.recipe.select([part_array(prefix, HASHES, np.uint64) for prefix in prefixes])
    num_records = Counter[str]()
    parts: list[_Part] = []
    for shard, report, prefix, mask, dealt in zip(plan.shards, reports, prefixes, kept, splits, strict=True):
        before = []
        for slice_, num_rows in zip(shard.slices, report.slice_rows, strict=True):
            before.append(num_records[slice_.file.path])
            num_records[slice_.file.path] += num_rows
        parts.append(
            _Part(shard=shard, report=report, prefix=prefix, num_before=tuple(before), kept=mask, splits=dealt)
        )
    return parts


def _require_documents(plan: JobPlan, folder: JobFolder, parts: Sequence[_Part]) -> None:
    ledger = _ledger(parts, None)
    num_documents, num_bad = ledger.num_kept + ledger.num_duplicates, ledger.num_rejected
    budget = plan.settings.bad_records
    name = f"`{plan.files[0].path}`" if len(plan.files) == 1 else f"{len(plan.files)} files"
    first = next((f"; the first is {record}" for record in map(_in_words, _rejected(parts))), "")
    if not num_documents:
        folder.remove()  # there is nothing to resume
        found = f"{ledger.num_blank} blank lines, {num_bad} bad records{first}"
        raise InputError(f"{name} holds no {plan.recipe.documents}: {found}", hint=plan.recipe.expected)
    if budget.is_exceeded(num_bad, num_documents + num_bad):
        message = f"{name}: too many bad records: {num_bad} of {num_documents + num_bad}, {budget} allowed"
        raise InputError(message + first, hint=f"{ALLOW_MORE}; nothing is done twice")


def _pending_dataset(
    plan: JobPlan, output: PlannedOutput, planned: PlannedDataset, parts: Sequence[_Part], stack: ExitStack
) -> PendingDataset:
    """Returns a dataset that is written but not published; the stack discards its columns."""
    chosen = [part.chosen(planned.split_number) for part in parts]
    columns: dict[str, WrittenColumn] = {}
    if plan.settings.origins:
        files = _origin_files(plan, output, parts)
        numbers = {file.path: number for number, file in enumerate(files)}
        every = zip((_runs_of(part, numbers) for part in parts), chosen, strict=True)
        runs = (each if mask is None else selected_runs(each, mask) for each, mask in every)
        columns[NAME] = write_origins(planned.prefix, files, runs)
        stack.callback(columns[NAME][0].discard)
    if plan.settings.document_hashes:
        arrays = (part_array(part.prefix, f"{HASHES}_{planned.column}", np.uint64) for part in parts)
        hashes = (each if mask is None else each[mask] for each, mask in zip(arrays, chosen, strict=True))
        writer = ColumnWriter(planned.prefix, HASHES, ColumnFacts(kind="document", dtype="uint64", made_by="tokenloom"))
        columns[HASHES] = written_column(writer, hashes)
        stack.callback(columns[HASHES][0].discard)

    def manifest(pair: PairFacts) -> Manifest:
        ledger = _ledger(parts, planned.split_number)
        engine = ", ".join(dict.fromkeys(part.report.engine for part in parts))
        return plan.recipe.manifest(pair, planned, files=output.files, ledger=ledger, engine=engine)

    prefixes = [part_pair(part.prefix, planned.column) for part in parts]
    pairs = [ConcatenatedPart(prefix=each, kept_documents=mask) for each, mask in zip(prefixes, chosen, strict=True)]
    dtype, multimodal = plan.recipe.dtype, plan.recipe.is_multimodal
    check_inputs(prefixes, multimodal=multimodal)
    return write_pending(pairs, planned.prefix, dtype=dtype, multimodal=multimodal, manifest=manifest, columns=columns)


def _ledger(parts: Sequence[_Part], split: int | None) -> DocumentLedger:
    """Returns the ledger of all records for the dataset of a split, which must balance."""
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


def _origin_files(plan: JobPlan, output: PlannedOutput, parts: Sequence[_Part]) -> list[OriginFile]:
    """Returns the input files of an output, as the manifest names them."""
    units = {file.path: plan.recipe.unit or FORMATS[file.format].unit for file in output.files}
    num_records = Counter[str]()
    for part in parts:
        for slice_, num_rows in zip(part.shard.slices, part.report.slice_rows, strict=True):
            num_records[slice_.file.path] += num_rows
    return [
        OriginFile(
            path=record.path,
            num_bytes=record.num_bytes,
            version=record.version or None,
            unit=units[record.path],
            num_records=num_records[record.path],
        )
        for record in plan.recipe.recorded(output.files)
    ]


def _runs_of(part: _Part, numbers: Mapping[str, int]) -> Runs:
    """Returns the origins of all documents of a part; `numbers` are the numbers of its files by path."""
    left_out = part_array(part.prefix, RECORDS, np.int64) if RECORDS in part.report.arrays else left_out_of([])
    found = [np.empty(0, dtype=RUNS)]
    start = 0
    for slice_, num_before, num_rows in zip(part.shard.slices, part.num_before, part.report.slice_rows, strict=True):
        between = documents_between(left_out, start, start + num_rows)
        runs = np.empty(len(between), dtype=RUNS)
        runs["file"] = numbers[slice_.file.path]
        runs["first_record"] = between[:, 0] - start + num_before + 1
        runs["num_documents"] = between[:, 1]
        found.append(runs)
        start += num_rows
    joined = np.concatenate(found)
    if (num_documents := int(joined["num_documents"].sum())) != part.report.num_documents:
        message = f"`{part.prefix}`: {start} records make {num_documents} documents, not {part.report.num_documents}"
        raise StorageError(message, hint="its input format counts records wrongly; leave the origins out")
    return joined


def _rejected_files(output: PlannedOutput, parts: Sequence[_Part]) -> tuple[PendingFile, ...]:
    """Returns the file of the bad records of an output, if there are any."""
    if not any(part.report.num_rejected for part in parts):
        return ()
    file = open_pending(rejected_path(output.prefix))
    for record in _rejected(parts):
        file.write(json_line(record))
    return (file,)


def _rejected(parts: Sequence[_Part]) -> Iterator[dict[str, Any]]:
    """Yields the bad records of some shards, in order, numbered from the beginning of their files."""
    for part in parts:
        if part.report.num_rejected:
            paths = (slice_.file.path for slice_ in part.shard.slices)
            num_before = dict(zip(paths, part.num_before, strict=True))
            with open(rejected_path(part.prefix), "rb") as stream:
                for record in map(json.loads, stream):
                    if "line" in record:
                        record["line"] += num_before[record["file"]]
                    yield record


def _in_words(record: dict[str, Any]) -> str:
    place = next((f" {unit} {record[unit]}" for unit in ("line", "row") if unit in record), "")
    return f"`{record['file']}`{place}: {record['reason']}"
