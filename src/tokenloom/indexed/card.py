"""What a notebook shows of a pair, and of what a complete check of one found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.rendering.card import Fact, card
from tokenloom.rendering.html import Markup
from tokenloom.rendering.words import size

if TYPE_CHECKING:
    from tokenloom.indexed.dataset import IndexedDataset
    from tokenloom.indexed.verify import VerifyReport

_MOST_PROBLEMS = 10


def pair_facts(pair: IndexedDataset) -> list[Fact]:
    """Returns what is known of a pair; only counts, as long as its files are not open."""
    facts: list[Fact] = [("documents", pair.num_documents)]
    if len(pair) != pair.num_documents:
        facts.append(("sequences", len(pair)))
    if not pair.is_open:
        return facts
    return [
        *facts,
        ("tokens", lambda: pair.num_tokens),
        ("mean length", lambda: f"{pair.num_tokens / len(pair):,.1f} tokens"),
        ("dtype", lambda: pair.dtype.name),
        ("size", lambda: size(pair.num_tokens * pair.dtype.itemsize)),
        ("pairs", None if pair.catalogue is None else len(pair.catalogue.sections)),
        ("in object storage", True if pair.is_remote else None),
    ]


def pair_card(pair: IndexedDataset) -> Markup:
    """Returns the card of a pair."""
    return card(type(pair).__name__, pair_facts(pair), name=pair.path_prefix)


def verify_card(report: VerifyReport) -> Markup:
    """Returns the card of what a check found."""
    facts: list[Fact] = [
        ("sound", report.ok),
        ("tokens read", report.num_tokens),
        ("smallest token", report.smallest_token),
        ("largest token", report.largest_token),
        ("compared with a manifest", report.has_manifest),
    ]
    problems = list(report.problems[:_MOST_PROBLEMS])
    if left := len(report.problems) - len(problems):
        problems.append(f"and {left:,} more")
    return card("VerifyReport", facts, alarms=problems)
