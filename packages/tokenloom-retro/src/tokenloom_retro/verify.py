"""Whether a project is what was made: its files, and what comes out when some of its blocks are made again."""

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
    """Returns what of a project's files is not what their manifests say, a sentence each; all bytes are read.

    Data sets are none of these: `verify_dataset` is for them. Nor is what the reference made, which has no manifests.

    Args:
        project: the project folder.
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
    """Returns what of a project is not what it should be, a sentence each; nothing is written.

    First all files are compared with the checksums of their manifests. If they are whole, each output is compared with
    what it would be made of today: data sets, tokenizer, embedder, settings; what needs one that would be made of other
    things is left out. Of the others a part of the blocks is made again: chunks, vectors to train on, codes, neighbors,
    bit for bit. An index is not trained again: its bits depend on threads.

    Args:
        project: path of the project folder.
        settings: what it was made of.
        tokenizer: tokenizer of the pairs: an object, a path or a name.
        embedder: what made vectors of texts; see `as_embedder`.
        fraction: part of the blocks of each output that is made again, above 0 and at most 1; at least one block.
        seed: decides which.

    Raises:
        ConfigError: a setting is wrong, or the fraction out of range.
        DatasetNotFoundError: a data set is not there.
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
            problems.append(f"`{path}`: expected the manifest of {output.task}, found none")
        elif differences := differences_of(manifest.identity, json.loads(json.dumps(output.identity))):
            problems.append(f"`{path}`: {output.task} would be made of other things now: {differences}")
        elif task is not None:
            for start, stop in differing_blocks(task, manifest.blocks, fraction=fraction, seed=seed):
                rows = f"{task.unit} {start:,} to {stop:,}"
                problems.append(f"`{path}`: {rows} come out otherwise when they are made again")
    return problems


def _manifest_paths(project: RetroProject) -> Iterator[str]:
    """Yields the path of each manifest of a project, in the order of paths."""
    for each in (project.database_folder, project.index_folder("", ""), project.query_folder):
        for folder, inner, names in os.walk(each):
            inner[:] = sorted(name for name in inner if not name.endswith((".job", ".job.removed")))
            for name in sorted({MANIFEST, TRAINED_MANIFEST, FILLED_MANIFEST}.intersection(names)):
                yield os.path.join(folder, name)


def _problems_of(path: str, num_bytes: int, crc32: int) -> Iterator[str]:
    if not os.path.isfile(path):
        yield f"`{path}`: expected a file of {num_bytes:,} bytes, found none"
    elif (found := os.path.getsize(path)) != num_bytes:
        yield f"`{path}`: expected {num_bytes:,} bytes, found {found:,}"
    elif (sum_of := crc32_of(path)) != crc32:
        yield f"`{path}`: expected bytes with the checksum {crc32:08x}, found {sum_of:08x}"
