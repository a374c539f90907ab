"""Pairs for runs in a few lines, with and without manifests, and as large as one likes."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from tests.indexed.columns import put_origins
from tests.indexed.manifest.manifests import make_tokenizer_identity, write_recorded
from tests.support import write_corpus

from tokenloom.indexed.origins import RUNS, OriginFile
from tokenloom.run.settings import RunSettings, parse_run


def write_source(prefix: str | os.PathLike[str], *lengths: int, dtype: Any = np.uint16) -> str:
    """Writes a pair of documents of some lengths, in which document d holds the token d; returns its prefix."""
    os.makedirs(os.path.dirname(prefix), exist_ok=True)
    return write_corpus(prefix, [[number % 200] * length for number, length in enumerate(lengths)], dtype=dtype)


def write_with_manifest(prefix: str | os.PathLike[str], *lengths: int, **tokenizer: Any) -> str:
    """Writes the same with a manifest; `tokenizer` changes who made it."""
    os.makedirs(os.path.dirname(prefix), exist_ok=True)
    documents = [[[number % 90] * length] for number, length in enumerate(lengths)]
    return write_recorded(prefix, documents, tokenizer=make_tokenizer_identity(**tokenizer))


def settings_of(folder: Path, *sources: str, **top: Any) -> RunSettings:
    """Returns the settings of a run in a folder, with sources as lines of `run.toml`, all of weight 1."""
    names = [line.partition("=")[0].strip() for line in sources]
    lines = ["order = 1", "seed = 7", *(f"{name} = {value}" for name, value in top.items()), "[sources]", *sources]
    lines += ["[[stages]]", 'name = "main"', "sequence_length = 4"]
    lines += [f"weights = {{ {', '.join(f'{name} = 1' for name in names)} }}"]
    return parse_run("\n".join(lines), path=str(folder / "run.toml"))


def write_lines_origins(prefix: str, runs: list[tuple[int, int, int]], *, path: str, num_records: int) -> None:
    """Writes the origins of a pair: runs of (0, first line, lines) of a file of so many lines."""
    file = OriginFile(path=path, num_bytes=1, version=None, unit="line", num_records=num_records)
    put_origins(prefix, [file], [np.array(runs, dtype=RUNS)])


def with_origins(folder: Path) -> None:
    """Documents of `code` are lines 1, 2, …; of line 3 nothing came, of line 5 two documents."""
    runs = [(0, 1, 2), (0, 4, 2), (0, 5, 136)]
    write_lines_origins(str(folder / "code"), runs, path="raw/code.jsonl", num_records=200)
