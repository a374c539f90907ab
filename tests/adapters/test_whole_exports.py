"""An export that is killed, or for which the disk is full, leaves what was there or all that is new."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.faults import dies_at
from tests.indexed.pairs import write_pair

from tokenloom.adapters import export_documents

STEPS = [pytest.param(4, id="some"), pytest.param(1, marks=pytest.mark.slow, id="every")]


@pytest.fixture
def pairs(tmp_path: Path) -> list[str]:
    return [write_pair(tmp_path / name, [[[number] * 300] for _ in range(9)]) for number, name in enumerate("ab")]


def export(prefix: str, output: Path) -> None:
    export_documents(prefix, output, part_bytes=3000, row_group_bytes=1024, overwrite=True)


def left_beside(output: Path) -> list[str]:
    """Returns what lies beside an output; without locks nobody knows whose hidden file is left."""
    known = (".lock", ".tmp") if "flock" in os.environ.get("TOKENLOOM_MISSING", "") else (".lock",)
    return [path.name for path in output.parent.iterdir() if path != output and path.suffix not in known]


def read(output: Path) -> list[int]:
    """Returns the first token of each document, as any program reads an output.

    A folder that was being replaced may be away after a death, between two renames, until the next export.
    """
    if not output.exists():
        output = output.with_name(f".{output.name}.export.old")
    paths = sorted(output.iterdir()) if output.is_dir() else [output]
    return [row[0] for path in paths for row in pq.read_table(path)["tokens"].to_pylist()]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_death_at_any_call_leaves_old_or_new(tmp_path, pairs, name, step):
    output = tmp_path / "exports" / name
    for number in count(0, step):
        export(pairs[0], output)
        died = dies_at(output.parent, number, lambda: export(pairs[1], output), every=step == 1)
        assert read(output) in ([0] * 9, [1] * 9), number
        if not died:
            break
        export(pairs[1], output)
        assert (read(output), left_beside(output)) == ([1] * 9, []), number
    assert number > 3
