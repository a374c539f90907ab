"""What a notebook shows of a job that is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.rendering.card import Fact, card, top_table
from tokenloom.rendering.html import Cell, Markup
from tokenloom.rendering.words import size

if TYPE_CHECKING:
    from tokenloom.corpus.chat import ChatSummary
    from tokenloom.corpus.summary import CorpusSummary


def corpus_card(summary: CorpusSummary) -> Markup:
    """Returns the card of a job over texts."""
    facts: list[Fact] = [
        ("documents", summary.num_documents),
        ("tokens", summary.num_tokens),
        ("input files", f"{summary.num_files:,}"),
        ("text read", size(summary.num_text_bytes) if summary.num_text_bytes else None),
        ("duplicates left out", summary.num_duplicates or None),
        ("texts that spell out added tokens", summary.num_doubled or None),
        ("blank lines", summary.num_blank_lines or None),
        ("shards", f"{summary.num_shards:,}, {summary.num_shards_reused:,} of them done before"),
        ("dtype", summary.dtype),
        ("engine", f"{summary.engine}: {summary.engine_reason}"),
        ("time", None if summary.was_complete else f"{summary.seconds:,.1f} s"),
    ]
    datasets = summary.datasets

    def others(rest: list[int]) -> list[Cell]:
        left = [datasets[number] for number in rest]
        documents, tokens = sum(each.num_documents for each in left), sum(each.num_tokens for each in left)
        return [None, documents, tokens, size(sum(each.num_bytes for each in left))]

    made = top_table(
        ["pair", "split", "documents", "tokens", "size"],
        [(each.prefix, each.split, each.num_documents, each.num_tokens, size(each.num_bytes)) for each in datasets],
        sizes=[each.num_tokens for each in datasets],
        others=others,
    )
    return card("CorpusSummary", facts, tables=[made], alarms=_alarms(summary.num_rejected, summary.rejected_paths))


def chat_card(summary: ChatSummary) -> Markup:
    """Returns the card of a job over conversations."""
    facts: list[Fact] = [
        ("conversations", summary.num_sequences),
        ("documents", summary.num_documents),
        ("tokens", summary.num_tokens),
        ("tokens of answers", f"{summary.num_answer_tokens:,}"),
        ("blank lines", summary.num_blank_lines or None),
        ("schema", summary.schema),
        ("template", summary.template),
        ("dtype", summary.dtype),
        ("engine", f"{summary.engine}: {summary.engine_reason}"),
        ("time", None if summary.was_complete else f"{summary.seconds:,.1f} s"),
    ]
    paths = () if summary.rejected_path is None else (summary.rejected_path,)
    return card("ChatSummary", facts, name=summary.prefix, alarms=_alarms(summary.num_rejected, paths))


def _alarms(num_rejected: int, paths: tuple[str, ...]) -> list[str]:
    return [f"{num_rejected:,} bad records are set aside in {', '.join(paths)}"] if num_rejected else []
