"""Runs a preprocessing job: tokenizes missing shards, assembles all parts into datasets, returns a summary.

A dataset consists of whole parts, or of selected documents of the parts. A job is finished if all its datasets exist
and their manifests record the job's inputs and settings.
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
from tempfile import TemporaryFile
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, StorageError, TokenloomError
from tokenloom.indexed.columns import ColumnFacts, ColumnWriter, WrittenColumn, recorded_columns, written_column
from tokenloom.indexed.layout import bin_path, column_path, idx_path
from tokenloom.indexed.manifests import DocumentLedger, Manifest, PairFacts, manifest_of
from tokenloom.indexed.origins import NAME, RUNS, OriginFile, Runs, selected_runs, write_origins
from tokenloom.indexed.writing.concatenate import ConcatenatedPart, check_inputs, write_pending
from tokenloom.indexed.writing.outputs import MOST_LOCKED, MOST_OPEN, PendingDataset, existing_path, publish_datasets
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.records import documents_between
from tokenloom.preprocess.blocks import json_line, rejected_path
from tokenloom.preprocess.folder import FolderGoneError, JobFolder
from tokenloom.preprocess.job_plan import JobPlan, Mask, PlannedDataset, PlannedOutput, PlannedShard
from tokenloom.preprocess.processes import local_runner
from tokenloom.preprocess.shard import ALLOW_MORE, HASHES, RECORDS, ShardReport, damaged_parts, part_array, part_pair
from tokenloom.preprocess.sharded import JobProgress, ProgressBook, Runner, do_and_assemble
from tokenloom.progress import if_stopped
from tokenloom.storage.addresses import canonical_path, is_remote, short_hash
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.objects import scratch_folder
from tokenloom.storage.publishing import OutputLock, exists_error, make_folder_of, tidy
from tokenloom.storage.resolve import exists, open_pending

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """Counts of one dataset that a job wrote.

    Attributes:
        key: key of the texts in each record; "" if the recipe has no keys.
        split: name of the split; None without splits.
        prefix: path prefix of the `.bin`/`.idx` pair.
        num_documents, num_empty: number of documents, and number of documents without tokens.
        num_sequences, num_tokens, num_bytes: number of sequences, of tokens, and of bytes in the `.bin` file.
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
    """The result of a preprocessing job in numbers.

    Attributes:
        datasets: one summary per output, key and split.
        num_files, num_ignored: number of input files, and number of other files in the input folders.
        num_shards, num_shards_reused: number of shards, and number of shards done before this call.
        was_complete: True if the job was finished before this call.
        num_documents: number of good records; each became one document per key, or was dropped as a duplicate.
        num_duplicates: number of documents dropped because an earlier document has the same texts.
        num_blank_lines: number of lines that contain only white space.
        num_rejected: number of bad records, written to the files `rejected_paths`.
        num_text_bytes: size of the decompressed input in bytes; 0 if `was_complete`.
        numbers: recipe-specific counts by name; empty if `was_complete`. Text: `num_doubled`, documents whose text
            spells out an added token. Conversations: `num_answer_tokens`, tokens in answers or plain text. Images:
            `num_text_tokens`, `num_image_bytes`, and `num_truncated`, texts cut at `pad_length`.
        dtype: dtype of the tokens.
        engine, engine_reason: name of the tokenization engine, and the reason for the choice.
        seconds: duration of this call in seconds, without planning.
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
        """Path prefix of the first dataset."""
        return self.datasets[0].prefix

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all datasets; each byte of an image counts as a token."""
        return sum(dataset.num_tokens for dataset in self.datasets)


class JobArguments(TypedDict, total=False):
    """Keyword arguments for running a job; see `preprocess_corpus`."""

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
    """Runs a job, together with other processes that share its folder; see `preprocess_corpus` for the arguments."""
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
        if not is_remote(plan.prefix):  # fail before the work starts if the output folder is not writable
            make_folder_of(prefix := plan.outputs[0].prefix)
            with storage_errors("create", bin_path(prefix)):
                TemporaryFile(dir=os.path.dirname(prefix) or ".").close()  # on most filesystems, a kill leaves no file
        if restart or not _is_finished(plan):
            _require_own_outputs(plan, overwrite=overwrite)
            if restart:
                folder.restart()
            try:
                with folder.joined():
                    num_reused = book.add_done_shards(folder)
                    # If no shard is done, another process may have finished the job since the check above.
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
                    message = f"`{folder.path}` was removed while this job was running"
                    raise StorageError(message, hint="run the same command again") from error
        folder.remove_remains()
    return _summary(plan, [], num_shards_reused=len(plan.shards), started=started)


