"""Runs in the reference's order on disk."""

from __future__ import annotations

from pathlib import Path

from tests.run.data import write_source
from tests.support import StandInTokenizer

from tokenloom.run.run import Run

SOURCES = 'web = "web"\ncode = "code"\n'
STAGE = "sequence_length = 16\nsamples = 300\nweights = { web = 0.7, code = 0.3 }\n"
LENGTHS = {"web": range(20, 60), "code": range(5, 95, 3), "news": (400, 30, 170)}


def make(folder: Path, *, sources=SOURCES, stage=STAGE, seed=1234, head="") -> Path:
    for name, lengths in LENGTHS.items():
        if not (folder / f"{name}.bin").exists():
            write_source(folder / name, *lengths)
    path = folder / "run.toml"
    path.write_text(f'order = "megatron"\nseed = {seed}\n{head}[sources]\n{sources}[[stages]]\n{stage}')
    return path


def opened(path, **options):
    return Run.open(path, tokenizer=StandInTokenizer(), **options)
