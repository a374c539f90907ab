"""Runs on disk, in either order: pairs of unique tokens, and a `run.toml` beside them."""

from fractions import Fraction
from pathlib import Path

import numpy as np
from tests.cli.runs import RUN, write_run
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.run.data import write_source
from tests.support import StandInTokenizer

from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.run.amend import Amendment, amend_run
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run

HEAD = "order = 1\nseed = 1234\n"
STAGE = "[[stages]]\nsequence_length = 16\nsamples = 600\nweights = { web = 3, code = 1 }\n"
SOURCES = '[sources]\nweb = "web-*"\ncode = "code"\n'


def write_pair(prefix: Path, num_documents: int, *, first: int = 0, seed: int = 0, longest: int = 40) -> int:
    """Writes documents of consecutive tokens from `first` on, so that a token tells its place; returns how many."""
    lengths = np.random.default_rng(seed).integers(1, longest, size=num_documents)
    token = first
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32) as builder:
        for length in lengths.tolist():
            builder.add_document(list(range(token, token + length)), [length])
            token += length
        builder.finalize(f"{prefix}.idx")
    return token - first


def write_data(folder: Path) -> None:
    """Writes two pairs of one source and one of another."""
    first = 0
    for number, name in enumerate(("web-0", "web-1", "code")):
        first += write_pair(folder / name, 120 + 10 * number, first=first, seed=number)


def write_toml(folder: Path, stages: str = STAGE, *, head: str = HEAD, sources: str = SOURCES) -> Path:
    path = folder / "run.toml"
    path.write_text(head + sources + stages)
    return path


def make_run(folder: Path, stages: str = STAGE, **parts: str) -> Run:
    """Returns a run over such data."""
    if not (folder / "code.idx").exists():
        write_data(folder)
    return Run.open(write_toml(folder, stages, **parts))


def texts(dataset, positions) -> list[list[int]]:
    """Returns the tokens and the last label of samples: all that a window reads."""
    found = []
    for position in positions:
        sample = dataset.sample(position)
        found.append([*sample["tokens"].tolist(), int(sample["labels"][-1])])
    return found


def talks(folder, name: str, count: int, first: int) -> None:
    random = np.random.default_rng(first)

    def turn(longest: int) -> list[int]:
        return random.integers(first, first + 1000, size=random.integers(1, longest)).tolist()

    write_conversations(folder / name, [conversation((PROMPT, turn(6)), (ANSWER, turn(9))) for _ in range(count)])


def chat_run(folder, kind: str, stages: str = STAGE, *, head: str = HEAD, samples: str = "") -> Run:
    for number, (name, count) in enumerate((("web-0", 90), ("web-1", 40), ("code", 60))):
        talks(folder, name, count, 1000 * (number + 1))
    path = write_toml(folder, stages, head=head + f'dataset = "{kind}"\n' + samples)
    cache = {"path_to_cache": folder} if "megatron" in head else {}
    return Run.open(path, tokenizer=StandInTokenizer(pad=7), **cache)


CHANGED_SOURCES = '[sources]\nweb = { data = "web-*", holdout = "10%" }\ncode = "code"\n'
CHANGED_STAGE = "[[stages]]\nsequence_length = 16\nsamples = 500\nweights = { web = 3, code = 1 }\n"


def start(folder: Path, text: str = RUN) -> Path:
    path = write_run(folder, text)
    lock_run(path)
    return path


def shares(**weights: int) -> tuple[tuple[str, Fraction], ...]:
    return tuple((name, Fraction(weight)) for name, weight in weights.items())


def changed_run(folder: Path, rng: np.random.Generator, *, head: str = HEAD, num_changes: int = 4) -> Run:
    """Returns a run of some 500 positions over pairs of 120 to 250 documents, changed at random positions."""
    run = make_run(folder, CHANGED_STAGE, head=head, sources=CHANGED_SOURCES)
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


MEGATRON_SOURCES = 'web = "web"\ncode = "code"\n'
MEGATRON_STAGE = "sequence_length = 16\nsamples = 300\nweights = { web = 0.7, code = 0.3 }\n"
MEGATRON_LENGTHS = {"web": range(20, 60), "code": range(5, 95, 3), "news": (400, 30, 170)}


def make_megatron(folder: Path, *, sources=MEGATRON_SOURCES, stage=MEGATRON_STAGE, seed=1234, head="") -> Path:
    for name, lengths in MEGATRON_LENGTHS.items():
        if not (folder / f"{name}.bin").exists():
            write_source(folder / name, *lengths)
    path = folder / "run.toml"
    path.write_text(f'order = "megatron"\nseed = {seed}\n{head}[sources]\n{sources}[[stages]]\n{stage}')
    return path


def opened(path, **options):
    return Run.open(path, tokenizer=StandInTokenizer(), **options)
