"""Builds a whole project: chunk database, index, and neighbors of the samples of each split."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.errors import ConfigError
from tokenloom.preprocess.sharded import Runner
from tokenloom_retro.block_job import BlockTask, make_output
from tokenloom_retro.database_build import build_database, chunk_task, database_output
from tokenloom_retro.embedders import ChunkMaker, Embedder, EmbedFunction, as_chunk_maker
from tokenloom_retro.gpt_chunks import GPTChunkDataset, get_num_chunks_per_sample
from tokenloom_retro.index_build import build_index, embedding_task
from tokenloom_retro.multi_split import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig
from tokenloom_retro.output import Output, OutputManifest
from tokenloom_retro.project import RetroProject
from tokenloom_retro.query_build import NeighborTask, neighbor_task
from tokenloom_retro.settings import SPLITS, TASKS, RetroBuildSettings, Task, record_settings

Samples = Mapping[str, tuple[MultiSplitGPTDataset | BlendedDataset, int]]
"""By split: a dataset of samples, and how many of its samples get neighbors."""


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
    """Builds the missing parts of a project; returns {output: manifest}.

    The outputs are "db-build", "index-build" and, for each split with samples, "query-neighbors SPLIT".

    Each task is a job of blocks: it may be killed at any time, resumes with the same call, and can be shared by
    processes and machines that see the project folder.

    Args:
        project: path of the project folder; its folder `data` has the pairs.
        settings: the settings.
        tokenizer: tokenizer of the pairs: an object, a path or a name.
        embedder: see `as_embedder`.
        tasks: the tasks to run; tasks that these tasks need are run, too.
        num_processes: number of processes on this machine; None for one per 16 processors.
        num_workers: threads per process; None divides the processors among the processes.
        runner: runs the blocks; None to run them on this machine.
        restart: discard blocks of unfinished tasks.
        overwrite: replace outputs that were made with other settings or data.

    Raises:
        ConfigError: a setting is invalid, or a dataset has too few chunks.
        DatasetNotFoundError: a dataset does not exist.
        OutputExistsError: existing files would be replaced, and `overwrite` is False.
        TokenloomError: reading or writing failed; finished blocks are kept.
    """
    if unknown := set(tasks).difference(TASKS):
        raise ConfigError(f"unknown task {min(unknown)!r}", hint=f"choose from {', '.join(TASKS)}")
    if "query-neighbors" in tasks and not any(settings.sizes):
        raise ConfigError("the task query-neighbors needs the number of samples of train, valid or test")
    folder = RetroProject(project)
    chunks = as_chunk_maker(tokenizer, embedder, chunk_length=settings.chunk_length)
    # Report errors of samples before hours of work on chunks and index.
    samples = retro_samples(folder, settings, chunks.tokenizer) if "query-neighbors" in tasks else {}
    options: dict[str, Any] = {
        "num_processes": num_processes,
        "num_workers": num_workers,
        "runner": runner,
        "restart": restart,
        "overwrite": overwrite,
    }
    with_index = "index-build" in tasks or "query-neighbors" in tasks
    for output, _ in outputs_of(folder, settings, chunks, lambda: samples, with_index=with_index):
        output.finished_or_free(overwrite=overwrite)  # report conflicts before any change

    def record(**neighbor_dirs: str) -> None:
        record_settings(folder, settings, tokenizer=chunks.tokenizer, embedder=embedder, neighbor_dirs=neighbor_dirs)

    made = {"db-build": build_database(folder, chunks, settings, **options)}
    record()
    if with_index:
        made["index-build"] = build_index(folder, chunks, settings, made["db-build"], **options)
        queries = neighbor_tasks(folder, settings, chunks, made["index-build"], samples)
        for query in queries:
            made[f"query-neighbors {query.split}"] = make_output(query, **options)
        if queries:
            record(**{query.split: os.path.basename(query.output.folder) for query in queries})
    return made


def outputs_of(
    project: RetroProject,
    settings: RetroBuildSettings,
    chunks: ChunkMaker,
    samples: Callable[[], Samples],
    *,
    with_index: bool = True,
) -> Iterator[tuple[Output, BlockTask | None]]:
    """Yields (output, task) in order, up to and including the first missing output; for merged tables, task is None."""
    parts = []
    for _, prefix in settings.data:
        task: BlockTask = chunk_task(project, chunks, settings, prefix)
        yield task.output, task
        parts += [made] if (made := task.output.finished()) is not None else []
    if len(parts) < len(settings.data):
        return
    yield (output := database_output(project, chunks, settings, parts)), None
    database = output.finished()
    if database is None or not with_index:
        return
    task = embedding_task(project, chunks, settings, database)
    yield task.output, task
    if (trained := task.output.finished()) is None:
        return
    task = embedding_task(project, chunks, settings, database, trained)
    yield task.output, task
    if (filled := task.output.finished()) is None:
        return
    for task in neighbor_tasks(project, settings, chunks, filled, samples()):
        yield task.output, task


def neighbor_tasks(
    project: RetroProject, settings: RetroBuildSettings, chunks: ChunkMaker, index: OutputManifest, samples: Samples
) -> list[NeighborTask]:
    """Returns the neighbor task of each split with samples."""
    lengths = settings.sequence_length, settings.chunk_length
    return [
        neighbor_task(project, chunks, settings, index, split, GPTChunkDataset(found, *lengths), size)
        for split, (found, size) in samples.items()
    ]


def retro_samples(
    project: RetroProject, settings: RetroBuildSettings, tokenizer: Any
) -> dict[str, tuple[MultiSplitGPTDataset | BlendedDataset, int]]:
    """Returns, by split, a dataset of samples and how many of its samples get neighbors; skips empty splits.

    Raises:
        ConfigError: a split has too few documents, or a sample is not a whole number of chunks.
    """
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
    get_num_chunks_per_sample(settings.sequence_length, settings.chunk_length)
    sizes = [size or 0 for size in settings.sizes]
    built = BlendedMegatronDatasetBuilder(MultiSplitGPTDataset, sizes, lambda: True, config).build()
    found = {}
    for split, samples, size in zip(SPLITS, built, sizes, strict=True):
        if not size:
            continue
        members = samples.datasets if isinstance(samples, BlendedDataset) else [samples]
        if samples is None or [member.dataset_path for member in members] != prefixes:  # order gives dataset indices
            message = f"split {settings.split!r}: a dataset has no documents in {split}, which needs {size} samples"
            raise ConfigError(message, hint="drop the dataset, or change the split")
        found[split] = (samples, size)
    return found
