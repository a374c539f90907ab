"""Sections about a run: stages and blend over time, passes over its sources, held-out and denied documents."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.run.lock import BLOCK_DOCUMENTS, LockedSegment, LockedSource, RunLock
from tokenloom.run.plan import PlannedSource, RunHistory, RunPlan, closed_at, plan_of
from tokenloom.run.run import Run
from tokenloom_look.html import Cell, Markup, element, facts, joined, table
from tokenloom_look.report.run_pieces import (
    MOST_ROWS,
    axis_of,
    first_ones,
    horizon_of,
    largest,
    largest_rows,
    layers,
    marks_of,
    num_shown,
    others,
    source_series,
    stepped,
    with_steps,
)
from tokenloom_look.report.section import Chart, ReportOptions, Section, share
from tokenloom_look.target import Target

_STORED = (
    "This run uses Megatron's order, which is stored in an index. This section does not build the index; "
    "`Run.open(path).history()` builds it and counts shares over time."
)

_MANY_PASSES = 4  # up to 4 passes, repeated tokens are nearly as good as new ones (Muennighoff et al., 2023)

_MOST_LINES = 12
_MOST_FINDINGS = 5


def stages_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns the stages of a run and its blend over time."""
    if target.run is None:
        return None
    run, lock = target.run, target.run.lock
    html: list[Cell] = [_facts(run), _stages(lock)]
    if lock.is_megatron:
        html.append(element("p", _STORED, class_="note"))
        return Section(id="stages", title="Stages and blend", html=joined(html))
    horizon = horizon_of(run)
    history = with_steps(run.history(until=horizon.position), options)
    if horizon.note:
        html.append(element("p", horizon.note, class_="note"))
    return Section(id="stages", title="Stages and blend", html=joined(html), charts=[_blend(history)])


