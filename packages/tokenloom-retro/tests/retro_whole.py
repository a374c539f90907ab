"""Whole small projects for tests: two datasets of letters, and settings to build them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from retro_making import EOD, LetterEmbedder, LetterTokenizer, project_of

from tokenloom_retro.build import build_retro
from tokenloom_retro.output import OutputManifest
from tokenloom_retro.project import RetroProject
from tokenloom_retro.settings import RetroBuildSettings

PREFIXES = ("books", "web")

SETTINGS = RetroBuildSettings(
    data=((1.0, "books"), (2.0, "web")),
    sequence_length=8,
    sizes=(20, 3, None),
    split="80,20,0",
    chunk_length=4,
    index="Flat",
    num_index_chunks=10,
    num_neighbors=2,
    num_searched=50,
    block_size=16,
    document_block_size=7,
)


def project(folder: Path, rng: np.random.Generator, *, num_documents: int = 30) -> RetroProject:
    """Returns a project that only has data."""
    corpora = {
        name: [[*rng.integers(1, 26, rng.integers(4, 25)).tolist(), EOD] for _ in range(num_documents)]
        for name in PREFIXES
    }
    return project_of(folder, **corpora)


def build(made: RetroProject, settings: RetroBuildSettings = SETTINGS, **options: Any) -> dict[str, OutputManifest]:
    who = {"tokenizer": LetterTokenizer(), "embedder": LetterEmbedder()}
    return build_retro(made.folder, settings, **(who | options))


def copy_of(made: RetroProject, folder: Path) -> RetroProject:
    """Returns another project with the same data."""
    other = RetroProject(folder)
    for path in Path(made.data_folder).rglob("*.*"):
        target = Path(other.data_folder) / path.relative_to(made.data_folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return other


def outputs_of(made: RetroProject) -> dict[str, bytes]:
    """Returns all output files by path, with neighbor folders named by their split."""
    found = {}
    for folder in (made.database_folder, made.index_folder("", ""), made.query_folder):
        for path in Path(folder).rglob("*"):
            if path.is_file() and path.suffix != ".json":
                parts = [part.split("_")[0] if len(part) > 32 else part for part in path.relative_to(made.folder).parts]
                found["/".join(parts)] = path.read_bytes()
    return found
