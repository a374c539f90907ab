"""Steps of a run in which ranks talk to each other: they end well on all ranks, or fail on all with one cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tokenloom.distributed.agreement import all_equal, record_of
from tokenloom.distributed.collectives import ConnectionLostError, ConsequenceError, break_off_all
from tokenloom.distributed.meeting import Attempt, Meeting
from tokenloom.distributed.ranks import current_ranks
from tokenloom.errors import BuildError

T = TypeVar("T")


def do_together(
    step: str,
    work: Callable[[], T],
    *,
    groups: Sequence[Any] = (),
    breaks: tuple[type[Exception], ...] = (Exception,),
    compare: Callable[[T], str | None] = lambda _: None,
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

    Raises:
        BuildError: `work` failed on some rank, or a rank died. Without `torch.distributed`, the error of `work` itself.
        DivergenceError: the ranks hold different values, or are at different steps.
    """
    ranks = current_ranks()
    if ranks is None or ranks.world_size == 1:
        return work()
    meeting = Meeting(ranks)
    with meeting.attended(step, on_verdict=lambda: break_off_all(groups)):
        attempt = Attempt(work)
        if isinstance(attempt.error, (*breaks, ConnectionLostError)):
            break_off_all(groups)
        if attempt.error is None:
            record = record_of(compare(attempt.result))  # type: ignore[arg-type]
        else:
            record = {"follows": True} if isinstance(attempt.error, ConsequenceError) else {}
        try:
            meeting.report(step, record, all_equal(step, f"what they hold after {step}"), attempt)
        except BuildError:
            if meeting.lost_a_rank:
                break_off_all(groups)
            raise
    return attempt.result  # type: ignore[return-value]
