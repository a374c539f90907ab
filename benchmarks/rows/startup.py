"""What a process does before its first batch: imports, and opening a blend of many datasets."""

from __future__ import annotations

from pathlib import Path

from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.data import write_many
from rows.fairness import NO_IMPORTS, PROCESSES

PEER = "megatron-core"
DOCUMENTS, RANKS = 40, 4
MEANINGS = {
    "cold": "nothing cached: indices are built and written",
    "warm": "indices are cached",
    "fast": "indices are cached; the peer with its three settings for it (fast_cache_load, defer_npy_index_mmap, "
    "sequences_per_dataset), ours without any",
}


def start_row(mode: str, num_datasets: int, rounds: int) -> Row:
    """Returns the row of one mode."""

    def side(name: str, library: str) -> Side:
        arguments = {"side": library, "mode": mode, "count": num_datasets}
        return Side(name=name, library=library, script="start.py", arguments=arguments, fresh=True)

    name = "BlendedMegatronDatasetBuilder"
    return Row(
        job="startup",
        name=f"start-up, {num_datasets} prefixes, {mode}",
        compares=f"`BlendedMegatronDatasetBuilder.build` of one blend in one process; {MEANINGS[mode]}",
        fairness="Same pairs, same settings; each round is a new process, and so is its first sight of the files, "
        f"which the page cache holds. {NO_IMPORTS} Each side has a cache of its own; when cold, a new folder each "
        "time.",
        limit="the calls of the file system alone: each `.idx` file opened, its size asked, its header read, the "
        "size of "
        "its `.bin` file asked" + ("; cached files written, of the same sizes" if mode == "cold" else ""),
        quantity="seconds",
        rounds=rounds,
        sides=(side(name, OURS), side(f"megatron {name}", PEER), side("file system", LIMIT)),
        prepare=lambda folder: write_many(Path(folder) / "many", num_datasets, DOCUMENTS),
    )


def ranks_row(mode: str, ranks: int, num_datasets: int, rounds: int) -> Row:
    """Returns the row of several ranks; the warm ones come after `start_row` has filled the caches."""

    def side(name: str, library: str) -> Side:
        arguments = {"side": library, "mode": mode, "ranks": ranks, "count": num_datasets}
        return Side(name=name, library=library, script="start_ranks.py", arguments=arguments, fresh=True)

    limit = {"side": LIMIT, "mode": mode, "count": num_datasets}
    name = "BlendedMegatronDatasetBuilder"
    return Row(
        job="startup",
        name=f"start-up, {num_datasets} prefixes, {mode}, {ranks} ranks",
        compares="`BlendedMegatronDatasetBuilder.build` of one blend on ranks that gloo joins: the slowest of them; "
        f"{MEANINGS[mode]}",
        fairness="Same pairs, same settings; imports and joining are not counted. Ranks are forked from one process.",
        limit="the calls of the file system alone, in one process",
        quantity="seconds",
        rounds=rounds,
        sides=(
            side(name, OURS),
            side(f"megatron {name}", PEER),
            Side(name="file system", library=LIMIT, script="start.py", arguments=limit, fresh=True),
        ),
        prepare=lambda folder: write_many(Path(folder) / "many", num_datasets, DOCUMENTS),
    )


def import_row(rounds: int) -> Row:
    """Returns the row of the import."""

    def side(name: str, library: str, statement: str) -> Side:
        return Side(name=name, library=library, script="imports.py", arguments={"statement": statement})

    return Row(
        job="startup",
        name="import",
        compares="a new interpreter that imports the package and ends",
        fairness=f"Whole processes, the start of Python included, with byte code cached and the page cache warm. "
        f"megatron-core brings torch, which tokenloom imports only for tensors. {PROCESSES}",
        limit="a new interpreter that imports NumPy, the one dependency that both need",
        quantity="seconds",
        rounds=rounds,
        sides=(
            side("import tokenloom", OURS, "import tokenloom"),
            side("import GPTDataset of megatron", PEER, "from megatron.core.datasets.gpt_dataset import GPTDataset"),
            side("import numpy", LIMIT, "import numpy"),
        ),
        prepare=lambda folder: None,
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode; cold comes before the warm ones, whose caches it fills."""
    return [
        import_row(scale.rounds),
        *(start_row(mode, scale.prefixes, min(scale.rounds, 3)) for mode in ("cold", "warm", "fast")),
        ranks_row("cold", RANKS, scale.prefixes, min(scale.rounds, 3)),
    ]
