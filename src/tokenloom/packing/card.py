"""What a notebook shows of a packing plan and of a report on packing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenloom.rendering.card import card
from tokenloom.rendering.html import Markup, table

if TYPE_CHECKING:
    from tokenloom.packing.plan import PackPlan
    from tokenloom.packing.report import PackingQuality, PackReport


def pack_plan_card(plan: PackPlan) -> Markup:
    """Returns the card of a plan."""
    sizes = np.unique(plan.cp_sizes).tolist()
    facts = [
        ("sub-samples", len(plan.ids)),
        ("packs", plan.num_packs),
        ("sub-samples of a pack", f"{len(plan.ids) / plan.num_packs:.3g}" if plan.num_packs else None),
        ("ranks", plan.num_ranks),
        ("microbatches", plan.num_microbatches),
        ("ranks that share a pack", ", ".join(map(str, sizes))),
    ]
    return card("PackPlan", facts)


def pack_report_card(report: PackReport) -> Markup:
    """Returns the card of a report."""
    facts = [
        ("sub-samples", len(report.lengths)),
        ("tokens", report.num_tokens),
        ("longest", int(report.lengths[0]) if len(report.lengths) else None),
        ("tokens of a pack, at most", report.max_tokens),
        ("ranks", report.num_ranks),
        ("microbatches, at least", report.least_microbatches),
    ]
    columns = ["scheduler", "microbatches", "fill", "padding tokens", "worst imbalance", "ranks busy"]
    rows = [_row(row) for row in report.rows if row.refused is None]
    refused = [f"{row.scheduler}: {row.refused}" for row in report.rows if row.refused is not None]
    return card("PackReport", facts, tables=[table(columns, rows)], alarms=refused)


def _row(row: PackingQuality) -> list[str | int]:
    return [
        row.scheduler,
        row.num_microbatches,
        f"{row.fill:.1%}",
        row.num_padding_tokens,
        f"{row.worst_imbalance:.3f}",
        f"{1 / row.relative_time:.1%}" if row.relative_time else "",
    ]
