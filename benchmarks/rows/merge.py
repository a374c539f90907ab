"""Joining pairs."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.data import write_corpus
from rows.fairness import NO_IMPORTS, PROCESSES, WARM

PEER = "megatron-core"
NUM_PAIRS = 4


def merge_row(megabytes: int, rounds: int) -> Row:
    """Returns the row of four pairs of that size."""
    names = [f"joined-{number}" for number in range(NUM_PAIRS)]

    def prepare(folder: Path) -> None:
        write_corpus(folder / names[0], int(megabytes * 1e6) // 2)
        for name in names[1:]:
            for suffix in (".bin", ".idx"):
                if not (target := folder / (name + suffix)).exists():
                    shutil.copyfile(folder / (names[0] + suffix), target)

    def side(name: str, library: str) -> Side:
        return Side(name=name, library=library, script="join.py", arguments={"side": library, "names": names})

    return Row(
        job="merge",
        name=f"merge, {NUM_PAIRS} pairs of {megabytes} MB",
        compares="several pairs joined into one",
        fairness=f"Same files; what comes out is compared, byte for byte. {WARM} What is written goes to the page "
        "cache, but where a side waits for the disk itself, as ours does before a file appears under its name. "
        f"{NO_IMPORTS} {PROCESSES} The peer's tool is not on PyPI: it is what that does with the peer's builder.",
        limit="`cp` of the same files",
        unit="MB",
        rounds=rounds,
        sides=(side("merge_datasets", OURS), side("megatron add_index", PEER), side("cp", LIMIT)),
        prepare=prepare,
        same=("merge_datasets", "megatron add_index"),
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode."""
    return [merge_row(scale.merge_megabytes, scale.rounds)]
