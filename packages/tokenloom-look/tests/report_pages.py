"""Helpers for tests of report sections."""

from __future__ import annotations

import html as markup
import re

from tests.run.small_runs import lock

from tokenloom.run.run import Run
from tokenloom_look.report.section import ReportOptions, Section
from tokenloom_look.target import Target, TargetKind


def words_of(html: str) -> str:
    """Returns the text of HTML, with single spaces."""
    return markup.unescape(re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", html)).strip())


def target_of(run: Run) -> Target:
    return Target(kind=TargetKind.run, name=run.path, run=run)


def locked(sources, segments, **settings) -> Target:
    """Returns a run that has only a lock."""
    return target_of(Run("run.toml", lock(sources, segments, **settings)))


def made(make, target: Target, **options) -> Section | None:
    section = make(target, ReportOptions(**options))
    if section is not None:
        section.as_json()
    return section