def _folder_path(plan: JobPlan, work_folder: str | os.PathLike[str] | None) -> str:
    """Returns the path of the job folder: in `work_folder`, else beside local outputs, else in a scratch folder."""
    name = f"{os.path.basename(plan.prefix) or 'corpus'}.job"
    if work_folder is not None:  # jobs of other prefixes may use the same folder
        return os.path.join(os.fspath(work_folder), f"{short_hash(canonical_path(plan.prefix))[:8]}-{name}")
    if is_remote(plan.prefix):
        return os.path.join(scratch_folder(plan.prefix), name)
    return f"{plan.prefix.rstrip(os.sep)}.job"


def _summary(plan: JobPlan, reports: Sequence[ShardReport], *, num_shards_reused: int, started: float) -> CorpusSummary:
    """Returns the summary of a finished job; `reports` is empty if the job was finished before this call."""
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
            if planned is output.datasets[0]:  # all datasets of an output have the same records
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
    """Returns whether all datasets of a job exist and were made from equal inputs with equal settings."""
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
        message = f"`{plan.outputs[0].datasets[0].prefix}`: {num_bad} of {num_documents + num_bad} input records are "
        message += f"bad, more than `bad_records` = {plan.settings.bad_records} allows"
        raise InputError(message, hint="raise `bad_records` to use the existing datasets, or correct the input")
    return True


def _finished_manifest(plan: JobPlan, output: PlannedOutput, planned: PlannedDataset) -> Manifest | None:
    """Returns the manifest of a dataset if the dataset exists as planned, with all its files; else None."""
    if existing_path(planned.prefix) is None:  # the call also completes an interrupted publication
        return None
    manifest, columns = _own_manifest(plan, output, planned), recorded_columns(planned.prefix)
    if manifest is None or not all(exists(column_path(planned.prefix, name)) for name in columns):
        return None
    if plan.settings.origins and NAME not in columns:
        hint = "to write origins, use `overwrite=True` with `restart=True`"
        _LOGGER.warning("`%s` exists without origins and is not rewritten: %s", planned.prefix, hint)
    return manifest


def _require_own_outputs(plan: JobPlan, *, overwrite: bool) -> bool:
    """Returns whether existing outputs may be replaced: if `overwrite` is True, or if this job wrote them earlier.

    Raises:
        OutputExistsError: another job wrote an existing output, and `overwrite` is False.
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
    """Returns the manifest of an existing dataset if this job made it, else None."""
    try:
        found = None if plan.reads_streams else manifest_of(plan.open(planned))
    except (TokenloomError, OSError):
        found = None
    if found is None:
        return None
    expected = plan.recipe.manifest(found.pair, planned, files=output.files, ledger=found.ledger, engine="")
    actual, planned_values = ((each.tokenizer.fingerprint, each.options, each.inputs) for each in (found, expected))
    return found if actual == planned_values else None


# --- parts into datasets ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A finished shard, and the choice of its documents for the datasets."""

    shard: PlannedShard
    report: ShardReport
    prefix: str
    num_before: tuple[int, ...]  # per slice, the number of records in earlier slices of the same file
    kept: Mask | None  # bool[num_documents], False for duplicates; None keeps all documents
    splits: NDArray[np.int8] | None  # int8[num_documents], split indices; None without splits

    def num_chosen(self, split: int | None) -> int:
        mask = self.chosen(split)
        return self.report.num_documents if mask is None else int(np.count_nonzero(mask))

    def chosen(self, split: int | None) -> Mask | None:
        """Returns a mask of the documents to keep in a split, bool[num_documents]; None to keep all documents."""
        if split is None or self.splits is None:
            return self.kept
        in_split: Mask = self.splits == split
        return in_split if self.kept is None else in_split & self.kept


