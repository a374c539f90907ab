"""Steps in which ranks compare or talk to each other: they end well on all ranks, or fail on all with one cause."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tokenloom.distributed.collectives import ConnectionLostError, ConsequenceError, break_off_all
from tokenloom.distributed.meeting import Attempt, all_well, meeting_of
from tokenloom.distributed.membership import Decision, Record, holders_of
from tokenloom.distributed.ranks import current_ranks, name_ranks
from tokenloom.errors import BuildError, DivergenceError

T = TypeVar("T")


def agree(name: str, value: str | Callable[[], str] | None) -> None:
    """Compares a value, such as a digest, between all ranks; without `torch.distributed` there is nothing to compare.

    Args:
        name: says in messages what the value is.
        value: this rank's value, or a function that computes it, whose failure then reaches every rank. None on a
            rank that has none; it takes part without being compared.

    Raises:
        DivergenceError: the values differ; the message says which ranks hold which.
        BuildError: a rank failed to compute its value, or died.
    """
    compute: Callable[[], str | None] = value if callable(value) else lambda: value
    do_together(f"comparing {name}", compute, compare=lambda found: found, name=name)


def do_together(
    step: str,
    work: Callable[[], T],
    *,
    groups: Sequence[Any] = (),
    breaks: tuple[type[Exception], ...] = (Exception,),
    compare: Callable[[T], str | None] = lambda _: None,
    name: str | None = None,
) -> T:
    """Returns what `work` returns on this rank, after it returned on every rank of `torch.distributed`.

    If it raises on one rank, or a rank dies, all ranks raise. For this a rank that fails closes its connections in
    `groups`, so that whoever waits for it in a collective fails too, and closes its own; then all meet, and the first
    cause is told to each.

    Args:
        step: says in messages what is done.
        work: this rank's part, which may use collectives of `groups`.
        groups: the process groups of those collectives; None stands for this process alone.
        breaks: the errors after which other ranks may wait for this one in a collective; a lost connection is one.
        compare: what must be the same on all ranks, from the result; None where there is nothing to compare.
        name: says in messages what that is.

    Raises:
        BuildError: `work` failed on some rank, or a rank died. Without `torch.distributed`, the error of `work` itself.
        DivergenceError: the ranks hold different values, or are at different steps.
    """
    ranks = current_ranks()
    if ranks is None or ranks.world_size == 1:
        return work()
    meeting = meeting_of(ranks)
    with meeting.attended(step, on_verdict=lambda: break_off_all(groups)):
        attempt = Attempt(work)
        if isinstance(attempt.error, (*breaks, ConnectionLostError)):
            break_off_all(groups)
        record: Record = {"follows": True} if isinstance(attempt.error, ConsequenceError) else {}
        value = None if attempt.error is not None else compare(attempt.result)  # type: ignore[arg-type]
        if value is not None:
            digest = hashlib.sha256(value.encode(errors="backslashreplace")).hexdigest()
            record = {"value": value[:100], "digest": digest}
        try:
            meeting.report(step, record, _all_equal(step, name or f"what they hold after {step}"), attempt)
        except BuildError:
            if meeting.lost_a_rank:
                break_off_all(groups)
            raise
    return attempt.result  # type: ignore[return-value]


def _all_equal(step: str, name: str) -> Decision:
    """Returns the decision that fails all ranks if one failed, or if the values that they report differ."""

    def decide(records: list[Record]) -> list[Record]:
        answers = all_well(step)(records)
        shown = list(holders_of([record.get("digest") for record in records]).values())
        if len(shown) > 1:
            values = [f"{records[ranks[0]]['value']!r} on {name_ranks(ranks)}" for ranks in shown[:8]]
            more = f", and {len(shown) - 8} further values" if len(shown) > 8 else ""
            message = f"ranks differ in {name}: {', '.join(values)}{more}"
            raise DivergenceError(
                message, hint="compare the settings, the data and the package versions of these ranks"
            )
        return answers

    return decide
