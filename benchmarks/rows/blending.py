"""The order of a blend."""

from __future__ import annotations

from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.fairness import NO_IMPORTS, PROCESSES

PEER = "megatron-core"


def blend_row(num_datasets: int, size: int, weights: str, mode: str, rounds: int) -> Row:
    """Returns one row; `weights` is equal or dirichlet, `mode` weighted or exhaustive."""

    def side(name: str, library: str) -> Side:
        arguments = {"side": library, "datasets": num_datasets, "size": size, "weights": weights, "mode": mode}
        return Side(name=name, library=library, script="blend.py", arguments=arguments)

    return Row(
        job="blend",
        name=f"blend of {num_datasets} datasets, {weights}, {mode}",
        compares="the order of a blend: for each sample its dataset and its number there",
        fairness="Same weights; both arrays are compared. The peer fills arrays that exist already, ours makes "
        f"them, and uses all cores, as it does in a build. {NO_IMPORTS} {PROCESSES} No files.",
        limit="writing arrays of that size into new memory, in one thread",
        unit="samples",
        rounds=rounds,
        sides=(side("build_blending_indices", OURS), side("megatron helpers", PEER), side("write the arrays", LIMIT)),
        prepare=lambda folder: None,
        same=("build_blending_indices", "megatron helpers"),
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode."""
    return [blend_row(count, size, "dirichlet", "weighted", scale.rounds) for count, size in scale.blends]
