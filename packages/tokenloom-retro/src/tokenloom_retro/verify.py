"""Verifies a project: compares checksums of its files, and recomputes some blocks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from tokenloom.errors import TokenloomError
from tokenloom.preprocess.folder import differences_of
from tokenloom.progress import task as shown_task
from tokenloom_retro.block_job import differing_blocks
from tokenloom_retro.build import outputs_of, retro_samples
from tokenloom_retro.embedders import Embedder, EmbedFunction, as_chunk_maker
from tokenloom_retro.index_build import FILLED_MANIFEST, TRAINED_MANIFEST
from tokenloom_retro.output import MANIFEST, OutputManifest, crc32_of
from tokenloom_retro.project import RetroProject
from tokenloom_retro.settings import RetroBuildSettings


def damaged_files(project: RetroProject) -> list[str]:
    """Compares all files of a project with the checksums in the manifests; returns one sentence per problem.

    Datasets are not checked (see `verify_dataset`). Projects of Megatron have no manifests and are not checked either.
    """
    outputs, problems = [], []
    for path in _manifest_paths(project):
        try:
            if (manifest := OutputManifest.read(path)) is not None:
                outputs.append((os.path.dirname(path), manifest))
        except TokenloomError as error:
            problems.append(error.message)
    total = sum(record.num_bytes for _, manifest in outputs for record in manifest.files)
    with shown_task("check of files", unit="bytes", total=total) as advance:
        for folder, manifest in outputs:
            for record in manifest.files:
                problems += _problems_of(os.path.join(folder, record.name), record.num_bytes, record.crc32)
                advance(record.num_bytes)
    return problems


def verify_retro(
    project: str | os.PathLike[str],
    settings: RetroBuildSettings,
    *,
    tokenizer: Any,
    embedder: Embedder | EmbedFunction | str = "wordllama",
    fraction: float = 0.01,
    seed: int = 0,
) -> list[str]:
    """Verifies a project; returns one sentence per problem. Nothing is written.

    First runs `damaged_files`. If no file is damaged, compares the recorded identity of each output (datasets,
    tokenizer, embedder, settings) with the current identity, and recomputes some blocks (chunks, vectors to train on,
    codes, neighbors) bit for bit. Outputs whose inputs have changed are not recomputed. The index is not trained again,
    since its bits depend on the number of threads.

    Args:
        project: path of the project folder.
        settings: the settings of the build.
        tokenizer: tokenizer of the pairs: an object, a path or a name.
        embedder: see `as_embedder`.
        fraction: fraction of the blocks of each output to recompute, in (0, 1]; at least one block.
        seed: seed for choosing the blocks.

    Raises:
        ConfigError: a setting is invalid, or `fraction` is out of range.
        DatasetNotFoundError: a dataset does not exist.
        TokenloomError: reading failed.
    """
    folder = RetroProject(project)
    if problems := damaged_files(folder):
        return problems
    chunks = as_chunk_maker(tokenizer, embedder, chunk_length=settings.chunk_length)
    samples = partial(retro_samples, folder, settings, chunks.tokenizer)
    for output, task in outputs_of(folder, settings, chunks, samples):
        path, manifest = output.manifest_path, OutputManifest.read(output.manifest_path)
        if manifest is None:
            problems.append(f"`{path}`: no manifest of {output.task}")
        elif differences := differences_of(manifest.identity, json.loads(json.dumps(output.identity))):
            problems.append(f"`{path}`: the inputs of {output.task} have changed: {differences}")
        elif task is not None:
            for start, stop in differing_blocks(task, manifest.blocks, fraction=fraction, seed=seed):
                rows = f"{task.unit} {start:,} to {stop:,}"
                problems.append(f"`{path}`: {rows} differ when recomputed")
    return problems


def _manifest_paths(project: RetroProject) -> Iterator[str]:
    for each in (project.database_folder, project.index_folder("", ""), project.query_folder):
        for folder, inner, names in os.walk(each):
            inner[:] = sorted(name for name in inner if not name.endswith((".job", ".job.removed")))
            for name in sorted({MANIFEST, TRAINED_MANIFEST, FILLED_MANIFEST}.intersection(names)):
                yield os.path.join(folder, name)


def _problems_of(path: str, num_bytes: int, crc32: int) -> Iterator[str]:
    if not os.path.isfile(path):
        yield f"no file `{path}`, expected {num_bytes:,} bytes"
    elif (found := os.path.getsize(path)) != num_bytes:
        yield f"`{path}`: expected {num_bytes:,} bytes, found {found:,}"
    elif (checksum := crc32_of(path)) != crc32:
        yield f"`{path}`: expected checksum {crc32:08x}, found {checksum:08x}"
