"""The view `watch`: progress of a job, or statistics of a training loop."""

from __future__ import annotations

import os
import time
from typing import Any

from tokenloom.errors import ConfigError, DatasetNotFoundError, StorageError
from tokenloom_look.explorer.queries import Query
from tokenloom_look.explorer.session import Session
from tokenloom_look.report.job_section import job_html, job_state
from tokenloom_look.report.section import duration
from tokenloom_look.report.statistics_section import Line, last_lines, section_of_lines


def watch(session: Session, query: Query) -> dict[str, Any]:
    """Returns the progress of the job, or the statistics of training, as words, facts, HTML and charts."""
    query.check_read()
    if session.target.folder is not None:
        return _job(session.target.folder)
    if session.followed is not None:
        return _training(session.followed)
    message = "the target has no progress to watch"
    raise ConfigError(message, hint="explore the folder of a job, or add `--follow FILE` with a statistics file")


def _job(folder: str) -> dict[str, Any]:
    try:
        state = job_state(folder, now := time.time())
    except DatasetNotFoundError:
        words = f"The job is done: its folder `{folder}` was removed."
        return {"words": words, "progress": None, "facts": [], "html": "", "charts": [], "is_over": True}
    num_done, total = len(state.done), state.num_shards
    return {
        "words": f"{num_done:,} of {total:,} shards are done, {state.doing}.",
        "progress": {"done": num_done, "total": total, "unit": "shards"},
        "facts": [],
        "html": job_html(state, now),
        "charts": [],
        "is_over": False,
    }


def _training(path: str) -> dict[str, Any]:
    """Returns the age, the last step and the charts of the statistics file; if there is no file yet, says so."""
    lines: list[Line] = []
    facts: list[tuple[str, str]] = []
    words, num_skipped = f"`{path}` does not exist yet.", 0
    try:
        facts.append(("last written", f"{duration(max(0.0, time.time() - os.stat(path).st_mtime))} ago"))
        lines, num_skipped = last_lines(path)
        words = f"`{path}` has {len(lines):,} lines."
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"`{path}`: cannot read it: {error.strerror or error}") from error
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


_PLACES = (("step", "step"), ("consumed samples", "consumed_samples"))
