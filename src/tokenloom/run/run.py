"""`Run`: the public entry point to a run, from `run.toml` and `run.lock`."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokenloom.errors import ConfigError, CutShortWarning, DatasetNotFoundError, OutputBusyError
from tokenloom.forks import cached_property
from tokenloom.progress import task, waiting_for
from tokenloom.rendering.card import HasFacts
from tokenloom.run.dataset import Place, Reading, RunDataset, RunTokenizer, lock_facts, place_at
from tokenloom.run.digest import check_position, order_digest, run_identity
from tokenloom.run.held_out import holdout_lock
from tokenloom.run.lock import Integers, RunLock, lock_path
from tokenloom.run.settings import CONVERSATIONS, located_tokenizer, parse_name, read_locked
from tokenloom.run.timeline import Timeline
from tokenloom.setting_types import checked_path
from tokenloom.storage.publishing import recover
from tokenloom.storage.settings import ObjectStorageSettings

if TYPE_CHECKING:
    from tokenloom.run.audit.ledger import RunLedger
    from tokenloom.run.audit.trace import SpanTable
    from tokenloom.run.plan import RunHistory, RunPlan
    from tokenloom.run.reference_order import ReferenceOrder

# Modules that training does not need are imported where they are used: this saves 0.1 s, half the time of a start.

_POSITIONS_AT_ONCE = 1 << 16  # positions traced at a time


class Run(HasFacts):
    """The data of a training run from its first sample to its last, in a computed order.

    Users write `run.toml`. `tokenloom run lock` writes `run.lock`, which records the exact data; `Run.open` writes a
    missing lock. The tokens at a position are computed from the lock: no index is built, and opening a run reads only
    these two files. Positions do not depend on ranks or batch sizes. With `order = "megatron"` the dataset builder
    instead builds and caches the order as an index.

    Methods raise `ConfigError` if a position or document does not exist, or if the reference's order does not support
    the method. They raise `DatasetFormatError` or `DatasetNotFoundError` if data changed after locking.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tokenloom import IndexedDatasetBuilder, Run
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("web", "code"):
        ...     with IndexedDatasetBuilder(f"{folder}/{name}.bin", dtype=np.uint16) as builder:
        ...         for first in range(20):
        ...             builder.add_document(list(range(first, first + 30)), [30])
        ...         builder.finalize(f"{folder}/{name}.idx")
        >>> with open(f"{folder}/run.toml", "w") as stream:
        ...     _ = stream.write('''
        ... order = 1
        ... seed = 1234
        ... [sources]
        ... web = "web"
        ... code = "code"
        ... [[stages]]
        ... sequence_length = 64
        ... samples = 8
        ... weights = { web = 3, code = 1 }
        ... ''')
        >>> dataset = Run.open(f"{folder}/run.toml").dataset()
        >>> len(dataset), sorted(int(dataset.sample(k)["dataset_id"]) for k in range(8))
        (8, [0, 0, 0, 0, 0, 0, 1, 1])

    Attributes:
        path: path of `run.toml`.
        lock: contents of `run.lock`.
    """

    def __init__(
        self,
        path: str,
        lock: RunLock,
        *,
        tokenizer: Any = None,
        reading: Reading | None = None,
        path_to_cache: str | None = None,
    ) -> None:
        self.path = path
        self.lock = lock
        self._reading = Reading() if reading is None else reading
        self._tokenizer = tokenizer
        self._stored: ReferenceOrder | None = None
        if lock.is_megatron:
            from tokenloom.run.reference_order import ReferenceOrder

            self._stored = ReferenceOrder(
                lock, path=path, tokenizer=self.tokenizer, reading=self._reading, path_to_cache=path_to_cache
            )
        elif path_to_cache is not None:
            raise ConfigError(f"`path_to_cache` has no effect: the order of `{path}` is computed", hint="remove it")

    def facts(self) -> dict[str, Any]:
        """Returns a summary of the lock for display; see `HasFacts`."""
        return {"path": self.path} | lock_facts(self.lock)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] = "run.toml",
        *,
        tokenizer: Any = None,
        mmap: bool = True,
        object_storage: ObjectStorageSettings | None = None,
        allow_tokenizer_mismatch: bool = False,
        allow_data_mismatch: bool = False,
        path_to_cache: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Opens a run; writes the lock first if it is missing.

        Args:
            path: path of `run.toml`; the lock is stored beside this file.
            tokenizer: tokenizer to use; None for that of `run.toml`, which is loaded only if text is needed.
            mmap, object_storage, allow_tokenizer_mismatch, allow_data_mismatch: see `Reading`.
            path_to_cache: folder for the index arrays of `order = "megatron"`; None for the folder of the data.

        Warns:
            CutShortWarning: the run ends before its stages do.

        Raises:
            ConfigError: `run.toml` is invalid or changed after locking; the lock is damaged, edited or too new; or
                `path_to_cache` has no effect.
            DatasetNotFoundError: `run.toml` does not exist, or data of a run without a lock do not exist.
        """
        path = checked_path("path", path, example="the path of a `run.toml`")
        reading = Reading(
            mmap=mmap,
            object_storage=object_storage,
            allow_tokenizer_mismatch=allow_tokenizer_mismatch,
            allow_data_mismatch=allow_data_mismatch,
        )
        recover(lock_path(path))
        if not os.path.exists(path):
            raise DatasetNotFoundError(f"no file `{path}`", hint="create it with `tokenloom run init`")
        with waiting_for(f"`{lock_path(path)}` from another process"):
            while (lock := read_locked(path)) is None:
                from tokenloom.run.locking import lock_run

                try:
                    lock_run(path, reading=reading)
                except OutputBusyError:  # another rank may be locking the run
                    time.sleep(0.05)
        if (early := lock.early_end) is not None:
            warnings.warn(early, CutShortWarning, stacklevel=2)
        cache = None if path_to_cache is None else os.fspath(path_to_cache)
        return cls(path, lock, tokenizer=tokenizer, reading=reading, path_to_cache=cache)

    @cached_property
    def timeline(self) -> Timeline:
        """The order as a function from positions to windows, with its inverse."""
        if self._stored is not None:
            message = 'the order of this run is stored, not computed: `order = "megatron"`'
            raise ConfigError(message, hint="the called method needs a computed order: write `order = 1` in run.toml")
        return Timeline(self.lock)

    @property
    def identity(self) -> str:
        """SHA-256 in hex of order version, seed and the first stage's initial data; no amendment changes it."""
        return run_identity(self.lock)

    @property
    def num_samples(self) -> int | None:
        """Number of positions; None if the last stage is endless."""
        return self.lock.num_samples

    @property
    def tokenizer(self) -> Any:
        """The tokenizer passed to `open`; if none was passed, that of `run.toml`, loaded when text is needed."""
        if self._tokenizer is not None:
            return self._tokenizer
        locked = self.lock.tokenizer
        located = None if locked is None else located_tokenizer(locked.name, os.path.dirname(self.path))
        return RunTokenizer(locked, located)

    def digest(self, position: int) -> str:
        """Returns the SHA-256 in hex of all that determines the samples before `position`."""
        return order_digest(self.lock, position) if self._stored is None else self._stored.digest(position)

    def place(self, position: int) -> Place:
        """Returns the stage, source and window at a position, without opening data."""
        return place_at(self.timeline, position)

    def dataset(self) -> Any:
        """Returns the samples of all positions as a map-style dataset.

        The dataset is a `RunDataset`. With `order = "megatron"` it is the dataset of `BlendedMegatronDatasetBuilder`,
        and all ranks must call this method.
        """
        if self._stored is not None:
            return self._stored.dataset()
        return RunDataset(self.timeline, tokenizer=self.tokenizer, reading=self._reading)

    @cached_property
    def _dataset(self) -> Any:  # cached so that pairs stay open
        return self.dataset()

    def trace(self, positions: Integers) -> SpanTable:
        """Returns a table of the document spans at positions, one row per span; reads no tokens.

        Pairs are opened on demand and stay open. `SpanTable.with_steps` adds steps and ranks; `SpanTable.with_origins`
        adds input files and records. For held-out documents call `trace_dataset(run.holdout(), positions)`.

        Args:
            positions: integers[num_positions], in any order, repeats allowed.
        """
        from tokenloom.run.audit.trace import trace_dataset

        return trace_dataset(self._dataset, positions) if self._stored is None else self._stored.trace(positions)

    def when(self, *documents: str, start: int = 0, stop: int | None = None) -> SpanTable:
        """Returns a table of all spans of documents, past and future, in ascending order of positions.

        Looking up one of a million documents of a source takes about 10 us per pass over the source.
        Held-out documents have no rows. Column `denied` is True for denied documents at positions from the denial on.

        Args:
            documents: names such as `web:12345` (document 12,345 of source `web`) or `crawl/0007.jsonl:88` (a record).
            start, stop: the range of positions, [start, stop); without `stop`, the range ends with the run.
        """
        from tokenloom.run.audit.source_origins import resolve_names

        names = [source.name for source in self.lock.sources]
        parsed = [parse_name(each, names) for each in documents]
        found = resolve_names(parsed, self.lock.sources, object_storage=self._reading.object_storage)
        return self.occurrences(dict(found.by_source), start=start, stop=stop)

    def occurrences(self, documents: Mapping[int, Integers], *, start: int = 0, stop: int | None = None) -> SpanTable:
        """Returns the same table as `when`; `documents` maps a source's index to indices of its documents."""
        from tokenloom.run.audit.trace import find_spans, joined_tables, positions_reading

        tables = [self.trace(())]
        find = partial(positions_reading, self._dataset) if self._stored is None else self._stored.positions_reading
        for source, wanted in documents.items():
            if self._stored is None and self.lock.dataset not in CONVERSATIONS:
                tables.append(find_spans(self._dataset, source, wanted, start=start, stop=stop))
                continue
            positions = find(source, wanted, start=start, stop=stop)
            for at in range(0, len(positions), _POSITIONS_AT_ONCE):
                table = self.trace(positions[at : at + _POSITIONS_AT_ONCE])
                tables.append(table.take((table.sources == source) & np.isin(table.documents, wanted)))
        return joined_tables(tables)

    def holdout(self, *names: str, sequence_length: int | None = None) -> RunDataset:
        """Returns the held-out documents as a validation dataset.

        Each window occurs once. Sources are mixed in proportion to their held-out windows.

        Args:
            names: names of sources; empty for all sources with a holdout.
            sequence_length: tokens per sample; None for the sequence length of the first stage.
        """
        length = self.timeline.lock.segments[0].sequence_length if sequence_length is None else sequence_length
        held = holdout_lock(self.lock, names=names, sequence_length=length)
        return RunDataset(Timeline(held), tokenizer=self.tokenizer, reading=self._reading, held_out_of=self.lock)

    def plan(self) -> RunPlan:
        """Returns how much the run reads of each source and at which positions, computed from the lock."""
        from tokenloom.run.plan import plan_of

        return plan_of(self.timeline.lock)

    def ledger(self, *, until: int | None = None, reads_data: bool = True) -> RunLedger:
        """Counts, per stage and source, what became of the tokens before a position, and what filled the samples.

        Args:
            until: the position; None for the end of the run.
            reads_data: whether to read data if loss depends on tokens; if False, slots of such samples are not counted.
        """
        if (position := self.num_samples if until is None else until) is None:
            raise ConfigError("the run is endless, so its ledger needs an end", hint="pass a position or a step")
        check_position(self.lock, position)
        with task("ledger", unit="samples") as advance:
            report = advance if reads_data else None
            if self._stored is not None:
                return self._stored.ledger(position, report)
            from tokenloom.run.audit.ledger import LedgerCount

            return LedgerCount(self.dataset(), report).ledger(position)

    def history(self, positions: Integers | None = None, *, until: int | None = None) -> RunHistory:
        """Returns the exact numbers of samples and passes of each source that are read before each of `positions`.

        Args:
            positions: integers[num_points], ascending; None for stage starts, `until`, and at most 200 other positions.
            until: last position if `positions` is None; by default the end of the run.
        """
        from tokenloom.run.plan import computed_history, history_of

        read_before = partial(computed_history, self.timeline) if self._stored is None else self._stored.read_before
        return history_of(self.lock, read_before, positions, until=until)

    def __repr__(self) -> str:
        size = f"{len(self.lock.sources)} sources, num_samples={self.num_samples}"
        return f"Run({self.path!r}, id={self.identity[:16]}, {size})"
