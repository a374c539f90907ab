"""What is going on: a job that makes a corpus, or a training loop that writes what it reads and loses."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tokenloom.corpus.job_state import JobState, job_state
from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.explorer.following import Followed, number_of
from tokenloom.explorer.looking import Looking
from tokenloom.explorer.queries import Query
from tokenloom.rendering.html import table
from tokenloom.report.section import Chart, Series

_MOST_SOURCES = 8
"""Lines of a chart; colours tell no more of them apart."""


def watch(looking: Looking, query: Query) -> dict[str, Any]:
    """Returns how far it is."""
    query.check_read()
    if looking.target.folder is not None:
        return _job(looking, looking.target.folder)
    if looking.follower is not None:
        return _training(looking.follower.look(), looking.follower.path)
    message = "expected a job or a file to watch, found none"
    raise ConfigError(message, hint="explore the folder of a job, or name a file with --follow")


def _job(looking: Looking, folder: str) -> dict[str, Any]:
    try:
        state = job_state(folder, known=looking.reports)
    except DatasetNotFoundError:
        words = f"The job is done: its folder `{folder}` is gone."
        return {"words": words, "progress": None, "facts": [], "html": "", "charts": [], "is_over": True}
    total = state.num_shards
    return {
        "words": _job_words(state),
        "progress": None if total is None else {"done": state.num_shards_done, "total": total, "unit": "shards"},
        "facts": _job_facts(state),
        "html": _workers(state),
        "charts": [chart.as_json() for chart in _job_charts(looking)],
        "is_over": False,
    }


def _job_words(state: JobState) -> str:
    if state.is_assembling:
        return "The parts are put together."
    alive = sum(worker.is_alive for worker in state.workers)
    done = f"{state.num_shards_done:,}" + ("" if state.num_shards is None else f" of {state.num_shards:,}")
    at_work = f"{alive:,} {'is' if alive == 1 else 'are'} being worked on" if alive else "nobody works on it"
    return f"{done} shards are done, {at_work}."


def _job_facts(state: JobState) -> list[tuple[str, str]]:
    facts = [
        ("documents", f"{state.num_documents:,}"),
        ("tokens", f"{state.num_tokens:,}"),
        ("rejected", f"{state.num_rejected:,}"),
        ("blank lines", f"{state.num_blank_lines:,}"),
        ("bytes of text", f"{state.num_text_bytes:,}"),
        ("input files", f"{state.num_files:,}"),
    ]
    if state.tokens_per_second is not None:
        facts.append(("tokens per second", f"{state.tokens_per_second:,.0f}"))
    if state.seconds_left is not None:
        facts.append(("time left, about", _duration(state.seconds_left)))
    if state.num_unreadable:
        facts.append(("damaged reports, done again", f"{state.num_unreadable:,}"))
    return facts


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _workers(state: JobState) -> str:
    if not state.workers:
        return ""
    rows = [
        (
            str(worker.process),
            worker.machine[:8],
            "all parts" if worker.shard is None else worker.shard,
            "at work" if worker.is_alive else "gone",
            f"{worker.silent_seconds:.0f} s",
        )
        for worker in state.workers
    ]
    return table(("process", "machine", "shard", "state", "last sign of life"), rows)


def _job_charts(looking: Looking) -> list[Chart]:
    """Returns the tokens that were written over time."""
    done = sorted((written, report.num_tokens) for report, written in list(looking.reports.values()))
    if len(done) < 2:
        return []
    times = np.array([written for written, _ in done]) - done[0][0]
    return [
        Chart(
            id="job-tokens",
            kind="lines",
            title="Tokens written",
            summary="Tokens of all shards that are done, over the time since the first of them was.",
            x_label="seconds",
            x=times,
            y_label="tokens",
            y_format="tokens",
            series=[Series("tokens", np.cumsum([tokens for _, tokens in done]))],
        )
    ]


def _training(found: Followed, path: str) -> dict[str, Any]:
    lines = [line for line in found.lines if isinstance(line.get("sources"), list)]
    facts = []
    if found.changed is not None:
        facts.append(("last written", f"{_duration(max(0.0, time.time() - found.changed))} ago"))
    if lines:
        facts += [(name, f"{lines[-1][key]:,}") for name, key in _PLACES if isinstance(lines[-1].get(key), int)]
    if found.num_skipped:
        facts.append(("lines that are no reports", f"{found.num_skipped:,}"))
    words = f"`{path}` has {len(lines):,} reports{'' if found.is_whole else ' at its end'}."
    return {
        "words": f"`{path}` is not there yet." if found.changed is None else words,
        "progress": None,
        "facts": facts,
        "html": _last(lines[-1]) if lines else "",
        "charts": [chart.as_json() for chart in _training_charts(lines)],
        "is_over": False,
    }


_PLACES = (("step", "step"), ("samples that were consumed", "consumed_samples"))
_MEASURES = (("loss", "Loss by source"), ("passes", "Passes over the sources"))


def _sources_of(line: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {str(each.get("name")): each for each in line["sources"] if isinstance(each, dict)}


def _last(line: dict[str, Any]) -> str:
    """Returns the last report as a table."""
    columns = ("loss", "tokens", "total_tokens", "total_samples", "passes")
    rows = [
        (name, *(None if np.isnan(number_of(source.get(column))) else source[column] for column in columns))
        for name, source in _sources_of(line).items()
    ]
    return table(("source", *(column.replace("_", " ") for column in columns)), rows)


def _training_charts(lines: list[dict[str, Any]]) -> list[Chart]:
    """Returns loss and passes of the sources over the steps; of many sources those that were read most."""
    steps = np.array([number_of(line.get("step")) for line in lines])
    if len(lines) < 2 or np.isnan(steps).any() or (np.diff(steps) <= 0).any():
        steps = np.arange(len(lines), dtype=np.float64)  # of a loop that tells no steps, or began again
    if len(lines) < 2:
        return []
    last = _sources_of(lines[-1])
    names = sorted(last, key=lambda name: -np.nan_to_num(number_of(last[name].get("total_tokens"))))
    by_line = [_sources_of(line) for line in lines]
    charts = []
    for key, title in _MEASURES:
        series = [
            Series(name, np.array([number_of(sources.get(name, {}).get(key)) for sources in by_line]))
            for name in names[:_MOST_SOURCES]
        ]
        is_part = len(names) > len(series)
        note = f"{len(series)} of {len(names):,} sources, those that were read most." if is_part else ""
        if any(not np.isnan(np.asarray(each.values)).all() for each in series):
            charts.append(
                Chart(
                    id=f"training-{key}",
                    kind="lines",
                    title=title,
                    summary=f"{title}, over the steps of training that were reported.",
                    x_label="step",
                    x=steps,
                    y_label=key,
                    series=series,
                    note=note,
                )
            )
    return charts
