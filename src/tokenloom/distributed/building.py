"""Work that either succeeds on all ranks or fails on all ranks with the same cause.

With `Build`, one rank works and the other ranks load the result; with `do_together`, each rank does a part. Values
that must be the same on all ranks are compared by digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, NoReturn, TypeVar, get_args

from tokenloom.distributed.meeting import ConnectionLostError, Round, Rounds, current_meeting
from tokenloom.distributed.membership import Decision, Record, holders_of
from tokenloom.distributed.ranks import name_ranks
from tokenloom.errors import ConfigError, DivergenceError

T = TypeVar("T")
Builders = Literal["auto", "rank0", "node"]

Description = Mapping[str, Mapping[str, str]]
"""{topic: {name: value}}; the values of a topic must be equal on all ranks that describe the topic."""

_MOST_GROUPS = 8  # maximum number of groups of ranks per topic; the ranks of a group have the same values
_SHOWN_SETTINGS = 5
_SHOWN_CHARACTERS = 160


def do_together(
    step: str,
    work: Callable[[], T],
    *,
    break_off: Callable[[], None] = lambda: None,
    breaks: tuple[type[Exception], ...] = (Exception,),
    compare: Callable[[T], str | None] = lambda _: None,
    name: str | None = None,
) -> T:
    """Calls `work` on this rank, then waits for the calls on all other ranks; returns the result of this rank.

    If `work` raises on one rank, or a rank dies, all ranks raise. A rank that fails with one of `breaks` calls
    `break_off`, so that ranks that wait in a collective fail too. Then all ranks raise an error with the first cause.
    Without `torch.distributed`, the function only calls `work`.

    Args:
        step: name of the work, for error messages.
        work: does the part of this rank; may use collectives.
        break_off: closes the connections that collectives in `work` use; may be called twice.
        breaks: types of errors of `work` after which `break_off` is called, as other ranks may wait in a collective.
        compare: returns the part of the result that must be the same on all ranks, or None to compare nothing.
        name: name of the part that `compare` returns, for error messages.

    Raises:
        BuildError: `work` failed on some rank, or a rank died.
        DivergenceError: results of `compare` differ between ranks, or ranks are at different steps.
    """
    if (meeting := current_meeting()) is None:
        return work()
    results: list[T] = []

    def attempt() -> tuple[Record, Description]:
        try:
            results.append(work())
        except Exception as error:
            if isinstance(error, (*breaks, ConnectionLostError)):
                break_off()
            raise
        value, topic = compare(results[0]), name or f"the result of {step}"
        return {}, {} if value is None else {topic: {topic: repr(value)}}

    meeting.take(_same_on_all(step, attempt), on_loss=break_off)
    return results[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Build(Generic[T]):
    """A build that one rank does for all ranks; the other ranks load the result from a folder.

    All ranks must call `together`, at the same place among their collectives. The building ranks call `work` first;
    then the other ranks call `work`, to load. If `work` fails on any rank, or a rank is lost, all ranks raise.

    Attributes:
        work: builds what is missing in `folder` and returns the result; called at most once per rank.
        folder: folder of the results; None if every rank builds for itself.
        look: returns the result if nothing is missing, else None; all ranks that need the result call `look` first.
        is_built_on_rank: returns whether this rank needs the result; if not, `together` waits for the other ranks and
            returns None. The lowest rank that needs the result builds it.
        builders: "rank0": one rank builds. "node": one rank per host builds. "auto": one rank builds; then one rank of
            each other host builds only the files that its folder lacks.
        describe: called with the result of `is_built_on_rank`; returns values that must be the same on all ranks.
    """

    work: Callable[[], T]
    folder: str | None
    look: Callable[[], T | None] | None = None
    is_built_on_rank: Callable[[], bool] = lambda: True
    builders: Builders = "auto"
    describe: Callable[[bool], Description] = lambda _: {}

    def together(self) -> T | None:
        """Builds for all ranks and returns the result; without `torch.distributed`, only calls `work`.

        Raises:
            BuildError: a rank failed, died or was silent; the message names the rank and the cause.
            DivergenceError: ranks are at different steps, or their results of `describe` differ.
            ConfigError: `builders` is invalid.
        """
        if self.builders not in get_args(Builders):
            raise ConfigError(f"`builders`: must be 'auto', 'rank0' or 'node', got {self.builders!r}")
        if (meeting := current_meeting()) is None:
            return self.work() if self.is_built_on_rank() else None
        return meeting.take(self.rounds())

    def rounds(self) -> Rounds[T | None]:
        """Yields the rounds of this rank; returns the result."""
        kind = "every rank" if self.folder is None else self.builders
        look = None if self.folder is None else self.look
        result: T | None = None

        def prepare() -> tuple[Record, Description]:
            nonlocal result
            wanted = self.is_built_on_rank()
            if wanted and look is not None:
                result = look()
            has = look is not None and (not wanted or result is not None)
            return {"wanted": wanted, "has": has}, self.describe(wanted)

        def build() -> Record:
            nonlocal result
            result = self.work()
            return {}

        step = f"choosing the building rank ({kind})" if look is None else "checking what is already built"
        role = yield from _same_on_all(step, prepare, partial(_choose_builders, kind))
        for turn in range(role["num_turns"]):
            step = "the build" if turn == 0 else "loading the build"
            yield Round(step, build if role["turn"] == turn else dict, _no_answers)
        return result


def _no_answers(records: list[Record]) -> list[Record]:
    return [{} for _ in records]


def _choose_builders(kind: str, records: list[Record]) -> list[Record]:
    """Returns the turn of each rank, None if the rank needs nothing; ranks with equal turns build or load together."""
    if all(record["has"] for record in records):
        return [{"turn": None, "num_turns": 0} for _ in records]
    needing = [rank for rank, record in enumerate(records) if record["wanted"]]
    per_host = list({records[rank]["host"]: rank for rank in reversed(needing)}.values())
    first = needing[:1]
    builders = {"every rank": [needing], "node": [per_host], "rank0": [first], "auto": [first, per_host]}[kind]
    turns: dict[int, int] = {}
    num_turns = 0
    for ranks in [*builders, needing]:
        others = [rank for rank in ranks if rank not in turns]
        turns |= dict.fromkeys(others, num_turns)
        num_turns += bool(others)
    return [{"turn": turns.get(rank), "num_turns": num_turns} for rank in range(len(records))]


def _same_on_all(
    step: str, work: Callable[[], tuple[Record, Description]], decide: Decision = _no_answers
) -> Rounds[Record]:
    """Yields a round and returns the answer; if the descriptions of ranks differ, a second round raises an error."""
    description: Description = {}

    def digested() -> Record:
        nonlocal description
        record, description = work()
        texts = {topic: json.dumps(dict(values), sort_keys=True) for topic, values in description.items()}
        digests = {topic: hashlib.sha256(text.encode()).hexdigest()[:32] for topic, text in texts.items()}
        return record | {"digests": digests}

    answer = yield Round(step, digested, partial(_compare, decide))
    if "kinds" in answer:
        report = {"description": description if answer["describes"] else None}
        answer = yield Round("comparing settings", lambda: report, partial(_raise_differences, answer["kinds"]))
    return answer


def _compare(decide: Decision, records: list[Record]) -> list[Record]:
    """Returns the answers of `decide` if all digests are equal; else requests one description per digest."""
    digests = [record["digests"] for record in records]
    kinds: dict[str, list[list[int]]] = {}
    for topic in dict.fromkeys(topic for each in digests for topic in each):
        holders = list(holders_of([each.get(topic) for each in digests]).values())
        if len(holders) > 1:
            kinds[topic] = holders[:_MOST_GROUPS]
    describing = {ranks[0] for holders in kinds.values() for ranks in holders}
    answers = [{"describes": rank in describing, "kinds": kinds} for rank in range(len(records))]
    return answers if kinds else decide(records)


def _raise_differences(kinds: Mapping[str, Sequence[list[int]]], records: list[Record]) -> NoReturn:
    differences: list[str] = []
    for topic, groups in kinds.items():
        values = [records[ranks[0]]["description"][topic] for ranks in groups]
        for name in dict.fromkeys(name for each in values for name in each):
            holders: dict[str | None, list[int]] = {}
            for ranks, each in zip(groups, values, strict=True):
                holders.setdefault(each.get(name), []).extend(ranks)
            if len(holders) > 1:
                differences.append(f"{name}: {_show(holders)}")
    more = f"; and {len(differences) - _SHOWN_SETTINGS} more values" if len(differences) > _SHOWN_SETTINGS else ""
    message = f"ranks differ in {'; '.join(differences[:_SHOWN_SETTINGS])}{more}"
    raise DivergenceError(message, hint="compare the settings, the data and the package versions of these ranks")


def _show(holders: Mapping[str | None, list[int]]) -> str:
    """Formats values and their ranks; cuts long values to a part that begins shortly before their first difference."""
    texts = [value for value in holders if value is not None]
    same = len(os.path.commonprefix(texts)) if len(texts) > 1 else 0  # noqa: RUF071 - character by character
    start = max(0, same - _SHOWN_CHARACTERS // 4) if same > _SHOWN_CHARACTERS // 2 else 0
    shown = []
    for value, ranks in holders.items():
        text = "no value" if value is None else "…" * (start > 0) + value[start : start + _SHOWN_CHARACTERS]
        more = "…" if value is not None and start + _SHOWN_CHARACTERS < len(value) else ""
        shown.append(f"{text}{more} on {name_ranks(sorted(ranks))}")
    return ", ".join(shown)
