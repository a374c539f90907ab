"""Verifies pairs: every row of the index, the checksums in the manifest, and the columns.

Opening a pair does none of these checks. Code that reads a whole index must check the index first, since one wrong
length changes the samples of all later documents.

A `Verification` does all checks in the background of a run, once per node. It stores results in files that are named
by a hash of the sizes, inodes and times of the data files, so the next run on the node reads no tokens. Processes of a
node take turns: one process reads a pair, and the other processes read the result.
"""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import json
import logging
import mmap
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import check_rows, first_fall
from tokenloom.errors import DatasetFormatError, DatasetNotFoundError, OutputBusyError, StorageError, TokenloomError
from tokenloom.indexed import manifests
from tokenloom.indexed.columns import Column, open_column, read_columns, recorded_columns, token_place
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import Index, bin_path, column_path, columns_path, idx_path
from tokenloom.indexed.manifests import FileChecksum, PairFacts, manifest_of, manifest_path, read_manifest
from tokenloom.indexed.origins import read_origins
from tokenloom.progress import task, waiting_for
from tokenloom.rendering.card import HasFacts
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import publish_bytes
from tokenloom.storage.extents import ExtentSource
from tokenloom.storage.json_files import UnusableJsonError, read_json
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.publishing import OutputLock
from tokenloom.storage.resolve import is_missing
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import version_of

_LOGGER = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1 << 22

