"""Whether ranks are set up alike: digests travel with the first report, what is behind them only where they differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from tokenloom.distributed.meeting import Decision
from tokenloom.distributed.membership import Record
from tokenloom.distributed.ranks import name_ranks
from tokenloom.errors import DivergenceError

Description = Mapping[str, Mapping[str, str]]
"""What must be the same on all ranks that describe a topic: by topic, values by name."""

_LARGEST_NUMBER_OF_KINDS = 8
_SHOWN_SETTINGS = 5
_SHOWN_CHARACTERS = 160


def digests_of(description: Description) -> Record:
    """Returns what a rank reports of its description."""
    return {"digests": {topic: _digest(values) for topic, values in description.items()}}


def same_settings(decide: Decision) -> Decision:
    """Returns a decision that comes before another: where digests differ, some of each kind are asked to describe."""

    def compare(records: list[Record]) -> list[Record]:
        if any("error" in record for record in records):
            return decide(records)
        kinds = _kinds([record.get("digests", {}) for record in records])
        if all(len(holders) <= 1 for holders in kinds.values()):
            return decide(records)
        askable = {
            ranks[0] for holders in kinds.values() for ranks in list(holders.values())[:_LARGEST_NUMBER_OF_KINDS]
        }
        shared = {topic: list(holders.values()) for topic, holders in kinds.items()}
        return [{"describe": rank in askable, "kinds": shared} for rank in range(len(records))]

    return compare


def tell_differences(asked: Record) -> Decision:
    """Returns the decision that fails all ranks with what they hold that differs."""

    def decide(records: list[Record]) -> list[Record]:
        differences: list[str] = []
        for topic, groups in asked["kinds"].items():
            given = [(ranks, records[ranks[0]]["description"][topic]) for ranks in groups[:_LARGEST_NUMBER_OF_KINDS]]
            differences.extend(
                f"{name}: {_show([(ranks, values.get(name)) for ranks, values in given])}"
                for name in dict.fromkeys(name for _, values in given for name in values)
                if len({values.get(name) for _, values in given}) > 1
            )
        more = f"; and {len(differences) - _SHOWN_SETTINGS} further" if len(differences) > _SHOWN_SETTINGS else ""
        message = f"ranks differ in {'; '.join(differences[:_SHOWN_SETTINGS])}{more}"
        raise DivergenceError(message, hint="nothing was built; give all ranks the same settings, data and packages")

    return decide


def _kinds(digests: Sequence[Mapping[str, str]]) -> dict[str, dict[str, list[int]]]:
    """Returns the ranks by topic and digest; those that most hold come first."""
    kinds: dict[str, dict[str, list[int]]] = {}
    for rank, topics in enumerate(digests):
        for topic, digest in topics.items():
            kinds.setdefault(topic, {}).setdefault(digest, []).append(rank)
    return {
        topic: dict(sorted(holders.items(), key=lambda item: len(item[1]), reverse=True))
        for topic, holders in kinds.items()
    }


def _show(given: Sequence[tuple[list[int], str | None]]) -> str:
    """Returns the values and who holds them, from a little before the first character that differs."""
    holders: dict[str | None, list[int]] = {}
    for ranks, value in given:
        holders.setdefault(value, []).extend(ranks)
    texts = [value for value in holders if value is not None]
    same = _shared_start(texts) if len(texts) > 1 else 0
    start = max(0, same - _SHOWN_CHARACTERS // 4) if same > _SHOWN_CHARACTERS // 2 else 0
    return ", ".join(f"{_cut(value, start)} on {name_ranks(sorted(ranks))}" for value, ranks in holders.items())


def _cut(value: str | None, start: int) -> str:
    if value is None:
        return "nothing"
    text = value[start : start + _SHOWN_CHARACTERS]
    return f"{'…' if start else ''}{text}{'…' if start + _SHOWN_CHARACTERS < len(value) else ''}"


def _shared_start(texts: Sequence[str]) -> int:
    first, last = min(texts), max(texts)
    return next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _digest(values: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()[:32]
