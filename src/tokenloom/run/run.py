"""A run: what `run.toml` asks for, as `run.lock` holds it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, CutShortWarning, DatasetNotFoundError, OutputBusyError
from tokenloom.forks import cached_property
from tokenloom.progress import task, waiting_for
from tokenloom.rendering.card import HasFacts
from tokenloom.run.dataset import Place, Reading, RunDataset, RunTokenizer, lock_facts, place_at
from tokenloom.run.digest import check_position, order_digest, run_identity
from tokenloom.run.held_out import holdout_lock
from tokenloom.run.lock import RunLock, lock_path
from tokenloom.run.settings import CONVERSATIONS, located_tokenizer, parse_name, read_locked
from tokenloom.run.timeline import Timeline
from tokenloom.setting_types import checked_path
from tokenloom.storage.publishing import recover
from tokenloom.storage.settings import ObjectStorageSettings

if TYPE_CHECKING:
    from tokenloom.run.audit.ledger import RunLedger
    from tokenloom.run.audit.trace import Documents, SpanTable
    from tokenloom.run.plan import RunHistory, RunPlan
    from tokenloom.run.stored import StoredOrder

# What a start does not need is imported where it is needed: it takes as long as all else, 0.1 s.

_POSITIONS_AT_ONCE = 1 << 16
"""Positions whose spans are looked at together."""


class Run(HasFacts):
    """The data of a training run, from its first sample to its last, in an order that is computed.

    `run.toml` says what the run reads, and people write it; `run.lock` holds exactly which data that is, and is written
    by `tokenloom run lock`, or when a run without a lock is opened first. Which tokens stand at a position is
    arithmetic over the lock: no index is built or stored, and opening reads these two files alone. Positions follow
    neither from ranks nor from batch sizes. With `order = "megatron"` the order is built and cached by the builder, and
    questions are answered from its index.

    Methods raise `ConfigError` for a position or document that the run does not have, and for what the reference's
    order cannot tell; and `DatasetFormatError` or `DatasetNotFoundError` where data are not what was locked.

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
        lock: all that decides which tokens are read.
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
        self._stored: StoredOrder | None = None
        if lock.is_megatron:
            from tokenloom.run.stored import StoredOrder

            self._stored = StoredOrder(
                lock, path=path, tokenizer=self.tokenizer, reading=self._reading, path_to_cache=path_to_cache
            )
        elif path_to_cache is not None:
            message = f"expected no `path_to_cache` for `{path}`, found {path_to_cache!r}"
            raise ConfigError(message, hint="leave it out: the order of this run is computed, and nothing is cached")

    def facts(self) -> dict[str, Any]:
        """Returns what the lock says; see `HasFacts`."""
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
        """Returns a run. One without a lock is locked first.

        Args:
            path: path of `run.toml`; its lock lies beside it.
            tokenizer: tokenizer to use instead of the one that `run.toml` names, which is loaded only where texts are
                needed, as for fill in the middle.
            mmap, object_storage, allow_tokenizer_mismatch, allow_data_mismatch: how data are read, see `Reading`.
            path_to_cache: folder for the index arrays of `order = "megatron"`; None for beside the data.

        Warns:
            CutShortWarning: the run ends before its stages do.

        Raises:
            ConfigError: `run.toml` is wrong, or was changed since it was locked; or the order is computed, and there is
                nothing to cache.
            DatasetFormatError: the lock is damaged, was edited by hand, or was written by something newer.
            DatasetNotFoundError: there is no such file, or the run has no lock, and data that it needs is not there.
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
            message = f"expected a run at `{path}`, found no such file"
            raise DatasetNotFoundError(message, hint="write one, or make one with `tokenloom run init`")
        with waiting_for(f"`{lock_path(path)}`, which is being written"):
            while (lock := read_locked(path)) is None:
                from tokenloom.run.locking import lock_run

                try:
                    lock_run(path, reading=reading)
                except OutputBusyError:  # all ranks of a job may be here at once
                    time.sleep(0.05)
        if (early := lock.early_end) is not None:
            warnings.warn(early, CutShortWarning, stacklevel=2)
        cache = None if path_to_cache is None else os.fspath(path_to_cache)
        return cls(path, lock, tokenizer=tokenizer, reading=reading, path_to_cache=cache)

    @cached_property
    def timeline(self) -> Timeline:
        """What stands at which position, and at which position what stands."""
        if self._stored is not None:
            message = 'expected a run whose order is computed, found `order = "megatron"`'
            hint = "that order is built and cached, and cannot change; write `order = 1` for that"
            raise ConfigError(message, hint=hint)
        return Timeline(self.lock)

    @property
    def identity(self) -> str:
        """What the run reads from its first position on, as a SHA-256 in hex: the same for as long as it only grows."""
        return run_identity(self.lock)

    @property
    def num_samples(self) -> int | None:
        """Positions of the run; None if its last stage has no end."""
        return self.lock.num_samples

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the run, as its samples see it."""
        if self._tokenizer is not None:
            return self._tokenizer
        locked = self.lock.tokenizer
        located = None if locked is None else located_tokenizer(locked.name, os.path.dirname(self.path))
        return RunTokenizer(locked, located)

    def digest(self, position: int) -> str:
        """Returns a SHA-256, in hex, of all that decides what stands before a position, and of nothing else."""
        return order_digest(self.lock, position) if self._stored is None else self._stored.digest(position)

    def place(self, position: int) -> Place:
        """Returns what stands at a position; opens nothing."""
        return place_at(self.timeline, position)

    def dataset(self) -> Any:
        """Returns the samples of all positions, as a map-style dataset: a `RunDataset`.

        With `order = "megatron"` it is what `BlendedMegatronDatasetBuilder` returns, and all ranks have to call this.
        """
        if self._stored is not None:
            return self._stored.dataset()
        return RunDataset(self.timeline, tokenizer=self.tokenizer, reading=self._reading)

    @cached_property
    def _asked(self) -> Any:  # again and again, so that pairs stay open
        return self.dataset()

    def trace(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> SpanTable:
        """Returns which tokens of which documents stand at positions, a row per span; reads no token.

        Pairs are opened when they are first needed and stay open. `SpanTable.with_steps` and `with_origins` add step
        and rank, and the record of the input file that a document was made of. What is held out is traced by
        `trace_dataset(run.holdout(), positions)`.

        Args:
            positions: integers[num_positions], in any order, repeats allowed.
        """
        from tokenloom.run.audit.trace import trace_dataset

        return trace_dataset(self._asked, positions) if self._stored is None else self._stored.trace(positions)

    def when(self, *documents: str, start: int = 0, stop: int | None = None) -> SpanTable:
        """Returns where documents are read, past and to come, a row per span, in the order of positions.

        By arithmetic: 10 us for a document and a pass through a million, of any number of positions. Documents that
        are held out have no rows; from where they are denied, rows are marked.

        Args:
            documents: their names, such as `web:12345`, number 12,345 of source `web`; or records of input files such
                as `crawl/0007.jsonl:88`.
            start: the first position.
            stop: one past the last; None for the end of the run.
        """
        from tokenloom.run.audit.source_origins import resolve_names

        names = [source.name for source in self.lock.sources]
        parsed = [parse_name(each, names) for each in documents]
        found = resolve_names(parsed, self.lock.sources, object_storage=self._reading.object_storage)
        return self.occurrences(dict(found.by_source), start=start, stop=stop)

    def occurrences(self, documents: Mapping[int, Documents], *, start: int = 0, stop: int | None = None) -> SpanTable:
        """Returns the same as `when` for numbers of documents, by number of their source."""
        from tokenloom.run.audit.trace import find_spans, joined_tables, positions_reading

        tables = [self.trace(())]
        find = partial(positions_reading, self._asked) if self._stored is None else self._stored.positions_reading
        for source, wanted in documents.items():
            if self._stored is None and self.lock.dataset not in CONVERSATIONS:
                tables.append(find_spans(self._asked, source, wanted, start=start, stop=stop))
                continue
            positions = find(source, wanted, start=start, stop=stop)
            for at in range(0, len(positions), _POSITIONS_AT_ONCE):
                table = self.trace(positions[at : at + _POSITIONS_AT_ONCE])
                tables.append(table.take((table.sources == source) & np.isin(table.documents, wanted)))
        return joined_tables(tables)

    def holdout(self, *names: str, sequence_length: int | None = None) -> RunDataset:
        """Returns what is held out, for validation: each window once, of sources in proportion to what they hold out.

        Args:
            names: names of sources; none for all that hold something out.
            sequence_length: tokens of a sample; None for that of the first stage.
        """
        length = self.timeline.lock.segments[0].sequence_length if sequence_length is None else sequence_length
        held = holdout_lock(self.lock, names=names, sequence_length=length)
        return RunDataset(Timeline(held), tokenizer=self.tokenizer, reading=self._reading, held_out_of=self.lock)

    def plan(self) -> RunPlan:
        """Returns what the run will read of each source, and when: arithmetic over the lock."""
        from tokenloom.run.plan import plan_of

        return plan_of(self.timeline.lock)

    def ledger(self, *, until: int | None = None, reads_data: bool = True) -> RunLedger:
        """Returns where the tokens of each source went before a position, per stage, and what filled the samples.

        Args:
            until: the position; None for the whole of a run that has an end.
            reads_data: whether to look into the data where they decide what has loss; else that is not counted.
        """
        position = self.num_samples if until is None else until
        if position is None:
            message = "expected a position up to which the ledger goes, of a run without an end, found none"
            raise ConfigError(message, hint="name one, as a step or a position")
        check_position(self.lock, position)
        with task("ledger", unit="samples") as advance:
            report = advance if reads_data else None
            if self._stored is not None:
                return self._stored.ledger(position, report)
            from tokenloom.run.audit.ledger import LedgerCount

            return LedgerCount(self.dataset(), report).ledger(position)

    def history(
        self, positions: Sequence[int] | NDArray[np.integer[Any]] | None = None, *, until: int | None = None
    ) -> RunHistory:
        """Returns samples and passes of each source before positions, exact, as arrays: what pictures are drawn from.

        Args:
            positions: integers[num_points], rising; None for up to 200 up to `until`, and the starts of stages.
            until: the last of these; None for the end of the run.
        """
        from tokenloom.run.plan import computed_history, history_of

        read_before = partial(computed_history, self.timeline) if self._stored is None else self._stored.read_before
        return history_of(self.lock, read_before, positions, until=until)

    def __repr__(self) -> str:
        size = f"{len(self.lock.sources)} sources, num_samples={self.num_samples}"
        return f"Run({self.path!r}, id={self.identity[:16]}, {size})"
