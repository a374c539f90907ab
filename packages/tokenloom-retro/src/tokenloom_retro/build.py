"""A whole project: its chunk database, its index, and the neighbors of the samples of each split."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, get_args

from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.multi_split import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig
from tokenloom.errors import ConfigError
from tokenloom.jobs.running import Runner
from tokenloom_retro.block_job import local_blocks
from tokenloom_retro.chunk_maker import ChunkMaker, as_chunk_maker
from tokenloom_retro.database_build import build_database
from tokenloom_retro.embedders import Embedder, EmbedFunction
from tokenloom_retro.gpt_chunks import GPTChunkDataset, get_num_chunks_per_sample
from tokenloom_retro.index_build import build_index
from tokenloom_retro.output import OutputManifest
from tokenloom_retro.project import RetroProject
from tokenloom_retro.query_build import NeighborTask, build_neighbors
from tokenloom_retro.recorded import record_settings
from tokenloom_retro.settings import RetroBuildSettings as RetroBuildSettings

Task = Literal["db-build", "index-build", "query-neighbors"]
"""The parts of a build, in their order; each needs those before it, which are not done again."""

TASKS: tuple[Task, ...] = get_args(Task)

_SPLITS = ("train", "valid", "test")


def build_retro(
    project: str | os.PathLike[str],
    settings: RetroBuildSettings,
    *,
    tokenizer: Any,
    embedder: Embedder | EmbedFunction | str = "wordllama",
    tasks: Sequence[Task] = TASKS,
    num_processes: int | None = None,
    num_workers: int | None = None,
    runner: Runner | None = None,
    restart: bool = False,
    overwrite: bool = False,
) -> dict[str, OutputManifest]:
    """Builds a project, or what of it is missing, and returns the manifest of each output, by its task.

    Every task is a job of blocks: it may be killed anywhere, and goes on with the same call; several processes and
    machines that see the project folder share it; what is done is not done again.

    Args:
        project: path of the project folder, whose folder `data` has the pairs.
        settings: what it is made of.
        tokenizer: tokenizer of the pairs: an object, a path or a name.
        embedder: what makes vectors of texts; see `as_embedder`.
        tasks: what is done.
        num_processes: processes on this machine; None for one per 16 processors.
        num_workers: threads of each; None for as many as there are processors for it.
        runner: makes the blocks; None for this machine.
        restart: gives up what an earlier call did and did not finish, and begins that anew.
        overwrite: whether what was made of something else is replaced.

    Raises:
        ConfigError: a setting is wrong, or a data set has too few chunks.
        DatasetNotFoundError: a data set is not there.
        OutputExistsError: something else is there, and no `overwrite`.
        TokenloomError: reading or writing failed; what was made is kept.
    """
    if unknown := set(tasks).difference(TASKS):
        message = f"expected tasks of {', '.join(TASKS)}, found {min(unknown)!r}"
        raise ConfigError(message)
    if "query-neighbors" in tasks and not any(settings.sizes):
        message = "expected a number of samples of train, valid or test to find neighbors for, found none"
        raise ConfigError(message)
    folder = RetroProject(project)
    chunks = chunk_maker(settings, tokenizer, embedder)
    if "query-neighbors" in tasks:  # what is wrong with samples is said before chunks and index take their hours
        get_num_chunks_per_sample(settings.sequence_length, settings.chunk_length)
        retro_samples(folder, settings, chunks.tokenizer)
    run = runner or local_blocks(num_processes=num_processes, num_workers=num_workers)
    options: dict[str, Any] = {"runner": run, "restart": restart, "overwrite": overwrite}

    def record(**neighbor_dirs: str) -> None:
        record_settings(folder, settings, tokenizer=chunks.tokenizer, embedder=embedder, neighbor_dirs=neighbor_dirs)

    made = {"db-build": build_database(folder, chunks, settings.of_database, **options)}
    record()
    if "index-build" in tasks or "query-neighbors" in tasks:
        made["index-build"] = build_index(folder, chunks, settings.of_index, made["db-build"], **options)
    if "query-neighbors" in tasks:
        queries = neighbor_tasks(folder, settings, chunks, made["index-build"])
        for task in queries:
            made[f"query-neighbors {task.split}"] = build_neighbors(task, **options)
        record(**{task.split: os.path.basename(task.folder) for task in queries})
    return made


def chunk_maker(settings: RetroBuildSettings, tokenizer: Any, embedder: Embedder | EmbedFunction | str) -> ChunkMaker:
    """Returns what makes chunks into texts and vectors.

    Raises:
        ConfigError: the tokenizer has no end-of-document token, or the embedder is none.
    """
    return as_chunk_maker(tokenizer, embedder, chunk_length=settings.chunk_length)


def neighbor_tasks(
    project: RetroProject, settings: RetroBuildSettings, chunks: ChunkMaker, index: OutputManifest
) -> list[NeighborTask]:
    """Returns the task of each split that has samples.

    Raises:
        ConfigError: a sample is no whole number of chunks, or a split has too few documents.
    """
    return [
        NeighborTask(
            chunks,
            project.folder,
            GPTChunkDataset(samples, settings.sequence_length, settings.chunk_length),
            split,
            settings.of_queries,
            size * (settings.sequence_length // settings.chunk_length),
            index.digest,
        )
        for split, (samples, size) in retro_samples(project, settings, chunks.tokenizer).items()
    ]


def retro_samples(
    project: RetroProject, settings: RetroBuildSettings, tokenizer: Any
) -> dict[str, tuple[MultiSplitGPTDataset | BlendedDataset, int]]:
    """Returns the samples that neighbors are found for, and how many of them, by split; not those without any."""
    prefixes = [project.data_prefix(prefix) for _, prefix in settings.data]
    config = MultiSplitGPTDatasetConfig(
        random_seed=settings.seed,
        sequence_length=settings.sequence_length,
        blend=(prefixes, settings.blend_weights),
        split=settings.split,
        split_preprocessing=settings.split,
        return_document_ids=True,
        tokenizer=tokenizer,
        path_to_cache=settings.cache or os.path.join(project.folder, "cache"),
        **settings.of_samples,
    )
    sizes = [size or 0 for size in settings.sizes]
    built = BlendedMegatronDatasetBuilder(MultiSplitGPTDataset, sizes, lambda: True, config).build()
    found = {}
    for split, samples, size in zip(_SPLITS, built, sizes, strict=True):
        if size and samples is None:
            message = f"expected documents of {split} for {size} samples, found none: the split is {settings.split!r}"
            raise ConfigError(message)
        if size:
            _check_order(samples, prefixes)
            found[split] = (samples, size)
    return found


def _check_order(samples: Any, prefixes: Sequence[str]) -> None:
    """Checks that data sets have the same numbers in the blend as in the database, by which documents are compared."""
    members = samples.datasets if isinstance(samples, BlendedDataset) else [samples]
    found = [member.dataset_path for member in members]
    if found != list(prefixes):
        message = f"expected samples of the data sets {list(prefixes)}, found {found}"
        raise ConfigError(message, hint="a data set without documents in a split cannot be part of the blend")
