"""A whole project: its chunk database, its index, and the neighbors of the samples of each split."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.multi_split import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig
from tokenloom.errors import ConfigError
from tokenloom.indexed.manifest.tokenizer_identity import optional_number
from tokenloom.jobs.running import Runner
from tokenloom.retro.chunk_maker import ChunkMaker
from tokenloom.retro.database_build import DatabaseSettings, build_database
from tokenloom.retro.embedders import Embedder, EmbedFunction, as_embedder
from tokenloom.retro.gpt_chunks import GPTChunkDataset
from tokenloom.retro.index_build import IndexSettings, build_index
from tokenloom.retro.output import OutputManifest
from tokenloom.retro.project import RetroProject
from tokenloom.retro.query_build import NeighborTask, QuerySettings, build_neighbors
from tokenloom.storage.atomic import publish_bytes
from tokenloom.tokenizers.load import as_tokenizer

Task = Literal["db-build", "index-build", "query-neighbors"]
"""The parts of a build, in their order; each needs those before it, which are not done again."""

TASKS: tuple[Task, ...] = get_args(Task)

_SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetroBuildSettings:
    """What a project is made of, and how.

    Attributes:
        data: weight and prefix of each data set; prefixes are relative to `PROJECT/data`.
        sequence_length: tokens of a sample; a multiple of `chunk_length`.
        sizes: samples of train, valid and test that neighbors are found for; None or 0 for none.
        split: documents for train, valid and test, in percent, such as "98,2,0"; those of train are retrieved.
        seed: seed of the samples.
        chunk_length: tokens of a chunk.
        index: what `faiss.index_factory` takes, such as "IVF4096,Flat".
        num_index_chunks: chunks that the index is trained on.
        num_neighbors: neighbors of each chunk that are kept.
        num_searched: neighbors that are searched, before those of the same documents are left out.
        nprobe: lists that are searched, for IVF; None for what the index has.
        ef_search: candidates that are kept, for HNSW; None for what the index has.
        block_size: chunks of a block.
        document_block_size: documents of a block.
        cache: folder of the index cache of the samples; None for one in the project.
    """

    data: Sequence[tuple[float, str]]
    sequence_length: int
    sizes: tuple[int | None, int | None, int | None]
    index: str
    num_index_chunks: int
    split: str = "98,2,0"
    seed: int = 1234
    chunk_length: int = 64
    num_neighbors: int = 20
    num_searched: int = 200
    nprobe: int | None = None
    ef_search: int | None = None
    block_size: int = 100_000
    document_block_size: int = 100_000
    cache: str | None = None
    of_samples: Mapping[str, Any] = field(default_factory=dict)

    @property
    def of_database(self) -> DatabaseSettings:
        """What the database is built of."""
        return DatabaseSettings(
            data=tuple((float(weight), prefix) for weight, prefix in self.data),
            split=self.split,
            num_index_chunks=self.num_index_chunks,
            block_size=self.document_block_size,
        )

    @property
    def of_index(self) -> IndexSettings:
        """How the index is made."""
        return IndexSettings(string=self.index, block_size=self.block_size)

    @property
    def of_queries(self) -> QuerySettings:
        """How neighbors are searched."""
        return QuerySettings(
            string=self.index,
            num_neighbors=self.num_neighbors,
            num_searched=self.num_searched,
            nprobe=self.nprobe,
            ef_search=self.ef_search,
            block_size=self.block_size,
        )


def build_retro(
    project: str | os.PathLike[str],
    settings: RetroBuildSettings,
    *,
    tokenizer: Any,
    embedder: Embedder | EmbedFunction | str = "wordllama",
    tasks: Sequence[Task] = TASKS,
    runner: Runner | None = None,
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
        runner: makes the blocks; None for this machine.
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
    folder = RetroProject(project)
    chunks = chunk_maker(settings, tokenizer, embedder)
    options: dict[str, Any] = {"runner": runner, "overwrite": overwrite}
    made = {"db-build": build_database(folder, chunks, settings.of_database, **options)}
    if "index-build" in tasks or "query-neighbors" in tasks:
        made["index-build"] = build_index(folder, chunks, settings.of_index, made["db-build"], **options)
    if "query-neighbors" in tasks:
        queries = neighbor_tasks(folder, settings, chunks, made["index-build"])
        for task in queries:
            made[f"query-neighbors {task.split}"] = build_neighbors(task, **options)
        _write_config(folder, settings, queries)
    return made


def chunk_maker(settings: RetroBuildSettings, tokenizer: Any, embedder: Embedder | EmbedFunction | str) -> ChunkMaker:
    """Returns what makes chunks into texts and vectors.

    Raises:
        ConfigError: the tokenizer has no end-of-document token, or the embedder is none.
    """
    tokenizer = as_tokenizer(tokenizer)
    eod = optional_number(tokenizer, "eod")
    if eod is None or not hasattr(tokenizer, "detokenize"):
        message = f"expected a tokenizer with an end-of-document token and `detokenize`, found {tokenizer!r}"
        raise ConfigError(message)
    return ChunkMaker(tokenizer, as_embedder(embedder), eod, settings.chunk_length)


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
            index.files[0].crc32,
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
        blend=(prefixes, [float(weight) for weight, _ in settings.data]),
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
        if size and samples is not None:
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


def _write_config(project: RetroProject, settings: RetroBuildSettings, queries: Sequence[NeighborTask]) -> None:
    """Writes the settings under the reference's names, which training compares with its own."""
    dirs = {
        task.split: os.path.basename(project.neighbor_folder(task.split, task.samples.sample_dataset))
        for task in queries
    }
    config = {
        "retro_gpt_seed": settings.seed,
        "retro_gpt_split": settings.split,
        "retro_gpt_seq_length": settings.sequence_length,
        "retro_gpt_chunk_length": settings.chunk_length,
        "retro_gpt_train_samples": settings.sizes[0],
        "retro_gpt_data_path": [each for weight, prefix in settings.data for each in (str(weight), prefix)],
        "retro_block_size": settings.block_size,
        "retro_index_str": settings.index,
        "retro_neighbor_dirs": {split: dirs.get(split) for split in _SPLITS},
    }
    publish_bytes(project.config_path, json.dumps(config, indent=4).encode() + b"\n", durable=True)
