"""Work that one rank does for all."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tokenloom.distributed.meeting import Attempt, Decision, Meeting, all_well, meeting_of
from tokenloom.distributed.membership import Record
from tokenloom.distributed.ranks import current_ranks
from tokenloom.distributed.sameness import Description, digests_of, same_settings, tell_differences
from tokenloom.errors import ConfigError

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
Builders = Literal["auto", "rank0", "node"]

FIRST_STEP = "looking for what is built"


@dataclass(frozen=True, slots=True)
class Do:
    """What a rank does by itself next; the generator is sent an `Attempt`."""

    call: Callable[[], Any]
    step: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank reports next; the generator is sent the answer, or what `decide` raised is thrown into it."""

    step: str
    record: Record
    decide: Decision
    attempt: Attempt[Any] | None = None


Steps = Generator[Do | Report, Any, T]


def build_together(
    work: Callable[[], T],
    *,
    look: Callable[[], T | None] | None = None,
    is_built_on_rank: Callable[[], bool] = lambda: True,
    folder: str | None,
    builders: Builders = "auto",
    describe: Callable[[bool], Description] = lambda _: {},
) -> T | None:
    """Returns what `work` returns, after one rank did it for all and the others found its results in `folder`.

    All ranks of `torch.distributed` must call this, in the same order as their other collectives. First the building
    ranks run `work`, then the others do; if it fails on any rank, or a rank dies or is silent for too long (see
    `set_rank_silence_seconds`), every rank raises. A rank notices while it waits for others, not while it works itself.
    Without `torch.distributed`, this is a call of `work`.

    Args:
        work: builds what is missing in `folder`, and returns the whole; runs once per rank.
        look: returns what `work` would where nothing needs building, else None. All ranks call it first, at the same
            time: if none misses anything, nobody waits for a builder.
        is_built_on_rank: whether this rank needs the result; the others get None, but wait for success too. The
            building rank is the lowest that needs it.
        folder: where the results are kept; None if nowhere, so that every rank builds for itself.
        builders: who builds: one rank ("rank0"), one per host ("node"), or one for each group of hosts that see the
            same folder ("auto", found out with a file that exists for a moment).
        describe: returns what must be the same on all ranks, by name, before anything is built; called after `look`,
            with whether this rank needs the result.

    Raises:
        BuildError: a rank failed, died or was silent; the message names it and its cause, chained on that rank.
        DivergenceError: the ranks are not at the same step, or are described differently.
        ConfigError: there is no such way to choose builders.
    """
    if builders not in ("auto", "rank0", "node"):
        message = f"expected builders to be 'auto', 'rank0' or 'node', found {builders!r}"
        raise ConfigError(message)
    ranks = current_ranks()
    if ranks is None or ranks.world_size == 1:
        return work() if is_built_on_rank() else None
    steps = build_steps(
        work, look=look, is_built_on_rank=is_built_on_rank, folder=folder, builders=builders, describe=describe
    )
    meeting = meeting_of(ranks)
    with meeting.attended(FIRST_STEP):
        return _drive(steps, meeting)


def _drive(steps: Steps[T], meeting: Meeting) -> T:
    """Returns what comes of steps that are done here, and reported in a meeting."""
    step = next(steps)
    while True:
        try:
            if isinstance(step, Do):
                meeting.begin(step.step)
                step = steps.send(Attempt(step.call))
                continue
            try:
                answer = meeting.report(step.step, step.record, step.decide, step.attempt)
            except BaseException as error:  # noqa: BLE001  it is the generator's, which cleans up and lets it pass
                step = steps.throw(error)
            else:
                step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result


def build_steps(
    work: Callable[[], T],
    *,
    look: Callable[[], T | None] | None,
    is_built_on_rank: Callable[[], bool],
    folder: str | None,
    builders: Builders,
    describe: Callable[[bool], Description],
) -> Steps[T | None]:
    """Yields what a rank of several does and reports to build together; returns the result. See `build_together`."""
    wanted: Attempt[bool] = yield Do(is_built_on_rank, FIRST_STEP)
    found: Attempt[Any] = wanted
    if look is not None and folder is not None and wanted.result:
        found = yield Do(look, FIRST_STEP)
    if wanted.error is None and found.error is None:
        described: Attempt[Description] = yield Do(lambda: describe(bool(wanted.result)), FIRST_STEP)
    else:
        described = Attempt(dict)
    failed = next((attempt for attempt in (wanted, found, described) if attempt.error is not None), None)
    record = digests_of(described.result or {})
    if look is not None and folder is not None:
        step = FIRST_STEP
        record["missing"] = bool(wanted.result) and found.result is None
        answer = yield Report(step, record, same_settings(_anything_missing(step)), failed)
        yield from _compare_settings(answer, described.result or {})
        if not answer["missing"]:
            return found.result if wanted.result else None
        record, failed = {}, None
    role = yield from _assign_roles(wanted, folder, builders, record, failed, described.result or {})
    result: T | None = None
    for first_round in (True, False):
        if first_round or role["second_round"]:
            mine = bool(wanted.result) and role["builder"] == first_round
            step = "the build" if first_round else "loading what was built"
            attempt = (yield Do(work, step)) if mine else None
            yield Report(step, {}, all_well(step), attempt)
            result = attempt.result if attempt is not None else result
    return result


def _compare_settings(answer: Record, description: Description) -> Steps[None]:
    """Ends where ranks were found to differ: some of each kind say what they hold, and all are told."""
    if "describe" in answer:
        step = "comparing settings"
        yield Report(step, {"description": description if answer["describe"] else None}, tell_differences(answer))


def _anything_missing(step: str) -> Decision:
    def decide(records: list[Record]) -> list[Record]:
        all_well(step)(records)
        missing = any(record["missing"] for record in records)
        return [{"missing": missing} for _ in records]

    return decide


def _assign_roles(
    wanted: Attempt[bool],
    folder: str | None,
    builders: Builders,
    record: Record,
    failed: Attempt[Any] | None,
    description: Description,
) -> Steps[Record]:
    """Returns whether this rank builds ("builder"), and whether others load afterwards ("second_round")."""
    kind = builders if folder is not None else "every rank"
    step = f"choosing who builds ({kind})"
    wish = {"wanted": bool(wanted.result)}
    role: Record = yield Report(step, record | wish, same_settings(_choose_builders(kind)), failed)
    yield from _compare_settings(role, description)
    if "probe" not in role:
        return role
    assert folder is not None
    probe = os.path.join(folder, role["probe"])
    try:
        is_written = True
        if role["builder"]:
            written: Attempt[None] = yield Do(lambda: _write_probe(probe), "writing a probe")
            is_written = written.error is None
            if not is_written:
                logger.warning("cannot tell who sees %s, so every rank builds for itself: %s", folder, written.error)
        role = yield Report("writing a probe", wish | {"written": is_written}, _check_probe)
        if "second_round" in role:
            return role
        seen: Attempt[bool] = yield Do(lambda: os.path.isfile(probe), "looking for the probe")
        role = yield Report("looking for the probe", wish | {"seen": bool(seen.result)}, _choose_by_sight)
        return role
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
