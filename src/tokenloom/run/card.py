"""What a notebook shows of a run, of its dataset and of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.rendering.card import Fact, card, top_table
from tokenloom.rendering.html import Cell, Markup, table
from tokenloom.rendering.words import short
from tokenloom.run.digest import run_identity

if TYPE_CHECKING:
    from tokenloom.run.dataset import RunDataset
    from tokenloom.run.lock import LockedSource, RunLock
    from tokenloom.run.plan import PlannedSource, RunPlan
    from tokenloom.run.seen import SeenRun

_MOST_STAGES = 12


def run_card(run: SeenRun) -> Markup:
    """Returns the card of a run: what its lock says."""
    return card("Run", _facts(run.lock), name=run.path, tables=[_stages(run.lock), _sources(run.lock)])


def run_dataset_card(dataset: RunDataset) -> Markup:
    """Returns the card of the samples of a run."""
    lock = dataset.lock
    facts: list[Fact] = [*_facts(lock), ("open pairs", dataset.num_open_pairs)]
    return card("RunDataset", facts, tables=[_stages(lock), _sources(lock)])


def run_plan_card(plan: RunPlan) -> Markup:
    """Returns the card of what a run reads."""
    facts: list[Fact] = [
        ("samples", _amount(plan.num_samples)),
        ("tokens", _amount(plan.num_tokens)),
        ("sources", len(plan.sources)),
        ("segments", len(plan.segments)),
    ]
    alarms = [
        f"{cap.source} has had its {cap.max_passes:,} passes at position {cap.position:,}"
        for cap in plan.caps
        if cap.position is not None
    ]

    def others(rest: list[int]) -> list[Cell]:
        sources = [plan.sources[number] for number in rest]
        return [None, *(short(sum(counts)) for counts in zip(*map(_counts, sources), strict=True))]

    sources = top_table(
        ["what becomes of", "passes", "offered", "seen", "unseen", "cut off"],
        [[source.name, source.num_passes, *map(short, _counts(source))] for source in plan.sources],
        sizes=[source.seen_tokens for source in plan.sources],
        others=others,
    )
    return card("RunPlan", facts, tables=[sources], alarms=alarms)


def _counts(source: PlannedSource) -> tuple[int, int, int, int]:
    return source.offered_tokens, source.seen_tokens, source.unseen_tokens, source.uncovered_tokens


def _amount(number: int | None) -> Cell:
    return "without end" if number is None else number


def _facts(lock: RunLock) -> list[Fact]:
    last = lock.segments[-1]
    denied = sum(len(documents) for denial in lock.denials for _, documents in denial.documents)
    return [
        ("identity", lambda: run_identity(lock)[:16]),
        ("samples", _amount(None if last.num_samples is None else last.start + last.num_samples)),
        ("consumed", lock.consumed or None),
        ("order", "megatron" if lock.is_megatron else str(lock.order)),
        ("seed", str(lock.seed)),
        ("dataset", lock.dataset),
        ("tokenizer", None if lock.tokenizer is None else lock.tokenizer.name),
        ("denied documents", denied or None),
    ]


def _stages(lock: RunLock) -> Markup:
    shown = lock.segments[:_MOST_STAGES]
    rows: list[list[Cell]] = [
        [segment.stage, segment.start, _amount(segment.num_samples), segment.sequence_length, len(segment.weights)]
        for segment in shown
    ]
    if left := len(lock.segments) - len(shown):
        rows.append([f"{left:,} others", None, None, None, None])
    return table(["stage", "from position", "samples", "sequence length", "sources"], rows)


def _sources(lock: RunLock) -> Markup:
    tokens = [sum(pair.num_tokens for pair in source.pairs) for source in lock.sources]

    def row(source: LockedSource, num_tokens: int) -> list[Cell]:
        documents = sum(pair.num_documents for pair in source.pairs)
        return [source.name, len(source.pairs), documents, short(num_tokens)]

    def others(rest: list[int]) -> list[Cell]:
        pairs = [pair for number in rest for pair in lock.sources[number].pairs]
        return [len(pairs), sum(pair.num_documents for pair in pairs), short(sum(pair.num_tokens for pair in pairs))]

    rows = [row(source, count) for source, count in zip(lock.sources, tokens, strict=True)]
    return top_table(["source", "pairs", "documents", "tokens"], rows, sizes=tokens, others=others)
