"""What is going on: a job that makes a corpus, or a training loop that writes what it reads and loses."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError, DatasetNotFoundError, StorageError
from tokenloom.preprocess.job_state import JobState, job_state
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.explorer.queries import Query
from tokenloom_look.report.job_section import job_html
from tokenloom_look.report.section import Chart, Series
from tokenloom_look.report.statistics_section import Line, last_lines, section_of_lines


def watch(looking: Looking, query: Query) -> dict[str, Any]:
    """Returns how far it is."""
    query.check_read()
    if looking.target.folder is not None:
        return _job(looking, looking.target.folder)
    if looking.followed is not None:
        return _training(looking.followed)
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
        "facts": [],
        "html": job_html(state, time.time()),
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


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


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


def _training(path: str) -> dict[str, Any]:
    """Returns how training goes, as the report draws what its loop wrote."""
    lines: list[Line] = []
    facts: list[tuple[str, str]] = []
    words, num_skipped = f"`{path}` is not there yet.", 0
    try:
        facts.append(("last written", f"{_duration(max(0.0, time.time() - os.stat(path).st_mtime))} ago"))
        lines, num_skipped = last_lines(path)
        words = f"`{path}` has {len(lines):,} lines."
    except FileNotFoundError:
        pass
    except OSError as error:
        message = f"cannot read `{path}`: {error.strerror or error}"
        raise StorageError(message) from error
    section = section_of_lines(path, lines, num_lines=len(lines) + num_skipped)
    last = lines[-1] if lines else {}
    return {
        "words": words,
        "progress": None,
        "facts": [*facts, *((name, f"{last[key]:,}") for name, key in _PLACES if type(last.get(key)) is int)],
        "html": section.html,
        "charts": [chart.as_json() for chart in section.charts],
        "is_over": False,
    }


_PLACES = (("step", "step"), ("samples that were consumed", "consumed_samples"))
