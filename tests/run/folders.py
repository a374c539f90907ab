"""Runs on disk: pairs of unique tokens, and a `run.toml` beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.support import StandInTokenizer

from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
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
