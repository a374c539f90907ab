"""Work that succeeds on all ranks, or fails on all with one cause.

One rank does it for all (`Build`), or each does its part (`do_together`). Digests compare what must be the same on all
ranks before it is used.
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
"""Values that must be the same on all ranks that describe a topic: by topic and name."""

_LARGEST_NUMBER_OF_KINDS = 8
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
    """Returns the result of `work` on this rank, after it returned on every rank of `torch.distributed`.

    If it raises on one rank, or a rank dies, all ranks raise: a rank that fails calls `break_off`, so that ranks that
    wait for it in a collective fail too; then all meet, and each gets the first cause.

    Args:
        step: name of the work, for messages.
        work: this rank's part, which may use collectives.
        break_off: closes the connections of these collectives; may be called twice.
        breaks: errors after which other ranks may wait for this one in a collective; a lost connection is one.
        compare: returns from the result what must be the same on all ranks, or None.
        name: name of that, for messages.

    Raises:
        BuildError: `work` failed on some rank, or a rank died. Without `torch.distributed`, the error of `work` itself.
        DivergenceError: the ranks have different values, or are at different steps.
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
        value, topic = compare(results[0]), name or f"what they hold after {step}"
        return {}, {} if value is None else {topic: {topic: repr(value)}}

    meeting.take(_alike(step, attempt), on_loss=break_off)
    return results[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Build(Generic[T]):
    """Work that one rank does for all; the others find its results in a folder.

    All ranks of `torch.distributed` must build `together`, in the same order as their other collectives. First the
    building ranks run `work`, then the others; if it fails on any rank, or a rank dies or is silent for too long (see
    `set_rank_silence_seconds`), every rank raises. A rank notices while it waits for others, not while it works.

    Attributes:
        work: builds what is missing in `folder`, and returns the whole; runs once per rank.
        folder: of the results; None if every rank builds for itself.
        look: returns the result if nothing needs building, else None. All ranks call it first, at the same time.
        is_built_on_rank: whether this rank needs the result; the others get None, but wait for success too. The
            building rank is the lowest that needs it.
        builders: one rank ("rank0"), one per host ("node"), or one rank first, then one of each host for what it does
            not find in its folder ("auto").
        describe: returns what must be the same on all ranks; called after `look`, with whether this rank needs the
            result.
    """

    work: Callable[[], T]
    folder: str | None
    look: Callable[[], T | None] | None = None
    is_built_on_rank: Callable[[], bool] = lambda: True
    builders: Builders = "auto"
    describe: Callable[[bool], Description] = lambda _: {}

    def together(self) -> T | None:
        """Returns the result of `work`; without `torch.distributed`, calls it.

        Raises:
            BuildError: a rank failed, died or was silent; the message names it and its cause, chained on that rank.
            DivergenceError: ranks are at different steps, or differ in their descriptions.
            ConfigError: unknown `builders`.
        """
        if self.builders not in get_args(Builders):
            raise ConfigError(f"`builders`: must be 'auto', 'rank0' or 'node', got {self.builders!r}")
        if (meeting := current_meeting()) is None:
            return self.work() if self.is_built_on_rank() else None
        return meeting.take(self.rounds())

    def rounds(self) -> Rounds[T | None]:
        """Yields the rounds of a rank of several; returns the result."""
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

        step = f"choosing who builds ({kind})" if look is None else "looking for what is built"
        role = yield from _alike(step, prepare, partial(_choose_builders, kind))
        for turn in range(role["num_turns"]):
            step = "the build" if turn == 0 else "loading what was built"
            yield Round(step, build if role["turn"] == turn else dict, _all_well)
        return result


def _all_well(records: list[Record]) -> list[Record]:
    return [{} for _ in records]


def _choose_builders(kind: str, records: list[Record]) -> list[Record]:
    """Returns the turn of each rank; ranks of one turn work at the same time."""
    if all(record["has"] for record in records):
        return [{"turn": None, "num_turns": 0} for _ in records]
    wanting = [rank for rank, record in enumerate(records) if record["wanted"]]
    of_hosts = list({records[rank]["host"]: rank for rank in reversed(wanting)}.values())
    first = wanting[:1]
    builders = {"every rank": [wanting], "node": [of_hosts], "rank0": [first], "auto": [first, of_hosts]}[kind]
    turns: dict[int, int] = {}
    num_turns = 0
    for ranks in [*builders, wanting]:
        others = [rank for rank in ranks if rank not in turns]
        turns |= dict.fromkeys(others, num_turns)
        num_turns += bool(others)
    return [{"turn": turns.get(rank), "num_turns": num_turns} for rank in range(len(records))]


def _alike(step: str, work: Callable[[], tuple[Record, Description]], decide: Decision = _all_well) -> Rounds[Record]:
    """Yields a round, and returns its answer; raises if ranks describe a topic differently."""
    description: Description = {}

    def digested() -> Record:
        nonlocal description
        record, description = work()
        texts = {topic: json.dumps(dict(values), sort_keys=True) for topic, values in description.items()}
        digests = {topic: hashlib.sha256(text.encode()).hexdigest()[:32] for topic, text in texts.items()}
        return record | {"digests": digests}

    answer = yield Round(step, digested, partial(_compare, decide))
    if "kinds" in answer:
        told = {"description": description if answer["describes"] else None}
        answer = yield Round("comparing settings", lambda: told, partial(_tell_differences, answer["kinds"]))
    return answer


def _compare(decide: Decision, records: list[Record]) -> list[Record]:
    """Decides if digests are the same; else asks one rank of each kind for its description."""
    digests = [record["digests"] for record in records]
    kinds: dict[str, list[list[int]]] = {}
    for topic in dict.fromkeys(topic for each in digests for topic in each):
        holders = list(holders_of([each.get(topic) for each in digests]).values())
        if len(holders) > 1:
            kinds[topic] = holders[:_LARGEST_NUMBER_OF_KINDS]
    describing = {ranks[0] for holders in kinds.values() for ranks in holders}
    answers = [{"describes": rank in describing, "kinds": kinds} for rank in range(len(records))]
    return answers if kinds else decide(records)


def _tell_differences(kinds: Mapping[str, Sequence[list[int]]], records: list[Record]) -> NoReturn:
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


def _show(holders: Mapping[str | None, list[int]]) -> str:
    """Returns the values and their ranks; long values from a little before the first difference."""
    texts = [value for value in holders if value is not None]
    same = len(os.path.commonprefix(texts)) if len(texts) > 1 else 0  # noqa: RUF071 - character by character
    start = max(0, same - _SHOWN_CHARACTERS // 4) if same > _SHOWN_CHARACTERS // 2 else 0
    shown = []
    for value, ranks in holders.items():
        text = "nothing" if value is None else "…" * (start > 0) + value[start : start + _SHOWN_CHARACTERS]
        more = "…" if value is not None and start + _SHOWN_CHARACTERS < len(value) else ""
        shown.append(f"{text}{more} on {name_ranks(sorted(ranks))}")
    return ", ".join(shown)
