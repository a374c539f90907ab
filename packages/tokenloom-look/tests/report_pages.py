"""Sections as a person reads them."""

from __future__ import annotations

import html as markup
import re

from tests.run.small_runs import lock

from tokenloom.run.run import Run
from tokenloom_look.report.section import ReportOptions, Section
from tokenloom_look.target import Target, TargetKind


def words_of(html: str) -> str:
    """Returns the words of a piece of HTML, a blank between them."""
    return markup.unescape(re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", html)).strip())


def target_of(run: Run) -> Target:
    return Target(kind=TargetKind.run, name=run.path, run=run)


def locked(sources, segments, **settings) -> Target:
    """Returns a run of which there is a lock alone."""
    return target_of(Run("run.toml", lock(sources, segments, **settings)))


def made(make, target: Target, **options) -> Section | None:
    section = make(target, ReportOptions(**options))
    if section is not None:
        section.as_json()
    return section
