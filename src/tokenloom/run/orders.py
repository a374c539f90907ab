"""What is asked of the order of a run, whichever it is; and the order that is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tokenloom.errors import ConfigError
from tokenloom.forks import cached_property
from tokenloom.run.dataset import RunDataset
from tokenloom.run.digest import order_digest
from tokenloom.run.lock import RunLock
from tokenloom.run.members import Reading
from tokenloom.run.take_maps import Int64s
from tokenloom.run.timeline import Timeline

if TYPE_CHECKING:
    from tokenloom.run.audit.ledger import Report, RunLedger
    from tokenloom.run.audit.occurrences import Documents, OccurrenceSearch
    from tokenloom.run.audit.span_table import SpanTable
    from tokenloom.run.audit.trace import Asked
    from tokenloom.run.history import Float64s

# What a start does not need is imported where it is needed: it takes as long as all else, 0.1 s.


class RunOrder(Protocol):
    """The order of a run, which its samples and all questions about them go through; `Run` says what is asked."""

    @property
    def timeline(self) -> Timeline:
        """What stands at which position, by arithmetic."""

    def digest(self, position: int) -> str:
        """Returns a digest of what decides the positions before one."""

    def dataset(self) -> Any:
        """Returns the samples of all positions."""

    def trace(self, positions: Asked) -> SpanTable:
        """Returns the spans at positions."""

    def occurrences(self, documents: Mapping[int, Documents], *, start: int, stop: int | None) -> SpanTable:
        """Returns the spans of documents, by number of their source, at positions [start, stop)."""

    def read_before(self, points: Int64s) -> tuple[Int64s, Float64s]:
        """Returns samples and passes of each source before positions: [num_points, num_sources] each."""

    def ledger(self, position: int, *, reads_data: bool, report: Report) -> RunLedger:
        """Returns where the tokens went before a position."""


class ComputedOrder:
    """The order that is computed from the lock: nothing is built or stored.

    Args:
        lock: the run.
        tokenizer: the tokenizer of the run.
        reading: how to read its data.
    """

    def __init__(self, lock: RunLock, *, tokenizer: Any, reading: Reading) -> None:
        self._lock = lock
        self._tokenizer = tokenizer
        self._reading = reading

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline(self._lock)

    def digest(self, position: int) -> str:
        return order_digest(self._lock, position)

    def dataset(self) -> RunDataset:
        return RunDataset(self.timeline, tokenizer=self._tokenizer, reading=self._reading)

    @cached_property
    def _asked(self) -> RunDataset:
        """The dataset of what is asked again and again, so that pairs stay open."""
        return self.dataset()

    @cached_property
    def _search(self) -> OccurrenceSearch:
        """What finds documents; its pairs stay open, too."""
        from tokenloom.run.audit.occurrences import OccurrenceSearch

        return OccurrenceSearch(self.timeline, tokenizer=self._tokenizer, reading=self._reading)

    def trace(self, positions: Asked) -> SpanTable:
        from tokenloom.run.audit.trace import trace_dataset

        return trace_dataset(self._asked, positions)

    def occurrences(self, documents: Mapping[int, Documents], *, start: int, stop: int | None) -> SpanTable:
        from tokenloom.run.audit.span_table import joined_tables

        asked = (documents or {0: ()}).items()
        return joined_tables([self._search.find(number, each, start=start, stop=stop) for number, each in asked])

    def read_before(self, points: Int64s) -> tuple[Int64s, Float64s]:
        from tokenloom.run.history import computed_history

        return computed_history(self.timeline, points)

    def ledger(self, position: int, *, reads_data: bool, report: Report) -> RunLedger:
        from tokenloom.run.audit.ledger import computed_ledger

        return computed_ledger(self.dataset(), position, reads_data=reads_data, report=report)


def order_of(lock: RunLock, *, path: str, tokenizer: Any, reading: Reading, path_to_cache: str | None) -> RunOrder:
    """Returns the order of a run."""
    if lock.is_megatron:
        from tokenloom.run.stored import StoredOrder

        return StoredOrder(lock, path=path, tokenizer=tokenizer, reading=reading, path_to_cache=path_to_cache)
    if path_to_cache is not None:
        message = f"expected no `path_to_cache` for `{path}`, found {path_to_cache!r}"
        raise ConfigError(message, hint="leave it out: the order of this run is computed, and nothing is cached")
    return ComputedOrder(lock, tokenizer=tokenizer, reading=reading)
