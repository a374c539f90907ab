"""What is measured, as values: a row is one job that a user knows, a side is one way to do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OURS, LIMIT = "tokenloom", "limit"
"""Whose work a side is: this package's; nobody's, but what the machine must do at least. Peers go by their name."""

QUANTITIES = ("rate", "seconds", "bytes", "ratio")
"""Work per second (more is better), seconds, bytes of memory, or a ratio that the side tells (less is better)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to do the job of a row.

    Attributes:
        name: what readers see, such as "ThreadLoader".
        library: whose work it is: `OURS`, `LIMIT`, or the name of a peer.
        script: the file below `sides/` that does it, in a process of its own.
        arguments: of its `prepare`; JSON values. `folder`, the row's data, is added.
        environment: the virtual environment it runs in, by its name in `environments`; None for this one.
        checkout: of tokenloom, whose side and environment are used; None for this one.
        fresh: whether each round takes a new process: for what a process does once, and for peaks of memory.
    """

    name: str
    library: str
    script: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: str | None = None
    checkout: Path | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job, done by all sides on the same data in one run, in turns.

    Attributes:
        job: rows of one job stand together; `--only` takes it.
        name: the job with its sizes.
        compares: what is compared, in a sentence.
        fairness: why that is fair: data, order, output, caches, imports, and what was checked.
        limit: what the limit side does, and why nothing can be below it.
        unit: what is counted, such as "tokens"; ignored for seconds and bytes, what it is of for a ratio.
        quantity: one of `QUANTITIES`.
        rounds: how often each side runs.
        sides: those of tokenloom first; ratios are to the first.
        prepare: writes the data into a folder, unless it is there; not counted.
        same: names of sides that must report the same digest of what they made.
        part: the folder, below that of the run, where the data of this row are; rows of one part share them.
    """

    job: str
    name: str
    compares: str
    fairness: str
    limit: str
    unit: str = ""
    quantity: str = "rate"
    rounds: int
    sides: tuple[Side, ...]
    prepare: Callable[[Path], None]
    same: tuple[str, ...] = ()
    part: str = ""

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            raise ValueError(f"expected `quantity` to be one of {QUANTITIES}, found {self.quantity!r}")
        names = [side.name for side in self.sides]
        if len(set(names)) != len(names):
            raise ValueError(f"expected sides with names of their own in row {self.name!r}, found {names}")
        if not self.sides or self.sides[0].library != OURS:
            raise ValueError(f"expected the first side of row {self.name!r} to be of {OURS}")
        if unknown := set(self.same) - set(names):
            raise ValueError(f"row {self.name!r} compares digests of sides that it has not: {sorted(unknown)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the time of one path goes.

    Attributes:
        name: the path, such as "index build".
        method: how the shares were found.
        arguments: of `sides/profile.py`.
        prepare: writes the data into a folder, unless it is there.
    """

    name: str
    method: str
    arguments: Mapping[str, Any]
    prepare: Callable[[Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured: `full` for numbers worth telling, `quick` to see that everything works.

    Attributes:
        name: of the mode.
        rounds: of each row.
        corpus_tokens: of each corpus that samples and loaders read.
        mean_tokens: of the documents of these corpora, and of those that indices are built over.
        lengths: sequence lengths.
        index_builds: (documents, epochs) of each index build, at all mean lengths.
        more_index_builds: the same, at one mean length.
        built_documents: that builders write.
        blends: (datasets, samples) of each blend.
        packings: (shape of lengths, ranks, sub-samples) of each plan.
        prefixes: of the start-up.
        text_megabytes: of the slice that every side tokenizes, and of the larger input that only tokenloom gets.
        merge_megabytes: of each of four pairs.
        seconds: that fetching samples and loading takes in a round.
    """

    name: str
    rounds: int
    corpus_tokens: int
    mean_tokens: tuple[int, ...]
    lengths: tuple[int, ...]
    index_builds: tuple[tuple[int, int], ...]
    more_index_builds: tuple[tuple[int, int], ...]
    built_documents: int
    blends: tuple[tuple[int, int], ...]
    packings: tuple[tuple[str, int, int], ...]
    prefixes: int
    text_megabytes: tuple[int, int]
    merge_megabytes: int
    seconds: float


FULL = Scale(
    name="full",
    rounds=5,
    corpus_tokens=60_000_000,
    mean_tokens=(100, 400, 2000),
    lengths=(2048, 8192),
    index_builds=((10_000_000, 1), (10_000_000, 3)),
    more_index_builds=((1000, 1), (100_000, 1), (50_000_000, 3)),
    built_documents=300_000,
    blends=((2, 1 << 22), (5, 1 << 22), (10, 1 << 22), (100, 1 << 22), (1000, 1 << 20)),
    packings=(("lognormal", 64, 2048), ("1 k / 37 k, whole", 256, 8192)),
    prefixes=1000,
    text_megabytes=(20, 200),
    merge_megabytes=256,
    seconds=0.5,
)
QUICK = Scale(
    name="quick",
    rounds=3,
    corpus_tokens=6_000_000,
    mean_tokens=(400,),
    lengths=(2048,),
    index_builds=((1_000_000, 3),),
    more_index_builds=((1000, 1),),
    built_documents=30_000,
    blends=((5, 1 << 20), (100, 1 << 20)),
    packings=(("lognormal", 64, 2048),),
    prefixes=200,
    text_megabytes=(4, 20),
    merge_megabytes=32,
    seconds=0.2,
)
SCALES = {scale.name: scale for scale in (FULL, QUICK)}
