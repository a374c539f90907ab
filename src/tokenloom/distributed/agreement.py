"""Comparing values between ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from tokenloom.distributed.meeting import Attempt, Decision, Meeting, all_well
from tokenloom.distributed.ranks import current_ranks, name_ranks
from tokenloom.distributed.seat import Record
from tokenloom.errors import DivergenceError


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
    given = value
    compute: Callable[[], str | None] = given if callable(given) else lambda: given
    ranks = current_ranks()
    if ranks is None or ranks.world_size == 1:
        compute()
        return
    step, meeting = f"comparing {name}", Meeting(ranks)
    with meeting.attended(step):
        attempt = Attempt(compute)
        meeting.report(step, record_of(attempt.result), all_equal(step, name), attempt)


def record_of(value: str | None) -> Record:
    """Returns what a rank reports of a value that is to be compared; None is not compared."""
    if value is None:
        return {}
    digest = hashlib.sha256(value.encode(errors="backslashreplace")).hexdigest()
    return {"value": value[:100], "digest": digest}


def all_equal(step: str, name: str) -> Decision:
    """Returns the decision that fails all ranks if one failed, or if the values that they report differ."""

    def decide(records: list[Record]) -> list[Record]:
        answers = all_well(step)(records)
        holders: dict[str, list[int]] = {}
        for rank, record in enumerate(records):
            if "digest" in record:
                holders.setdefault(record["digest"], []).append(rank)
        if len(holders) > 1:
            shown = sorted(holders.values(), key=len, reverse=True)
            values = [f"{records[ranks[0]]['value']!r} on {name_ranks(ranks)}" for ranks in shown[:8]]
            more = f", and {len(shown) - 8} further values" if len(shown) > 8 else ""
            message = f"ranks differ in {name}: {', '.join(values)}{more}"
            raise DivergenceError(
                message, hint="compare the settings, the data and the package versions of these ranks"
            )
        return answers

    return decide
