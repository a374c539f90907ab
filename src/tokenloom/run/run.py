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

# Modules that a start does not need are imported at their use: 0.1 s, half of a start.

_POSITIONS_AT_ONCE = 1 << 16
"""Positions that are traced together."""


class Run(HasFacts):
    """The data of a training run, from its first sample to its last, in a computed order.

    People write `run.toml`; `run.lock`, with the exact data, is written by `tokenloom run lock`, or when a run without
    one is opened. The tokens of a position are arithmetic over the lock: no index is built, and opening reads these two
    files alone. Positions depend neither on ranks nor on batch sizes. With `order = "megatron"` the builder builds and
    caches the order, and its index answers questions.

    Methods raise `ConfigError` for a position or document that the run does not have, and for questions that the
    reference's order cannot answer; `DatasetFormatError` or `DatasetNotFoundError` if data changed since the lock.

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
        lock: the lock.
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
            message = f"`path_to_cache` has no effect for `{path}`, whose order is computed"
            raise ConfigError(message, hint="leave it out")

    def facts(self) -> dict[str, Any]:
        """Returns the facts of the lock; see `HasFacts`."""
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
            tokenizer: tokenizer to use instead of that of `run.toml`, which is loaded only if texts are needed.
            mmap, object_storage, allow_tokenizer_mismatch, allow_data_mismatch: see `Reading`.
            path_to_cache: folder for the index arrays of `order = "megatron"`; None for beside the data.

        Warns:
            CutShortWarning: the run ends before its stages do.

        Raises:
            ConfigError: `run.toml` is wrong, or was changed since it was locked; the lock is damaged, edited, or newer;
                or `path_to_cache` has no effect.
            DatasetNotFoundError: there is no such file, or a run without a lock lacks data.
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
            raise DatasetNotFoundError(f"no file `{path}`", hint="write a run, or make one with `tokenloom run init`")
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
        """The order as a function with an inverse."""
        if self._stored is not None:
            message = 'the order of this run is stored (`order = "megatron"`), not computed'
            raise ConfigError(message, hint="write `order = 1` for an order that is computed, and can change")
        return Timeline(self.lock)

    @property
    def identity(self) -> str:
        """A SHA-256 in hex of seed and first data, which stays while the run changes and goes on."""
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
        """Returns a SHA-256 in hex of all that decides the samples before a position, and of nothing else."""
        return order_digest(self.lock, position) if self._stored is None else self._stored.digest(position)

    def place(self, position: int) -> Place:
        """Returns source and window of a position; opens nothing."""
        return place_at(self.timeline, position)

    def dataset(self) -> Any:
        """Returns the samples of all positions as a map-style dataset, a `RunDataset`.

        With `order = "megatron"` it is the dataset of `BlendedMegatronDatasetBuilder`, and all ranks must call this.
        """
        if self._stored is not None:
            return self._stored.dataset()
        return RunDataset(self.timeline, tokenizer=self.tokenizer, reading=self._reading)

    @cached_property
    def _asked(self) -> Any:  # kept, so that pairs stay open
        return self.dataset()

    def trace(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> SpanTable:
        """Returns the spans of documents at positions, a row each; reads no token.

        Pairs are opened when needed and stay open. `SpanTable.with_steps` and `with_origins` add step and rank, and the
        record of the input file; for held-out documents call `trace_dataset(run.holdout(), positions)`.

        Args:
            positions: integers[num_positions], in any order, repeats allowed.
        """
        from tokenloom.run.audit.trace import trace_dataset

        return trace_dataset(self._asked, positions) if self._stored is None else self._stored.trace(positions)

    def when(self, *documents: str, start: int = 0, stop: int | None = None) -> SpanTable:
        """Returns where documents are read, past and future, a row per span, in the order of positions.

        Costs 10 us for a document and a pass through a million, whatever the number of positions. Held-out documents
        have no rows; rows of denied ones are marked from the denial on.

        Args:
            documents: names such as `web:12345`, number 12,345 of source `web`, or `crawl/0007.jsonl:88`, a record.
            start, stop: the positions [start, stop); None for the end of the run.
        """
        from tokenloom.run.audit.source_origins import resolve_names

        names = [source.name for source in self.lock.sources]
        parsed = [parse_name(each, names) for each in documents]
        found = resolve_names(parsed, self.lock.sources, object_storage=self._reading.object_storage)
        return self.occurrences(dict(found.by_source), start=start, stop=stop)

    def occurrences(self, documents: Mapping[int, Documents], *, start: int = 0, stop: int | None = None) -> SpanTable:
        """Returns the same as `when`, for documents by number of their source."""
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
        """Returns held-out documents for validation: each window once, sources in proportion to their holdouts.

        Args:
            names: names of sources; none for all with a holdout.
            sequence_length: tokens of a sample; None for that of the first stage.
        """
        length = self.timeline.lock.segments[0].sequence_length if sequence_length is None else sequence_length
        held = holdout_lock(self.lock, names=names, sequence_length=length)
        return RunDataset(Timeline(held), tokenizer=self.tokenizer, reading=self._reading, held_out_of=self.lock)

    def plan(self) -> RunPlan:
        """Returns what the run reads of each source, and when, by arithmetic over the lock."""
        from tokenloom.run.plan import plan_of

        return plan_of(self.timeline.lock)

    def ledger(self, *, until: int | None = None, reads_data: bool = True) -> RunLedger:
        """Returns where the tokens of each source went before a position, per stage, and what filled the samples.

        Args:
            until: the position; None for the end of the run.
            reads_data: whether to read data if they decide which slots have loss; else these are not counted.
        """
        if (position := self.num_samples if until is None else until) is None:
            message = "the run has no end, so its ledger needs a position"
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
        """Returns samples and passes of each source before positions, exact, as arrays.

        Args:
            positions: integers[num_points], rising; None for up to 200 before `until`, and the starts of stages.
            until: the last of these; None for the end of the run.
        """
        from tokenloom.run.plan import computed_history, history_of

        read_before = partial(computed_history, self.timeline) if self._stored is None else self._stored.read_before
        return history_of(self.lock, read_before, positions, until=until)

    def __repr__(self) -> str:
        size = f"{len(self.lock.sources)} sources, num_samples={self.num_samples}"
        return f"Run({self.path!r}, id={self.identity[:16]}, {size})"
