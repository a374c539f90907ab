"""Whether a project is what was made: its files, and what comes out when some of its blocks are made again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Self

from tokenloom.errors import TokenloomError
from tokenloom.jobs.folder_contents import differences_of
from tokenloom.progress import task as shown_task
from tokenloom.storage.atomic import storage_errors
from tokenloom_retro.block_job import differing_blocks
from tokenloom_retro.block_plan import BlockTask
from tokenloom_retro.build import RetroBuildSettings, chunk_maker, neighbor_tasks
from tokenloom_retro.chunk_maker import ChunkMaker
from tokenloom_retro.database_build import DATABASE, chunk_task, database_identity
from tokenloom_retro.embedders import Embedder, EmbedFunction
from tokenloom_retro.index_build import FILLED_MANIFEST, INDEX_TYPE, TRAINED_MANIFEST, code_task, sample_task
from tokenloom_retro.output import MANIFEST, OutputManifest, crc32_of
from tokenloom_retro.project import RetroProject

_MANIFESTS = frozenset({MANIFEST, TRAINED_MANIFEST, FILLED_MANIFEST})


def damaged_files(project: RetroProject) -> list[str]:
    """Returns what of a project's files is not what their manifests say, a sentence each; all bytes are read.

    Data sets are none of these: `verify_dataset` is for them. Nor is what the reference made, which has no manifests.

    Args:
        project: the project folder.

    Raises:
        StorageError: a folder cannot be listed.
    """
    outputs, problems = [], []
    for folder, name in _manifests(project):
        try:
            if (manifest := OutputManifest.read(folder, name)) is not None:
                outputs.append((folder, manifest))
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
    for output in _outputs(folder, settings, chunk_maker(settings, tokenizer, embedder)):
        if output.problem is not None:
            problems.append(f"`{output.path}`: {output.problem}")
        elif output.task is not None and output.manifest is not None:
            different = differing_blocks(output.task, output.manifest.blocks, fraction=fraction, seed=seed)
            rows = [f"{output.task.unit} {block.start:,} to {block.stop:,}" for block in different]
            problems += [f"`{output.path}`: {each} come out otherwise when they are made again" for each in rows]
    return problems


class _Output:
    """An output that should be there.

    Attributes:
        path: path of its manifest.
        manifest: what is there; None if nothing.
        problem: why it is not what would be made today, in words; None if it is.
        task: makes blocks again; None for an output without blocks of its own.
    """

    def __init__(self, folder: str, file: str, name: str, identity: dict[str, Any], task: BlockTask | None) -> None:
        self.path = os.path.join(folder, file)
        self.manifest = OutputManifest.read(folder, file)
        self.task = task
        self.problem: str | None = None
        if self.manifest is None:
            self.problem = f"expected the manifest of {name}, found none"
        else:
            found = {member: self.manifest.identity.get(member) for member in identity}
            if differences := differences_of(found, json.loads(json.dumps(identity))):
                self.problem = f"{name} would be made of other things now: {differences}"

    @classmethod
    def of(cls, task: BlockTask, folder: str, file: str) -> Self:
        """Returns the output whose blocks a task makes."""
        return cls(folder, file, task.name, task.identity(), task)


def _outputs(project: RetroProject, settings: RetroBuildSettings, chunks: ChunkMaker) -> Iterator[_Output]:
    """Yields the outputs in the order they are made in, up to the first ones that are not what would be made today."""
    parts = []
    for _, prefix in settings.data:
        task = chunk_task(project, chunks, settings.of_database, prefix)
        yield (part := _Output.of(task, project.individual_folder(prefix), MANIFEST))
        parts += [part.manifest] if part.manifest is not None and part.problem is None else []
    if len(parts) < len(settings.data):
        return
    identity = database_identity(chunks, settings.of_database, parts)
    yield (database := _Output(project.database_folder, MANIFEST, DATABASE, identity, None))
    if database.manifest is None or database.problem is not None:
        return
    folder = project.index_folder(INDEX_TYPE, settings.index)
    samples = sample_task(project, chunks, settings.of_index, database.manifest)
    yield (trained := _Output.of(samples, folder, TRAINED_MANIFEST))
    if trained.manifest is None or trained.problem is not None:
        return
    codes = code_task(project, chunks, settings.of_index, database.manifest, trained.manifest)
    yield (filled := _Output.of(codes, folder, FILLED_MANIFEST))
    if filled.manifest is None or filled.problem is not None:
        return
    for queries in neighbor_tasks(project, settings, chunks, filled.manifest):
        yield _Output.of(queries, queries.folder, MANIFEST)


def _manifests(project: RetroProject) -> Iterator[tuple[str, str]]:
    """Yields folder and name of each manifest of a project, in the order of paths."""

    def fail(error: OSError) -> None:
        with storage_errors("list", str(error.filename)):
            raise error

    folders = (project.database_folder, project.index_folder("", ""), project.query_folder)
    for each in filter(os.path.isdir, folders):
        for folder, inner, names in os.walk(each, onerror=fail):
            inner[:] = sorted(name for name in inner if not name.endswith((".job", ".job.removed")))
            for name in sorted(_MANIFESTS.intersection(names)):
                yield folder, name


def _problems_of(path: str, num_bytes: int, crc32: int) -> Iterator[str]:
    if not os.path.isfile(path):
        yield f"`{path}`: expected a file of {num_bytes:,} bytes, found none"
    elif (found := os.path.getsize(path)) != num_bytes:
        yield f"`{path}`: expected {num_bytes:,} bytes, found {found:,}"
    elif (sum_of := crc32_of(path)) != crc32:
        yield f"`{path}`: expected bytes with the checksum {crc32:08x}, found {sum_of:08x}"