_SOUND: WeakKeyDictionary[IndexedDataset, Index] = WeakKeyDictionary()
"""Datasets that passed `check_index`, with the index that was open then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(HasFacts):
    """The result of `verify_dataset`.

    Attributes:
        num_tokens: number of tokens of the pair.
        smallest_token, largest_token: extremes among all tokens; None for an empty dataset, floats for a float dtype.
        problems: one sentence per problem, with file, field, expected and found value.
        has_manifest: whether the pair has a manifest; if so, the pair was compared with it.
        has_images: whether some sequences are images.
    """

    num_tokens: int
    smallest_token: int | float | None
    largest_token: int | float | None
    problems: tuple[str, ...]
    has_manifest: bool = False
    has_images: bool = False

    @property
    def ok(self) -> bool:
        """Whether `problems` is empty."""
        return not self.problems

    def facts(self) -> dict[str, Any]:
        """Returns the result for display; see `HasFacts`."""
        return {
            "problems": [*self.problems],
            "sound": self.ok,
            "tokens read": self.num_tokens,
            "smallest token": self.smallest_token,
            "largest token": self.largest_token,
            "compared with a manifest": self.has_manifest,
        }


def verify_dataset(prefix: str, *, multimodal: bool = False, vocab_size: int | None = None) -> VerifyReport:
    """Reads a whole pair and its columns, and reports the first problem of each array.

    For a catalogue, all missing or replaced pairs are reported; tokens are read only if no pair is missing or replaced.
    If the dataset itself cannot be opened, an error is raised.

    Args:
        prefix: prefix of the pair.
        multimodal: whether the pair has modes.
        vocab_size: tokens must be in [0, vocab_size); None means the vocabulary size in the manifest.

    Raises:
        DatasetNotFoundError, DatasetFormatError: the pair cannot be opened.
        ChangedFileError: a file was truncated or overwritten during the verification.
    """
    dataset = IndexedDataset(prefix, multimodal=multimodal)
    problems = list(index_problems(dataset))
    lost = list(dataset.byte_source.problems()) if isinstance(dataset.byte_source, ExtentSource) else []
    problems += lost
    manifest = None
    try:
        manifest = read_manifest(dataset.path_prefix, settings=dataset.object_storage)
    except DatasetFormatError as error:
        problems.append(error.message)
    problems += [
        f"`{section.path}`: expected a whole number of {dataset.dtype} tokens, found {section.num_bytes} bytes"
        for section in ([] if lost else dataset.sections)
        if section.num_bytes % dataset.dtype.itemsize
    ]
    facts, has_images = None if manifest is None else manifest.pair, dataset.index.has_modes
    tally = manifests.PairTally(dataset.dtype)
    extremes: list[int | float] = []
    for tokens in () if lost else _read_tokens(dataset, f"verify {prefix}"):
        if facts is not None:
            tally.add_tokens(tokens.data)
        extremes += [tokens.min().item(), tokens.max().item()]
    smallest, largest = min(extremes, default=None), max(extremes, default=None)
    if facts is not None and not lost:
        found = tally.facts(dataset.index_source())
        if has_images:
            found = dataclasses.replace(found, largest_token=facts.largest_token)  # in the manifest: of texts only
        problems += _differences(dataset.path_prefix, facts, found)
    problems += column_problems(dataset)
    if vocab_size is None and manifest is not None and not has_images:
        vocab_size = manifest.tokenizer.vocab_size
    if vocab_size is not None and smallest is not None and largest is not None:
        where = f"`{dataset.tokens_path}`: expected tokens"
        if largest >= vocab_size:
            problems.append(f"{where} below {vocab_size} (the vocabulary size), found {largest}")
        if smallest < 0:
            problems.append(f"{where} of at least 0, found {smallest}")
    return VerifyReport(
        num_tokens=dataset.num_tokens,
        smallest_token=smallest,
        largest_token=largest,
        problems=tuple(problems),
        has_manifest=manifest is not None,
        has_images=has_images,
    )


def check_index(dataset: IndexedDataset, *, compares: bool = True) -> None:
    """Raises if a row of an index is damaged or, with `compares`, the index differs from the manifest. Cached."""
    if _SOUND.get(dataset) is dataset.index:
        return
    problem = next(index_problems(dataset), None)
    if problem is None and compares and (manifest := manifest_of(dataset)) is not None:
        found = manifests.source_checksum(dataset.index_source())
        problem = _checksum_problem(idx_path(dataset.path_prefix), manifest.pair.index, found)
    _refuse(dataset, problem)
    _SOUND[dataset] = dataset.index


def check_sum(dataset: IndexedDataset, rows: range, num_tokens: int) -> None:
    """Raises if `num_tokens`, the sum of lengths of `rows`, does not match the byte pointers of these rows; O(1)."""
    if (expected := dataset.count_tokens(rows)) != num_tokens:
        check_index(dataset)  # names the damaged row
        where = f"`{idx_path(dataset.path_prefix)}`: expected lengths that add up to {expected} tokens"
        _refuse(dataset, f"{where} in sequences [{rows.start}, {rows.stop}), found {num_tokens}")


def check_tokens(dataset: IndexedDataset, *, progress: Callable[[int], None] | None = None) -> None:
    """Reads all tokens, and raises if the manifest has another checksum; does nothing without a manifest."""
    if (manifest := manifest_of(dataset)) is not None:
        found = FileChecksum()
        for tokens in _read_tokens(dataset, f"checking {dataset.path_prefix}", progress):
            found = found.with_bytes(tokens.data)
        _refuse(dataset, _checksum_problem(bin_path(dataset.path_prefix), manifest.pair.tokens, found))


def check_columns(pair: IndexedDataset, *, names: Collection[str] | None = None) -> None:
    """Reads the columns `names` of a pair (default: all), and raises if one is damaged; allows NaN."""
    _refuse(pair, next(column_problems(pair, names=names, refuses_nan=False), None))


def column_problems(
    pair: IndexedDataset, *, names: Collection[str] | None = None, refuses_nan: bool = True
) -> Iterator[str]:
    """Reads the columns `names` (default: all); yields a sentence per problem. NaN is a problem if `refuses_nan`."""
    try:
        chosen = [name for name in read_columns(pair) if names is None or name in names]
    except DatasetFormatError as error:
        yield error.message
        return
    for name in chosen:
        try:
            column = open_column(pair, name)
            assert column is not None
            column.verify()
            if column.facts.kind == "runs" and (origins := read_origins(pair)) is not None:
                for _ in origins.pieces():
                    pass  # reading a piece validates its rows
        except (DatasetFormatError, DatasetNotFoundError) as error:
            yield error.message
            continue
        if refuses_nan and (place := _first_nan(pair, column)) is not None:
            yield f"`{column.path}`: expected numbers, found NaN {place}"


def _first_nan(pair: IndexedDataset, column: Column) -> str | None:
    """Describes the row of the first NaN of a column; None without NaN."""
    for begin in range(0, len(column.data) if column.data.dtype.kind == "f" else 0, _ROWS_AT_ONCE):
        wrong = np.isnan(column.data[begin : begin + _ROWS_AT_ONCE])
        column.check()
        if wrong.any():
            row = begin + int(np.argmax(wrong.reshape(len(wrong), -1).any(axis=1)))
            return token_place(pair, row) if column.facts.kind == "token" else f"for {column.facts.kind} {row}"
    return None


def _refuse(dataset: IndexedDataset, problem: str | None) -> None:
    if problem is not None:
        raise DatasetFormatError(problem, hint=f"run `tokenloom verify {dataset.path_prefix}`")


def _read_tokens(
    dataset: IndexedDataset, description: str, progress: Callable[[int], None] | None = None
) -> Iterator[NDArray[Any]]:
    """Yields all tokens in blocks; calls `progress` with the number of bytes of each block."""
    with task(description, unit="bytes", total=sum(each.num_bytes for each in dataset.sections)) as advance:
        for tokens in manifests.token_blocks(dataset):
            yield tokens
            advance(tokens.nbytes)
            if progress is not None:
                progress(tokens.nbytes)


def _checksum_problem(path: str, expected: FileChecksum, found: FileChecksum) -> str | None:
    """Describes how a file differs from its checksum in the manifest; None without a difference."""
    if expected == found:
        return None
    wanted = f"{expected.num_bytes} bytes with CRC-32 {expected.crc32:08x}, as the manifest says"
    return f"`{path}`: expected {wanted}, found {found.num_bytes} bytes with CRC-32 {found.crc32:08x}"


def _differences(prefix: str, expected: PairFacts, found: PairFacts) -> Iterator[str]:
    """Yields one sentence per difference between a pair and its manifest."""
    for name in ("dtype", "num_documents", "num_sequences", "num_tokens", "largest_token"):
        if (recorded := getattr(expected, name)) != (value := getattr(found, name)):
            yield f"`{manifest_path(prefix)}`: expected {name} of {value!r}, as the pair has, found {recorded!r}"
    files = ((bin_path(prefix), expected.tokens, found.tokens), (idx_path(prefix), expected.index, found.index))
    yield from filter(None, (_checksum_problem(*file) for file in files))


def index_problems(dataset: IndexedDataset) -> Iterator[str]:
    """Yields a sentence about the first damaged row, and a sentence about the first damaged document boundary."""
    found = [problem for problem in (_row_problem(dataset), _boundary_problem(dataset)) if problem is not None]
    dataset.check_index()
    yield from (f"`{dataset.idx_path}`: expected {problem}" for problem in found)


def _row_problem(dataset: IndexedDataset) -> str | None:
    index, itemsize = dataset.index, dataset.dtype.itemsize
    for section in dataset.sections:
        rows, stop = slice(section.rows.start, section.rows.stop), section.start + section.num_bytes
        number, expected = check_rows(
            index.sequence_lengths[rows], index.sequence_pointers[rows], start=section.start, itemsize=itemsize
        )
        row = section.rows.start + number
        if number == len(section.rows):
            if expected != stop:
                return f"the sequences of `{section.path}` to end at byte {stop}, found {expected}"
        elif index.sequence_pointers[row] == expected:
            return f"a length of at least 0, found {index.sequence_lengths[row]} for sequence {row}"
        else:
            before = "the start of its pair" if number == 0 and section.start else "the end of the sequence before"
            return f"pointer {expected} ({before}), found {index.sequence_pointers[row]} for sequence {row}"
    return None


def _boundary_problem(dataset: IndexedDataset) -> str | None:
    boundaries = dataset.index.document_indices
    for section in dataset.sections:
        if (first := int(boundaries[section.documents.start])) != section.rows.start:
            document = f"document {section.documents.start}, the first of `{section.path}`,"
            return f"{document} to begin with sequence {section.rows.start}, found {first}"
    if (fall := first_fall(boundaries)) < len(boundaries):
        found = f"{boundaries[fall]} for boundary {fall} after {boundaries[fall - 1]} for the boundary before"
        return f"non-decreasing document boundaries, found {found}"
    return None


# --- in the background of a run ---------------------------------------------------------------------------------------

_VERSION = 3
_FLAG_BYTES = 1 << 14
_NICENESS = 10
_PATIENCE_AT_EXIT_SECONDS = 10.0


class _StoppedError(Exception):
    """Raised in the background thread when the process ends."""


class Verification:
    """Checks whole pairs in the background, and stores the results in a folder.

    Thread-safe. Workers forked later share the results. A spawned process that receives this object starts its own
    check; for a pair with a stored result, this check reads no tokens.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._flag = mmap.mmap(-1, _FLAG_BYTES)  # shared with forked workers, where the thread does not run
        self._added: dict[str, ObjectStorageSettings | None] = {}
        self._waiting: list[str] = []
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()
        self._warned = False
        atexit.register(self._stop)

    def add(self, prefix: str, settings: ObjectStorageSettings | None = None) -> None:
        """Adds a pair or catalogue to check; does nothing if the same prefix was added before."""
        if self._owner != os.getpid():  # the parent process checks the pair; in this fork, the lock may never be free
            return
        with self._changed:
            if prefix in self._added:
                return
            self._added[prefix] = settings
            self._waiting.append(prefix)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tokenloom-verification", daemon=True)
                self._thread.start()

    def check(self) -> None:
        """Raises a `DatasetFormatError` or `StorageError` if a problem was found so far; takes about 0.1 µs."""
        if self._flag[0]:
            is_format, message, hint = json.loads(self._flag[1:].rstrip(b"\0"))
            raise (DatasetFormatError if is_format else StorageError)(message, hint=hint)

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Waits until all pairs are checked; returns False after a timeout. A forked worker gets False at once."""
        self.check()
        if self._owner != os.getpid():
            return False
        with self._changed:
            done = self._changed.wait_for(lambda: self._thread is None or self._flag[0], timeout_seconds)
        self.check()
        return bool(done)

    def __reduce__(self) -> tuple[Callable[..., Verification], tuple[Any, ...]]:
        return verification, (self._folder, dict(self._added))

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)  # lowers the priority of this thread only
        problem: TokenloomError | None = StorageError("the background verification of the data ended early")
        try:
            while True:
                with self._changed:
                    if not self._waiting:
                        problem, self._thread = None, None
                        return
                    prefix = self._waiting.pop(0)
                self._verify(prefix)
        except TokenloomError as error:
            problem = error
        except _StoppedError:
            problem = None
        finally:
            with self._changed:
                if problem is not None:
                    self._tell(problem)
                if self._thread is threading.current_thread():
                    self._thread = None
                self._changed.notify_all()

    def _verify(self, prefix: str) -> None:
        """Raises if a pair is damaged; uses the stored result, or reads the files and stores the result."""
        settings = self._added[prefix]
        dataset = IndexedDataset(prefix, mmap=False, object_storage=settings)
        facts = _facts_of(dataset)
        identity = _identity_of(dataset, facts)
        if facts is None and not self._warned:
            self._warned = True
            _LOGGER.warning("`%s` has no manifest to compare its tokens with (logged once)", prefix)
        path = os.path.join(self._folder, f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json")
        with self._locked(path) as is_locked:
            if self._stopping.is_set():
                raise _StoppedError
            if (record := _read_result(path, identity)) is not None:
                if (message := record["problem"]) is None:
                    return
                hint = f"write the pair again, or remove `{path}`, the stored result, to check again"
                raise DatasetFormatError(str(message), hint=hint)
            problem = None
            try:
                check_index(dataset)
                check_columns(dataset)
                check_tokens(dataset, progress=self._raise_if_stopping)
                _LOGGER.info("verified `%s`", prefix)
            except DatasetFormatError as error:
                problem = error
            again = IndexedDataset(prefix, object_storage=settings)
            if _identity_of(again, _facts_of(again)) != identity:
                raise StorageError(f"`{prefix}` changed while it was verified", hint="do not modify data during a run")
            if is_locked:
                record = {"identity": identity, "problem": None if problem is None else problem.message}
                try:
                    publish_bytes(path, json.dumps(record).encode())
                except StorageError as error:
                    _LOGGER.warning("cannot store the result of the verification: %s", error.message)
            if problem is not None:
                raise problem

    @contextmanager
    def _locked(self, path: str) -> Iterator[bool]:
        """Locks a result file against other processes; yields False if it cannot be locked."""
        lock: OutputLock | None = None
        with waiting_for(f"`{path}`, which another process is making"):
            while lock is None and not self._stopping.is_set():
                try:
                    os.makedirs(self._folder, mode=0o700, exist_ok=True)
                    lock = OutputLock(path)
                except OutputBusyError:
                    continue
                except OSError as error:
                    _LOGGER.warning("cannot lock `%s`, so other processes may verify the same pair: %s", path, error)
                    break
        with lock or nullcontext():
            yield lock is not None

    def _raise_if_stopping(self, num_bytes: int) -> None:
        if self._stopping.is_set():
            raise _StoppedError

    def _tell(self, problem: TokenloomError) -> None:
        is_format, most = isinstance(problem, DatasetFormatError), _FLAG_BYTES // 20  # in characters of at most 6 bytes
        data = json.dumps([is_format, problem.message[:most], problem.hint and problem.hint[:most]]).encode()
        self._flag[1 : 1 + len(data)] = data
        self._flag[0] = 1  # set last, when the text is complete

    def _stop(self) -> None:
        self._stopping.set()
        if (thread := self._thread) is not None and self._owner == os.getpid():
            thread.join(_PATIENCE_AT_EXIT_SECONDS)


_VERIFICATIONS: dict[str, Verification] = {}


def verification(folder: str, pairs: Mapping[str, ObjectStorageSettings | None] | None = None) -> Verification:
    """Returns this process's `Verification` with results in `folder`; adds `pairs` to the pairs to check."""
    if (found := _VERIFICATIONS.get(folder)) is None:
        found = _VERIFICATIONS.setdefault(folder, Verification(folder))
    for prefix, settings in (pairs or {}).items():
        found.add(prefix, settings)
    return found


