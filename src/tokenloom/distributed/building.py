"""Work that one rank does for all."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, TypeVar

from tokenloom.distributed.meeting import Attempt, Decision, Meeting, Record, all_well
from tokenloom.distributed.ranks import current_ranks
from tokenloom.errors import ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Builders = Literal["auto", "rank0", "node"]


def build_together(
    work: Callable[[], T],
    *,
    look: Callable[[], T | None] | None = None,
    is_built_on_rank: Callable[[], bool] = lambda: True,
    folder: str | None,
    builders: Builders = "auto",
) -> T | None:
    """Returns what `work` returns, after one rank did it for all and the others found its results in `folder`.

    All ranks of `torch.distributed` must call this, in the same order as their other collectives. First the building
    ranks run `work`, then the others do; if it fails on any rank, or a rank dies, every rank raises. A rank notices
    while it waits for others, not while it works itself. Without `torch.distributed`, this is a call of `work`.

    Args:
        work: builds what is missing in `folder`, and returns the whole; runs once per rank.
        look: returns what `work` would where nothing needs building, else None. All ranks call it first, at the same
            time: if none misses anything, nobody waits for a builder.
        is_built_on_rank: whether this rank needs the result; the others get None, but wait for success too. The
            building rank is the lowest that needs it.
        folder: where the results are kept; None if nowhere, so that every rank builds for itself.
        builders: who builds: one rank ("rank0"), one per host ("node"), or one for each group of hosts that see the
            same folder ("auto", found out with a file that exists for a moment).

    Raises:
        BuildError: a rank failed or died; the message names it and its cause, which on that rank is chained.
        DivergenceError: the ranks are not at the same step.
        ConfigError: there is no such way to choose builders.
    """
    if builders not in ("auto", "rank0", "node"):
        message = f"expected builders to be 'auto', 'rank0' or 'node', found {builders!r}"
        raise ConfigError(message)
    ranks = current_ranks()
    if ranks is None or ranks.world_size == 1:
        return work() if is_built_on_rank() else None
    meeting = Meeting(ranks)
    wanted = Attempt(is_built_on_rank)
    if look is not None and folder is not None:
        found = Attempt(look if wanted.result else lambda: None)
        step = "looking for what is built"
        report = {"missing": bool(wanted.result) and found.result is None}
        if not meeting.report(step, report, _anything_missing(step), found if wanted.error is None else wanted)[
            "missing"
        ]:
            return found.result
    role = _assign_roles(meeting, wanted, None if folder is None else os.fspath(folder), builders)
    result: T | None = None
    for first_round in (True, False):
        if first_round or role["second_round"]:
            mine = bool(wanted.result) and role["builder"] == first_round
            attempt = Attempt(work) if mine else None
            step = "the build" if first_round else "loading what was built"
            meeting.report(step, {}, all_well(step), attempt)
            result = attempt.result if attempt is not None else result
    return result


def _anything_missing(step: str) -> Decision:
    def decide(records: list[Record]) -> list[Record]:
        all_well(step)(records)
        missing = any(record["missing"] for record in records)
        return [{"missing": missing} for _ in records]

    return decide


def _assign_roles(meeting: Meeting, wanted: Attempt[bool], folder: str | None, builders: Builders) -> Record:
    """Returns whether this rank builds ("builder"), and whether others load afterwards ("second_round")."""
    kind = builders if folder is not None else "every rank"
    step = f"choosing who builds ({kind})"
    role = meeting.report(step, {"wanted": bool(wanted.result)}, _choose_builders(kind), wanted)
    if "probe" not in role:
        return role
    assert folder is not None
    probe = os.path.join(folder, role["probe"])
    try:
        if role["builder"]:
            written = Attempt(lambda: _write_probe(probe))
            report = {"written": written.error is None}
            if written.error is not None:
                logger.warning("cannot tell who sees %s, so every rank builds for itself: %s", folder, written.error)
        else:
            report = {"written": True}
        role = meeting.report("writing a probe", report | {"wanted": bool(wanted.result)}, _check_probe)
        if "second_round" in role:
            return role
        report = {"wanted": bool(wanted.result), "seen": os.path.isfile(probe)}
        return meeting.report("looking for the probe", report, _choose_by_sight)
    finally:
        with suppress(OSError):
            os.unlink(probe)


def _write_probe(probe: str) -> None:
    os.makedirs(os.path.dirname(probe), exist_ok=True)
    with open(probe, "xb"):
        pass


def _roles(records: Sequence[Record], builders: set[int]) -> list[Record]:
    second_round = any(record["wanted"] and rank not in builders for rank, record in enumerate(records))
    return [{"builder": rank in builders, "second_round": second_round} for rank in range(len(records))]


def _choose_builders(kind: str) -> Decision:
    def decide(records: list[Record]) -> list[Record]:
        all_well("choosing who builds")(records)
        wanting = [rank for rank, record in enumerate(records) if record["wanted"]]
        if kind == "every rank":
            return _roles(records, set(wanting))
        if kind == "node":
            return _roles(records, _first_per_host(records, wanting))
        if kind == "rank0" or len({records[rank]["host"] for rank in wanting}) <= 1:
            return _roles(records, set(wanting[:1]))
        probe = f".tokenloom-probe-{secrets.token_hex(8)}"
        return [{"builder": rank == wanting[0], "probe": probe} for rank in range(len(records))]

    return decide


def _check_probe(records: list[Record]) -> list[Record]:
    if all(record["written"] for record in records):
        return [{} for _ in records]
    return _roles(records, {rank for rank, record in enumerate(records) if record["wanted"]})


def _choose_by_sight(records: list[Record]) -> list[Record]:
    wanting = [rank for rank, record in enumerate(records) if record["wanted"]]
    blind = [rank for rank in wanting if not records[rank]["seen"]]
    # Hosts whose ranks do not all see the same may leave some ranks to build for themselves, which is slow, not wrong.
    return _roles(records, {wanting[0], *_first_per_host(records, blind)})


def _first_per_host(records: Sequence[Record], ranks: Sequence[int]) -> set[int]:
    return set({records[rank]["host"]: rank for rank in reversed(ranks)}.values())