def passes_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns the number of passes over each source of a run, and the tokens that are never read."""
    if target.run is None or target.run.lock.is_megatron:
        return None
    run = target.run
    horizon = horizon_of(run)
    history = with_steps(run.history(until=horizon.position), options)
    plan = plan_of(closed_at(run.lock, horizon.position))
    html: list[Cell] = [_sources(plan, history), _caps(run.plan())]
    if horizon.note:
        html.append(element("p", horizon.note, class_="note"))
    return Section(
        id="passes",
        title="Passes over the sources",
        html=joined(html),
        charts=[_passes(history)],
        findings=list(_findings(history)),
    )


def held_out_section(target: Target, _options: ReportOptions) -> Section | None:
    """Returns the held-out and the denied documents of a run; None if the run has neither."""
    if target.run is None:
        return None
    lock = target.run.lock
    html = [each for each in (_held_out(lock), _denied(lock)) if each is not None]
    if not html:
        return None
    return Section(id="held-out", title="Held-out and denied documents", html=joined(html))


def _facts(run: Run) -> Markup:
    lock, size = run.lock, run.num_samples
    tokens = sum((segment.num_samples or 0) * segment.sequence_length for segment in lock.segments)
    return facts(
        [
            ("run", run.identity),
            ("order", lock.order_name),
            ("seed", str(lock.seed)),
            ("samples", f"{lock.dataset}, {lock.windows}, documents {lock.documents}"),
            ("positions", "without end" if size is None else size),
            ("tokens of samples", None if size is None else tokens),
            ("consumed positions", lock.consumed or None),
            ("sources", len(lock.sources)),
            ("tokenizer", None if lock.tokenizer is None else lock.tokenizer.name),
        ]
    )


def _stages(lock: RunLock) -> Markup:
    rows: list[list[Cell]] = [
        [
            segment.stage,
            segment.start,
            "without end" if segment.num_samples is None else segment.num_samples,
            segment.sequence_length,
            len(segment.weights),
            _weights(lock, segment),
        ]
        for segment in lock.segments[:MOST_ROWS]
    ]
    hidden = len(lock.segments) - len(rows)
    columns = ["stage", "first position", "samples", "tokens per sample", "sources", "weights"]
    note = "A stage that was split by a change of the run has several rows."
    note = note if len({segment.stage for segment in lock.segments}) < len(lock.segments) else ""
    note = f"{note} {hidden:,} more rows are not shown.".strip() if hidden else note
    return table(columns, rows, caption="Stages", note=note or None)


def _weights(lock: RunLock, segment: LockedSegment) -> str:
    """Returns a text with the names and shares of the sources that have the largest weights in a segment."""
    total = sum(weight for _, weight in segment.weights)
    ranked = sorted(segment.weights, key=lambda each: -each[1])
    return first_ones([f"{lock.sources[source].name} {share(weight, total)}" for source, weight in ranked])


def _blend(history: RunHistory) -> Chart:
    label, xs = axis_of(history)
    corners, heights = stepped(xs, history.shares)
    whole = history.samples[-1] / max(1, int(history.positions[-1]))
    ranked = [f"{history.sources[source]} {share(whole[source], 1)}" for source in largest(history, 3)]
    return Chart(
        id="blend-over-time",
        kind="stacked",
        title="Blend over time",
        summary=f"Shares of the largest sources: {', '.join(ranked)}.",
        x_label=label,
        x=corners,
        y_label="share of the samples",
        y_format="share",
        series=layers(history, heights),
        marks=marks_of(history),
        note=f"Counted in {len(history.positions) - 1:,} intervals.",
    )


def _passes(history: RunHistory) -> Chart:
    label, xs = axis_of(history)
    ranked = largest(history, len(history.sources))
    by_passes = sorted(ranked, key=lambda source: -history.passes[-1, source])
    drawn = set(by_passes[:_MOST_LINES])
    shown = [source for source in ranked if source in drawn]
    ends = [f"{history.sources[source]} {history.passes[-1, source]:,.2f}" for source in by_passes[:3]]
    num_hidden = len(by_passes) - len(shown)
    return Chart(
        id="passes-over-time",
        kind="lines",
        title="Passes over the sources",
        summary=f"Passes at the end, most often read sources first: {', '.join(ends)}.",
        x_label=label,
        x=xs,
        y_label="passes",
        series=[source_series(history, source, history.passes[:, source]) for source in shown],
        marks=marks_of(history),
        note=f"The {len(shown)} sources read most often; {num_hidden:,} are not shown." if num_hidden else "",
    )


def _sources(plan: RunPlan, history: RunHistory) -> Markup:
    passes = dict(zip(history.sources, history.passes[-1].tolist(), strict=True))

    def sums(rows: list[PlannedSource]) -> list[Cell]:
        return [
            sum(row.offered_tokens for row in rows),
            sum(row.seen_tokens for row in rows),
            sum(row.unseen_tokens for row in rows),
            sum(row.uncovered_tokens for row in rows),
        ]

    rows = largest_rows(
        plan.sources,
        lambda row: row.seen_tokens,
        lambda row: [row.name, f"{passes[row.name]:,.2f}", *sums([row])],
        lambda rest: [None, *sums(list(rest))],
    )
    columns = ["source", "passes", "tokens of started passes", "read", "not reached", "dropped tail"]
    return table(columns, rows, caption="Tokens by source")


def _caps(plan: RunPlan) -> Markup | None:
    reached = [cap for cap in plan.caps if cap.position is not None]
    if not reached:
        return None
    words = {"stop": "the run stops", "renormalise": "other sources continue", "repeat": "the source is repeated"}
    rows: list[list[Cell]] = [
        [cap.source, cap.max_passes, cap.position, words[cap.follows or "stop"]] for cap in reached[:MOST_ROWS]
    ]
    return table(["source", "maximum passes", "reached at position", "then"], rows, caption="Caps that are reached")


def _findings(history: RunHistory) -> Iterator[str]:
    last = history.passes[-1]
    often = [source for source in largest(history, len(last)) if last[source] > _MANY_PASSES]
    count = num_shown(len(often), _MOST_FINDINGS)
    for source in sorted(often, key=lambda source: -last[source])[:count]:
        yield f"{history.sources[source]} is read {last[source]:,.1f} times up to position {history.positions[-1]:,}."
    if len(often) > count:
        yield f"{others(len(often) - count)} of the sources are read more than {_MANY_PASSES} times."
    unread = [source for source in range(len(last)) if not history.samples[-1, source]]
    if 0 < len(unread) <= _MOST_FINDINGS:
        yield from (f"{history.sources[source]} is in no sample of the run." for source in unread)
    elif unread:
        yield f"{len(unread):,} of the {len(last):,} sources are in no sample of the run."


def _held_out(lock: RunLock) -> Markup | None:
    held = [source for source in lock.sources if any(pair.held_tokens for pair in source.pairs)]
    if not held:
        return None

    def sums(sources: list[LockedSource]) -> list[Cell]:
        pairs = [pair for source in sources for pair in source.pairs]
        documents = sum(
            pair.held_documents or min(pair.held_blocks * BLOCK_DOCUMENTS, pair.num_documents) for pair in pairs
        )
        tokens = sum(pair.held_tokens for pair in pairs)
        return [documents, tokens, share(tokens, sum(pair.num_tokens for pair in pairs))]

    rows = largest_rows(
        held,
        lambda source: sum(pair.held_tokens for pair in source.pairs),
        lambda source: [source.name, *sums([source])],
        lambda rest: sums(list(rest)),
    )
    columns = ["source", "documents (at most)", "tokens", "share of its tokens"]
    note = f"Documents are held out in blocks of {BLOCK_DOCUMENTS}; the last block of a pair may be shorter."
    blocks = any(pair.held_blocks for source in held for pair in source.pairs)
    return table(columns, rows, caption="Held out for validation", note=note if blocks else None)


def _denied(lock: RunLock) -> Markup | None:
    if not lock.denials:
        return None
    rows: list[list[Cell]] = []
    for denial in lock.denials[:MOST_ROWS]:
        names = [f"{lock.sources[source].name} {len(documents):,}" for source, documents in denial.documents]
        rows.append([denial.start, sum(len(documents) for _, documents in denial.documents), first_ones(names)])
    hidden = len(lock.denials) - len(rows)
    note = "In samples, padding replaces these documents." + (f" {hidden:,} more rows are not shown." if hidden else "")
    return table(["from position", "documents", "sources"], rows, caption="Denied", note=note)