def _facts_of(dataset: IndexedDataset) -> PairFacts | None:
    """Returns the facts in the manifest; None if the manifest is missing or damaged (the check reports the damage)."""
    with suppress(DatasetFormatError):
        return None if (manifest := manifest_of(dataset)) is None else manifest.pair
    return None


def _identity_of(dataset: IndexedDataset, facts: PairFacts | None) -> str:
    """Returns the versions and checksums of all files of a dataset as JSON; stores without etags need the checksums."""
    paths, prefix = [section.path for section in dataset.sections], dataset.path_prefix
    paths += [idx_path(prefix), manifest_path(prefix), columns_path(prefix)]
    paths += [column_path(prefix, name) for name in recorded_columns(prefix)]
    states = {path if is_remote(path) else os.path.abspath(path): _state_of(path, dataset) for path in paths}
    files = [] if facts is None else [facts.tokens, facts.index]
    return json.dumps([_VERSION, states, [[each.num_bytes, each.crc32] for each in files]], sort_keys=True)


def _state_of(path: str, dataset: IndexedDataset) -> list[Any] | None:
    try:
        if is_remote(path):
            version = RemoteFile(path, dataset.object_storage).version
            return [version.num_bytes, version.etag]
        return list(version_of(path)[:5])
    except StorageError as error:
        if is_missing(error):
            return None
        raise


def _read_result(path: str, identity: str) -> dict[str, Any] | None:
    """Returns the stored result at `path`; None if the result is missing, unreadable or has another identity."""
    with suppress(OSError, UnusableJsonError):
        record = read_json(path)
        if isinstance(record, dict) and record.get("identity") == identity and "problem" in record:
            return record
    return None
