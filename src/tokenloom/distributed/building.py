"""Work of all ranks that ends well on all of them, or fails on all with one cause.

One rank does it for all (`build_together`), or each does its part (`do_together`); `agree` compares. What must be the
same on all ranks is compared by digests before anything is done with it, and told only where they differ.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tokenloom.distributed.meeting import Attempt, ConnectionLostError, ConsequenceError, all_well, meeting_of
from tokenloom.distributed.membership import Decision, Record, holders_of
from tokenloom.distributed.ranks import Ranks, current_ranks, name_ranks
from tokenloom.errors import ConfigError, DivergenceError

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
    """What a rank reports next; the generator is sent the answer."""

    step: str
    record: Record
    decide: Decision
    attempt: Attempt[Any] | None = None


Steps = Generator[Do | Report, Any, T]


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
    break_off: Callable[[], None] = lambda: None,
    breaks: tuple[type[Exception], ...] = (Exception,),
    compare: Callable[[T], str | None] = lambda _: None,
    name: str | None = None,
) -> T:
    """Returns what `work` returns on this rank, after it returned on every rank of `torch.distributed`.

    If it raises on one rank, or a rank dies, all ranks raise. For this a rank that fails calls `break_off`, so that
    ranks that wait for it in a collective fail too, and break off; then all meet, and each is told the first cause.

    Args:
        step: says in messages what is done.
        work: this rank's part, which may use collectives.
        break_off: closes the connections of these collectives; may be called twice.
        breaks: the errors after which other ranks may wait for this one in a collective; a lost connection is one.
        compare: what must be the same on all ranks, from the result; None where there is nothing to compare.
        name: says in messages what that is.

    Raises:
        BuildError: `work` failed on some rank, or a rank died. Without `torch.distributed`, the error of `work` itself.
        DivergenceError: the ranks hold different values, or are at different steps.
    """

    def steps() -> Steps[T]:
        attempt: Attempt[T] = yield Do(work, step)
        if isinstance(attempt.error, (*breaks, ConnectionLostError)):
            break_off()
        record = {"follows": True} if isinstance(attempt.error, ConsequenceError) else {}
        value = None if attempt.error is not None else compare(attempt.result)  # type: ignore[arg-type]
        topic = name or f"what they hold after {step}"
        description = {} if value is None else {topic: {topic: repr(value)}}
        yield from _report_alike(step, record, description, all_well(step), attempt)
        return attempt.result  # type: ignore[return-value]

    ranks = current_ranks()
    return work() if ranks is None or ranks.world_size == 1 else _take(ranks, step, steps(), on_loss=break_off)


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
        builders: who builds: one rank ("rank0"), one per host ("node"), or one rank first, then one rank of each host
            what it does not find in its folder ("auto").
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
    return _take(ranks, FIRST_STEP, steps)


def _take(ranks: Ranks, first_step: str, steps: Steps[T], *, on_loss: Callable[[], None] = lambda: None) -> T:
    """Takes the steps of this rank, and returns the result.

    Args:
        ranks: this rank.
        first_step: says in messages what is done until the first step begins.
        steps: what to do and to report.
        on_loss: called where a rank is lost, perhaps from another thread, perhaps twice.
    """
    meeting = meeting_of(ranks)
    with meeting.attended(first_step, on_loss=on_loss), closing(steps):
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                result: T = end.value
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
    has = may_look and (not wanted.result or found.result is not None)
    wish = {"wanted": bool(wanted.result), "has": has}
    decide = _choose_builders(kind, step.partition(" (")[0])
    role: Record = yield from _report_alike(step, wish, described.result or {}, decide, failed)
    result: T | None = found.result if has and wanted.result else None
    for turn in range(role["num_turns"]):
        step = "the build" if turn == 0 else "loading what was built"
        attempt: Attempt[T] | None = (yield Do(work, step)) if role["turn"] == turn else None
        yield Report(step, {}, all_well(step), attempt)
        result = attempt.result if attempt is not None else result
    return result


def _choose_builders(kind: str, step: str) -> Decision:
    """Returns the decision in which turn each rank works; the ranks of a turn do so at the same time."""

    def decide(records: list[Record]) -> list[Record]:
        all_well(step)(records)
        if all(record["has"] for record in records):
            return [{"turn": None, "num_turns": 0} for _ in records]
        wanting = [rank for rank, record in enumerate(records) if record["wanted"]]
        of_hosts = list({records[rank]["host"]: rank for rank in reversed(wanting)}.values())
        first = wanting[:1]
        builders = {"every rank": [wanting], "node": [of_hosts], "rank0": [first], "auto": [first, of_hosts]}[kind]
        places: dict[int, int] = {}
        for place, ranks in enumerate([*builders, wanting]):
            places = dict.fromkeys(ranks, place) | places
        turns = {place: turn for turn, place in enumerate(sorted(set(places.values())))}
        return [{"turn": turns.get(places.get(rank, -1)), "num_turns": len(turns)} for rank in range(len(records))]

    return decide


def _report_alike(
    step: str, record: Record, description: Description, decide: Decision, attempt: Attempt[Any] | None
) -> Generator[Report, Record, Record]:
    """Reports, and returns the answer if all ranks that describe a topic describe it alike; else all raise."""
    texts = {topic: json.dumps(dict(values), sort_keys=True) for topic, values in description.items()}
    digests = {topic: hashlib.sha256(text.encode()).hexdigest()[:32] for topic, text in texts.items()}
    answer = yield Report(step, record | {"digests": digests}, _compare(decide), attempt)
    if "kinds" in answer:
        told = {"description": description if answer["describes"] else None}
        answer = yield Report("comparing settings", told, _tell_differences(answer["kinds"]))
    return answer


def _compare(decide: Decision) -> Decision:
    """Returns a decision that comes before another: where digests differ, one rank of each kind is to describe."""

    def compare(records: list[Record]) -> list[Record]:
        digests = [record["digests"] for record in records]
        kinds: dict[str, list[list[int]]] = {}
        for topic in dict.fromkeys(topic for each in digests for topic in each):
            holders = list(holders_of([each.get(topic) for each in digests]).values())
            if len(holders) > 1:
                kinds[topic] = holders[:_LARGEST_NUMBER_OF_KINDS]
        if not kinds or any("error" in record for record in records):
            return decide(records)
        describing = {ranks[0] for holders in kinds.values() for ranks in holders}
        return [{"describes": rank in describing, "kinds": kinds} for rank in range(len(records))]

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
        raise DivergenceError(message, hint="compare the settings, the data and the package versions of these ranks")

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
