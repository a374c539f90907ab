"""Views of positions: a page of samples, the tokens of one sample, and all samples that read a document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.loading.losses import span_losses
from tokenloom.run.audit.trace import SpanTable, trace_dataset
from tokenloom_look.explorer.queries import NotThereError, Query
from tokenloom_look.explorer.session import PREVIEW_TOKENS, Session, preview
from tokenloom_look.shown_html import legend_html, shown_html
from tokenloom_look.target import Target

_ROWS, _MOST_ROWS = 50, 200
_AROUND = 32  # losses of a sample are compared with the losses of this many positions before and after the sample
_ENDLESS = 1 << 60
_SAMPLES_AHEAD = 1_000_000  # default number of positions of an endless last stage to search for a document


def positions(session: Session, query: Query) -> dict[str, Any]:
    """Returns a page of samples: `total` (None if endless), `first`, and `rows`; each row has source, step, preview."""
    samples = session.samples()
    first, count = query.page(default=_ROWS, most=_MOST_ROWS)
    query.check_read()
    total = len(samples)
    chosen = np.arange(min(first, total), min(first + count, total), dtype=np.int64)
    rows = _rows(session, chosen) if len(chosen) else []
    for row, step in zip(rows, session.steps(chosen), strict=True):
        row["step"] = step
    return {"total": None if total >= _ENDLESS else total, "first": first, "rows": rows}


def position(session: Session, query: Query) -> dict[str, Any]:
    """Returns a sample as HTML, with its step, facts and spans."""
    samples = session.samples()
    number = query.number("position")
    query.check_read()
    if number >= len(samples):
        raise NotThereError(f"position {number} out of range: the target has {len(samples)} positions")
    shown = session.target.sample(number)
    near = np.arange(max(0, number - _AROUND), min(number + _AROUND + 1, len(samples)))
    losses = _losses(session, near)
    [step] = session.steps(np.array([number], dtype=np.int64))
    numbers = {source.name: source.number for source in session.target.sources}
    return {
        "position": number,
        "step": step,
        "heading": shown.heading,
        "facts": [*([] if step is None else [("step", f"{step:,}")]), *shown.facts],
        "spans": [
            asdict(span)
            | {"source": numbers.get(span.source), "name": span.source}
            | losses.get((number, span.slot), {})
            for span in shown.spans
        ],
        "num_tokens": shown.num_tokens,
        "html": shown_html(shown),
        "legend_html": legend_html(shown),
    }


def _losses(session: Session, chosen: np.ndarray[Any, np.dtype[np.int64]]) -> dict[tuple[int, int], dict[str, Any]]:
    """Returns {(position, first slot): the `loss` per token and `loss_level`, 0 (usual) to 2 (high)} of spans."""
    run = session.target.run
    if run is None or session.losses is None:
        return {}
    losses = span_losses(run, session.losses, chosen.tolist())
    lengths = {(row["position"], row["slot"]): row["length"] for row in run.trace(chosen).rows()}
    return {
        place: {"loss": f"{found.loss / lengths[place]:.4g}", "loss_level": found.level}
        for place, found in losses.items()
    }


def occurrences(session: Session, query: Query) -> dict[str, Any]:
    """Returns positions before `stop` at which a run reads a document: the `total` number, and a page of `rows`."""
    source = session.source(query)
    number = session.document(query, source)
    first, count = query.page(default=_ROWS, most=_MOST_ROWS)
    stop = query.number("stop", _ENDLESS)
    query.check_read()
    run = session.target.run
    if run is None:
        message = f"the target must be a run, got {session.target.kind} `{session.target.name}`"
        raise ConfigError(message, hint="explore a run.toml to see which samples read a document")
    end = run.lock.segments[-1].start + _SAMPLES_AHEAD if run.num_samples is None else run.num_samples
    stop = end if stop == _ENDLESS else min(stop, end) if run.num_samples is not None else stop
    table = run.occurrences({source: [number]}, stop=stop)
    page = table.take(np.arange(min(first, len(table)), min(first + count, len(table))))
    steps, losses = session.steps(page.positions), _losses(session, page.positions)
    rows = [
        {name: row[name] for name in ("position", "pass", "stage", "start", "length", "denied")}
        | {"step": step, "seen": None if session.consumed is None else row["position"] < session.consumed}
        | losses.get((row["position"], row["slot"]), {})
        for row, step in zip(page.rows(), steps, strict=True)
    ]
    return {"total": len(table), "first": first, "stop": stop, "has_end": run.num_samples is not None, "rows": rows}


def _trace(target: Target, chosen: np.ndarray[Any, np.dtype[np.int64]]) -> SpanTable:
    return trace_dataset(target.samples, chosen) if target.run is None else target.run.trace(chosen)


def _rows(session: Session, chosen: np.ndarray[Any, np.dtype[np.int64]]) -> list[dict[str, Any]]:
    """Returns the source, number of spans, preview and highest loss of each position."""
    table, losses = _trace(session.target, chosen), _losses(session, chosen)
    firsts = np.searchsorted(table.positions, chosen)
    counts = (np.searchsorted(table.positions, chosen, side="right") - firsts).tolist()
    heads = {row["position"]: row for row in table.take(firsts[np.array(counts) > 0]).rows()}
    rows = []
    for number, first, count in zip(chosen.tolist(), firsts.tolist(), counts, strict=True):
        head = heads.get(number)
        row = {name: None if head is None else head[name] for name in ("stage", "source", "pass", "window")}
        text = "" if head is None else _preview(session.target, head)
        own = [losses.get((number, slot), {}) for slot in table.slots[first : first + count].tolist()]
        worst = max(own, key=lambda each: (each.get("loss_level", -1), float(each.get("loss", 0))), default={})
        rows.append({"position": number, **row, "num_spans": count, "preview": text, **worst})
    return rows


def _preview(target: Target, span: dict[str, Any]) -> str:
    """Returns the start of the text of a span, or a note if the span is denied."""
    if span["denied"]:
        return "(denied: padding)"
    data = target.pairs.get(span["pair"]).data
    found = data.get(span["row"], span["start"], min(span["length"], PREVIEW_TOKENS))
    return preview((found[0] if data.multimodal else found).tolist(), target.tokenizer)
