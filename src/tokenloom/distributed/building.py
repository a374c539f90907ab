"""Work that one rank does for all, once all are known to be set up alike."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tokenloom.distributed.meeting import Attempt, Decision, all_well, meeting_of
from tokenloom.distributed.membership import Record
from tokenloom.distributed.ranks import current_ranks, name_ranks
from tokenloom.errors import ConfigError, DivergenceError

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
Builders = Literal["auto", "rank0", "node"]

Description = Mapping[str, Mapping[str, str]]
"""What must be the same on all ranks that describe a topic: by topic, values by name."""

FIRST_STEP = "looking for what is built"

_LARGEST_NUMBER_OF_KINDS = 8
_SHOWN_SETTINGS = 5
_SHOWN_CHARACTERS = 160


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
    with meeting.attended(FIRST_STEP), closing(steps):
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                result: T | None = end.value
                return result
            if isinstance(step, Do):
                meeting.begin(step.step)
                answer = Attempt(step.call)
            else:
                answer = meeting.report(step.step, step.record, step.decide, step.attempt)


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
    kind = builders if folder is not None else "every rank"
    may_look = look is not None and folder is not None
    step = FIRST_STEP if may_look else f"choosing who builds ({kind})"
    wanted: Attempt[bool] = yield Do(is_built_on_rank, step)
    found: Attempt[Any] = (yield Do(look, step)) if look is not None and may_look and wanted.result else wanted
    described: Attempt[Description] = Attempt(dict)
    if wanted.error is None and found.error is None:
        described = yield Do(lambda: describe(bool(wanted.result)), step)
    failed = next((attempt for attempt in (wanted, found, described) if attempt.error is not None), None)
    description = described.result or {}
    wish = {"wanted": bool(wanted.result)}
    has = may_look and (not wanted.result or found.result is not None)
    record = {**wish, "has": has, **_digests_of(description)}
    role: Record = yield Report(
        step, record, _compare_settings(_choose_builders(kind, step.partition(" (")[0])), failed
    )
    if "kinds" in role:
        told = {"description": description if role["describe"] else None}
        yield Report("comparing settings", told, _tell_differences(role["kinds"]))
    if role["has"]:
        return found.result if wanted.result else None
    if "probe" in role:
        assert folder is not None
        role = yield from _choose_by_probe(wish, role, os.path.join(folder, role["probe"]))
    result: T | None = None
    for first_round in (True, False):
        if first_round or role["second_round"]:
            mine = bool(wanted.result) and role["builder"] == first_round
            step = "the build" if first_round else "loading what was built"
            attempt = (yield Do(work, step)) if mine else None
            yield Report(step, {}, all_well(step), attempt)
            result = attempt.result if attempt is not None else result
    return result


def _choose_by_probe(wish: Record, role: Record, probe: str) -> Steps[Record]:
    """Returns the role of this rank, once ranks know which of them see the file that the builder has written."""
    try:
        written = Attempt(lambda: None)
        if role["builder"]:
            written = yield Do(lambda: _write_probe(probe), "writing a probe")
            if written.error is not None:
                logger.warning("cannot write %s, so every rank builds for itself: %s", probe, written.error)
        yield Report("writing a probe", {}, all_well("writing a probe"))
        seen: Attempt[bool] = yield Do(lambda: os.path.isfile(probe), "looking for the probe")
        chosen: Record = yield Report("looking for the probe", wish | {"seen": bool(seen.result)}, _choose_by_sight)
        return chosen
    finally:
        with suppress(OSError):
            os.unlink(probe)


def _write_probe(probe: str) -> None:
    os.makedirs(os.path.dirname(probe), exist_ok=True)
    with open(probe, "xb"):
        pass


def _choose_builders(kind: str, step: str) -> Decision:
    def decide(records: list[Record]) -> list[Record]:
        all_well(step)(records)
        wanting = [rank for rank, record in enumerate(records) if record["wanted"]]
        if all(record["has"] for record in records):
            return [{"has": True} for _ in records]
        if kind == "every rank":
            return _roles(records, wanting)
        if kind == "node":
            return _roles(records, _first_per_host(records, wanting))
        if kind == "rank0" or len({records[rank]["host"] for rank in wanting}) <= 1:
            return _roles(records, wanting[:1])
        probe = f".tokenloom-probe-{secrets.token_hex(8)}"
        return [{"has": False, "builder": rank == wanting[0], "probe": probe} for rank in range(len(records))]

    return decide


def _choose_by_sight(records: list[Record]) -> list[Record]:
    wanting = [rank for rank, record in enumerate(records) if record["wanted"]]
    if not records[wanting[0]]["seen"]:  # it could not be written
        return _roles(records, wanting)
    blind = [rank for rank in wanting if not records[rank]["seen"]]
    # Hosts whose ranks do not all see the same may leave some ranks to build for themselves, which is slow, not wrong.
    return _roles(records, [wanting[0], *_first_per_host(records, blind)])


def _roles(records: Sequence[Record], builders: Sequence[int]) -> list[Record]:
    second_round = any(record["wanted"] and rank not in builders for rank, record in enumerate(records))
    return [{"has": False, "builder": rank in builders, "second_round": second_round} for rank in range(len(records))]


def _first_per_host(records: Sequence[Record], ranks: Sequence[int]) -> list[int]:
    return list({records[rank]["host"]: rank for rank in reversed(ranks)}.values())


# --- whether ranks are set up alike: digests travel with the first report, what is behind them where they differ ------


def _digests_of(description: Description) -> Record:
    texts = {topic: json.dumps(dict(values), sort_keys=True) for topic, values in description.items()}
    return {"digests": {topic: hashlib.sha256(text.encode()).hexdigest()[:32] for topic, text in texts.items()}}


def _compare_settings(decide: Decision) -> Decision:
    """Returns a decision that comes before another: where digests differ, one rank of each kind is to describe."""

    def compare(records: list[Record]) -> list[Record]:
        digests = [record.get("digests", {}) for record in records]
        kinds: dict[str, list[list[int]]] = {}
        for topic in dict.fromkeys(topic for each in digests for topic in each):
            holders: dict[str, list[int]] = {}
            for rank in (rank for rank, each in enumerate(digests) if topic in each):
                holders.setdefault(digests[rank][topic], []).append(rank)
            if len(holders) > 1:
                kinds[topic] = sorted(holders.values(), key=len, reverse=True)[:_LARGEST_NUMBER_OF_KINDS]
        if not kinds or any("error" in record for record in records):
            return decide(records)
        askable = {ranks[0] for holders in kinds.values() for ranks in holders}
        return [{"describe": rank in askable, "kinds": kinds} for rank in range(len(records))]

    return compare


def _tell_differences(kinds: Mapping[str, Sequence[list[int]]]) -> Decision:
    """Returns the decision that fails all ranks with what they hold that differs."""

    def decide(records: list[Record]) -> list[Record]:
        all_well("comparing settings")(records)
        differences: list[str] = []
        for topic, groups in kinds.items():
            values = [records[ranks[0]]["description"][topic] for ranks in groups]
            for name in dict.fromkeys(name for each in values for name in each):
                holders: dict[str | None, list[int]] = {}
                for ranks, each in zip(groups, values, strict=True):
                    holders.setdefault(each.get(name), []).extend(ranks)
                if len(holders) > 1:
                    differences.append(f"{name}: {_show(holders)}")
        more = f"; and {len(differences) - _SHOWN_SETTINGS} further" if len(differences) > _SHOWN_SETTINGS else ""
        message = f"ranks differ in {'; '.join(differences[:_SHOWN_SETTINGS])}{more}"
        raise DivergenceError(message, hint="nothing was built; give all ranks the same settings, data and packages")

    return decide


def _show(holders: Mapping[str | None, list[int]]) -> str:
    """Returns the values and their ranks; of long ones what begins a little before the first difference."""
    texts = [value for value in holders if value is not None]
    same = len(os.path.commonprefix(texts)) if len(texts) > 1 else 0  # noqa: RUF071 - character by character
    start = max(0, same - _SHOWN_CHARACTERS // 4) if same > _SHOWN_CHARACTERS // 2 else 0
    shown = []
    for value, ranks in holders.items():
        text = "nothing" if value is None else "…" * (start > 0) + value[start : start + _SHOWN_CHARACTERS]
        more = "…" if value is not None and start + _SHOWN_CHARACTERS < len(value) else ""
        shown.append(f"{text}{more} on {name_ranks(sorted(ranks))}")
    return ", ".join(shown)