def _assemble(
    plan: JobPlan, folder: JobFolder, reports: Sequence[ShardReport], *, overwrite: bool
) -> Sequence[ShardReport]:
    """Publishes all datasets of a job atomically; returns `reports`."""
    parts = _parts(plan, folder, reports)
    _require_documents(plan, folder, parts)
    planned = [dataset for output in plan.outputs for dataset in output.datasets]
    with ExitStack() as stack:
        # The locks keep other jobs from publishing a dataset between the check below and our publication.
        locks = [stack.enter_context(OutputLock(idx_path(each.prefix))) for each in planned[:MOST_LOCKED]]
        may_replace = _require_own_outputs(plan, overwrite=overwrite)
        new: list[PendingDataset] = []
        for output in plan.outputs:
            own = [parts[shard.number] for shard in output.shards]
            for each in output.datasets:
                pending = _pending_dataset(plan, output, each, own, stack)
                stack.callback(pending.discard)
                if each is output.datasets[0]:  # the bad records are published with the first dataset
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
    if plan.recipe.hashes_documents:  # memory maps need no file descriptors, which are limited
        kept, splits = plan.recipe.select([part_array(prefix, HASHES, np.uint64) for prefix in prefixes])
    num_records = Counter[str]()
    parts: list[_Part] = []
    for shard, report, prefix, mask, part_splits in zip(plan.shards, reports, prefixes, kept, splits, strict=True):
        before = []
        for slice_, num_rows in zip(shard.slices, report.slice_rows, strict=True):
            before.append(num_records[slice_.file.path])
            num_records[slice_.file.path] += num_rows
        parts.append(
            _Part(shard=shard, report=report, prefix=prefix, num_before=tuple(before), kept=mask, splits=part_splits)
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
        raise InputError(f"{name}: no {plan.recipe.documents} found: {found}", hint=plan.recipe.expected)
    if budget.is_exceeded(num_bad, num_documents + num_bad):
        message = f"{name}: too many bad records: {num_bad} of {num_documents + num_bad} records, {budget} allowed"
        raise InputError(message + first, hint=f"{ALLOW_MORE}; finished shards are kept")


def _pending_dataset(
    plan: JobPlan, output: PlannedOutput, planned: PlannedDataset, parts: Sequence[_Part], stack: ExitStack
) -> PendingDataset:
    """Writes a dataset to temporary files; `stack` removes unpublished column files on exit."""
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
    """Returns the record counts for the dataset of a split; `num_read` is the sum of the other counts."""
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
    """Returns the input files of an output, as in `Recipe.recorded`, each with its number of records."""
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
    """Returns the origins of a part's documents as ranges of records; `numbers` maps file paths to file indices."""
    has_skipped = RECORDS in part.report.arrays
    skipped = part_array(part.prefix, RECORDS, np.int64) if has_skipped else np.empty(0, dtype=np.int64)
    found = [np.empty(0, dtype=RUNS)]
    start = 0
    for slice_, num_before, num_rows in zip(part.shard.slices, part.num_before, part.report.slice_rows, strict=True):
        between = documents_between(skipped, start, start + num_rows)
        runs = np.empty(len(between), dtype=RUNS)
        runs["file"] = numbers[slice_.file.path]
        runs["first_record"] = between[:, 0] - start + num_before + 1
        runs["num_documents"] = between[:, 1]
        found.append(runs)
        start += num_rows
    joined = np.concatenate(found)
    if (num_documents := int(joined["num_documents"].sum())) != part.report.num_documents:
        message = f"`{part.prefix}`: expected {part.report.num_documents} documents, found {num_documents} in "
        message += f"{start} records"
        raise StorageError(message, hint="the reader of this input format miscounts records; set `origins=False`")
    return joined


def _rejected_files(output: PlannedOutput, parts: Sequence[_Part]) -> tuple[PendingFile, ...]:
    """Writes the bad records of an output to a temporary file; returns () if there are none."""
    if not any(part.report.num_rejected for part in parts):
        return ()
    file = open_pending(rejected_path(output.prefix))
    for record in _rejected(parts):
        file.write(json_line(record))
    return (file,)


def _rejected(parts: Sequence[_Part]) -> Iterator[dict[str, Any]]:
    """Yields the bad records of shards, in order; line numbers count from the start of the file."""
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
