"""All jobs, by the names that `--only` takes, in the order of the table."""

from __future__ import annotations

from collections.abc import Sequence

from harness.row import Row, Scale

from rows import (
    blending,
    builder,
    contamination,
    index_build,
    loader,
    merge,
    packing,
    preprocess,
    retro,
    samples,
    startup,
)

MODULES = (index_build, samples, retro, loader, blending, packing, startup, preprocess, builder, merge, contamination)
JOBS = (
    "index",
    "samples",
    "retro",
    "loader",
    "memory",
    "blend",
    "packing",
    "startup",
    "preprocess",
    "builder",
    "merge",
    "contamination",
)
PROFILE = "profile"


def all_rows(scale: Scale, only: Sequence[str] = ()) -> list[Row]:
    """Returns the rows of a mode, all of them or those of some jobs."""
    rows = [row for module in MODULES for row in module.rows(scale)]
    return [row for row in rows if not only or row.job in only]
