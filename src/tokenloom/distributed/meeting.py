"""Meetings of all ranks, which fail on all together and never leave one waiting.

Every rank reports to one rank, which answers each; `seat` says how, `link` carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from tokenloom.distributed.link import error_of, link_of
from tokenloom.distributed.ranks import Ranks, name_rank, name_ranks
from tokenloom.distributed.seat import Record
from tokenloom.errors import BuildError, DivergenceError, TokenloomError

T = TypeVar("T")
Decision = Callable[[list[Record]], list[Record]]
"""Makes the answers from the reports, both by rank, or raises what all ranks are to raise."""

_TEXT_CHARACTERS = 2000


class Attempt(Generic[T]):
    """A call, and what came of it: a result or an exception."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.result: T | None = None
        self.error: Exception | None = None
        try:
            self.result = call()
        except Exception as error:  # noqa: BLE001  it is raised again, on every rank
            self.error = error

    @property
    def record(self) -> Record:
        """What a report says about it: nothing if it went well."""
        if self.error is None:
            return {}
        error = self.error
        text = error.message if isinstance(error, TokenloomError) else str(error)
        hint = error.hint if isinstance(error, TokenloomError) else None
        return {"error": f"{type(error).__name__}: {text}"[:_TEXT_CHARACTERS], "hint": hint and hint[:500]}


def all_well(step: str) -> Decision:
    """Returns the decision that fails all ranks with the cause of the lowest rank that failed, if any did.

    An error that "follows" from that of another rank counts only where there is no other.
    """

    def decide(records: list[Record]) -> list[Record]:
        failed = [rank for rank, record in enumerate(records) if "error" in record]
        failed = [rank for rank in failed if "follows" not in records[rank]] or failed
        if failed:
            first = records[failed[0]]
            others = f" (and {name_ranks(failed[1:])} as well)" if len(failed) > 1 else ""
            message = f"{name_rank(failed[0], first['host'])} failed in {step}{others}: {first['error']}"
            raise BuildError(message, hint=first["hint"])
        return [{} for _ in records]

    return decide


def _same_step(records: Sequence[Record]) -> None:
    steps: dict[str, list[int]] = {}
    for rank, record in enumerate(records):
        steps.setdefault(record["step"], []).append(rank)
    if len(steps) > 1:
        found = ", ".join(f"{name_ranks(ranks)} at {step!r}" for step, ranks in list(steps.items())[:8])
        message = f"ranks are at different steps: {found}"
        raise DivergenceError(message, hint="all ranks must build the same datasets in the same order")


class Meeting:
    """Brings the reports of all ranks to one of them, which answers each."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._link = link_of(ranks)
        self.lost_a_rank: bool = False
        """Whether the last report failed because a rank died or was silent."""

    @contextmanager
    def attended(self, step: str, *, on_verdict: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Takes part in a step, within a `with` statement: others may wait for this rank, and it for them.

        Args:
            step: says in messages what is done.
            on_verdict: called from another thread where meetings end before the step does, because a rank is lost.

        Raises:
            BuildError: meetings of these ranks have ended before.
        """
        with self._link.attended(step, on_verdict):
            try:
                yield
            except (BuildError, DivergenceError):
                raise
            except BaseException:  # others must not wait for a rank that was interrupted
                self._link.close()
                raise

    def begin(self, step: str) -> None:
        """Says what this rank does from now on."""
        self._link.begin(step)

    def report(self, step: str, record: Record, decide: Decision, attempt: Attempt[Any] | None = None) -> Record:
        """Returns the answer to this rank's report, or raises what `decide` raised, on all ranks alike.

        Args:
            step: must be the same on all ranks.
            record: what this rank reports.
            decide: makes the answers from the reports, by rank; called on the collecting rank only.
            attempt: what this rank has done; its error is reported, and is the cause of the error that comes back.
        """
        self._link.begin(step)
        answer = self._link.report(report_of(step, self._ranks.host, record, attempt))
        if answer is None:
            reports = self._link.reports()
            answer = reports if isinstance(reports, dict) else self._link.answer_all(decided(reports, decide))
        self.lost_a_rank = "lost" in answer
        if "failure" in answer:
            raise error_of(answer) from (None if attempt is None else attempt.error)
        return answer


def report_of(step: str, host: str, record: Record, attempt: Attempt[Any] | None) -> Record:
    """Returns all that a rank reports."""
    return {"step": step, "host": host, **record, **({} if attempt is None else attempt.record)}


def decided(reports: list[Record], decide: Decision) -> list[Record]:
    """Returns the answers to the reports of all ranks; a decision to fail is one to each."""
    try:
        _same_step(reports)
        return decide(reports)
    except (BuildError, DivergenceError) as error:
        failure = {"failure": type(error).__name__, "message": error.message, "hint": error.hint}
        return [failure] * len(reports)
