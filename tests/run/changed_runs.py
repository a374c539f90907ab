"""Runs on disk that were changed a few times while they ran: new stages, growth, denials, other lengths."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
from tests.cli.runs import RUN, write_run
from tests.run.folders import HEAD, make_run, write_pair

from tokenloom.run.amend import Amendment, amend_run
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run

SOURCES = '[sources]\nweb = { data = "web-*", holdout = "10%" }\ncode = "code"\n'
STAGE = "[[stages]]\nsequence_length = 16\nsamples = 500\nweights = { web = 3, code = 1 }\n"


def start(folder: Path, text: str = RUN) -> Path:
    path = write_run(folder, text)
    lock_run(path)
    return path


def shares(**weights: int) -> tuple[tuple[str, Fraction], ...]:
    return tuple((name, Fraction(weight)) for name, weight in weights.items())


def changed_run(folder: Path, rng: np.random.Generator, *, head: str = HEAD, num_changes: int = 4) -> Run:
    """Returns a run of some 500 positions over pairs of 120 to 250 documents, changed at random positions."""
    run = make_run(folder, STAGE, head=head, sources=SOURCES)
    positions = sorted({int(position) for position in rng.integers(5, 480, size=num_changes)})
    for number, position in enumerate(positions):
        if run.num_samples is None or position > run.num_samples - 5:  # longer samples are fewer
            break
        kind = rng.choice(["weights", "length", "growth", "denied"])
        weights = (("web", Fraction(int(rng.integers(1, 9)))), ("code", Fraction(int(rng.integers(0, 3)))))
        amendment = Amendment(position=position, weights=weights)
        if kind == "length":
            amendment = Amendment(position=position, sequence_length=int(rng.choice([8, 16, 24, 32, 40])))
        elif kind == "growth":
            write_pair(folder / f"web-{5 + number}", 70, first=10**6 * (number + 1), seed=number)
            amendment = Amendment(position=position, grows=True)
        elif kind == "denied":
            (folder / f"denied-{number}").write_text("".join(f"web:{each}\n" for each in rng.integers(0, 250, size=20)))
            amendment = Amendment(position=position, denied=str(folder / f"denied-{number}"))
        amend_run(folder / "run.toml", amendment)
        run = Run.open(folder / "run.toml")
    return run
