"""Builds the train, valid and test datasets with neighbors, from a project folder and the samples of each split."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import ConfigError, TokenizerError, TokenizerMismatchWarning
from tokenloom.indexed.manifests import optional_number
from tokenloom.numbers import checked_integer
from tokenloom_retro.block_files import BlockPathMap
from tokenloom_retro.chunk_database import DBDataset
from tokenloom_retro.dataset import RetroDataset
from tokenloom_retro.gpt_chunks import build_gpt_chunk_datasets_from_gpt_datasets
from tokenloom_retro.neighbor_match import check_neighbor_folder, recorded_hash, settings_of
from tokenloom_retro.project import RetroProject
from tokenloom_retro.settings import SPLITS


@dataclass(frozen=True, slots=True, kw_only=True)
class RetroSettings:
    """Settings for reading a project. Megatron's `RetroConfig` has attributes of the same names and is also accepted.

    Attributes:
        retro_project_dir: path of the project folder.
        retro_chunk_length: tokens per chunk.
        retro_block_size: chunks per neighbor file.
        retro_neighbor_dirs: names of neighbor folders by split ("train", "valid", "test"); None derives the names from
            the samples.
        retro_num_neighbors: neighbors per chunk.
        retro_num_retrieved_chunks: chunks per neighbor: the neighbor and the chunks that follow it.
        retro_verify_neighbor_count: whether to check at the start that all samples of training have neighbors. Without
            this check, reading a sample that has no neighbors is an error.
    """

    retro_project_dir: str
    retro_chunk_length: int = 64
    retro_block_size: int = 100_000
    retro_neighbor_dirs: Mapping[str, str | None] | None = None
    retro_num_neighbors: int = 2
    retro_num_retrieved_chunks: int = 2
    retro_verify_neighbor_count: bool = True


def get_retro_datasets(
    config: Any, gpt_datasets: Mapping[str, Any], sample_length: int, eod_token_id: int
) -> tuple[RetroDataset | None, RetroDataset | None, RetroDataset | None]:
    """Returns the train, valid and test datasets with neighbors; None for a split without samples.

    Checks the database against its datasets and the tokenizer, and the neighbors against the samples. Another tokenizer
    is an error, but only a warning if `allow_tokenizer_mismatch` is set in the config of the GPT datasets; neighbors of
    other samples are an error, but only a warning if `allow_data_mismatch` is set there.

    Args:
        config: `RetroSettings`, or Megatron's `RetroConfig`.
        gpt_datasets: mapping of "train", "valid" and "test" to (GPT dataset, number of its samples to use), or to None.
        sample_length: tokens per sample.
        eod_token_id: the end-of-document id, also used for padding.

    Raises:
        ConfigError: `sample_length` is not a multiple of the chunk length; neighbors are missing or of other samples.
        StorageError: a file is missing, truncated or damaged, or chunks have no neighbors.
        DatasetFormatError: database, datasets and neighbors are from different builds.
        TokenizerError: the database was built with another tokenizer.
    """
    project = RetroProject(config.retro_project_dir)
    chunk_length = checked_integer("retro_chunk_length", config.retro_chunk_length, at_least=1)
    parts = build_gpt_chunk_datasets_from_gpt_datasets(
        project.folder, {name: gpt_datasets.get(name) for name in SPLITS}, sample_length, chunk_length
    )
    database = _database(
        project, [entry["dataset"].sample_dataset for entry in parts.values() if entry], config, eod_token_id
    )
    train, valid, test = (
        None if entry is None else _with_neighbors(project, database, config, key, entry, gpt_datasets[key][1])
        for key, entry in parts.items()
    )
    return train, valid, test


def _database(project: RetroProject, samples: list[Any], config: Any, eod_token_id: int) -> DBDataset:
    """Opens the database and checks it against the tokenizer of the samples."""
    database = project.database("train", chunk_length=config.retro_chunk_length, eod_token_id=eod_token_id)
    is_allowed = False
    for settings in filter(None, map(settings_of, samples)):
        eod = optional_number(settings.tokenizer, "eod")
        if eod is not None and eod != eod_token_id:
            raise ConfigError(f"`eod_token_id`: expected the tokenizer's id {eod}, found {eod_token_id}")
        is_allowed |= settings.allow_tokenizer_mismatch
        database.vocab_size = None if is_allowed else optional_number(settings.tokenizer, "vocab_size")
    try:
        database.check()
    except TokenizerError as error:
        if not is_allowed:
            hint = f"{error.hint}; `allow_tokenizer_mismatch=True` makes this a warning"
            raise TokenizerError(error.message, hint=hint) from error
        warnings.warn(error.message, TokenizerMismatchWarning, stacklevel=3)
    return database


def _with_neighbors(
    project: RetroProject, database: DBDataset, config: Any, key: str, entry: dict[str, Any], num_samples: int
) -> RetroDataset:
    chunks, folder = entry["dataset"], entry["neighbor_dir"]
    if config.retro_neighbor_dirs is not None:
        name = config.retro_neighbor_dirs.get(key)
        if not name:
            message = f"`retro_neighbor_dirs` has no folder for {key}"
            raise ConfigError(message, hint="drop the split, or build its neighbors")
        folder = os.path.join(project.query_folder, name)
    elif not os.path.isdir(folder):  # the project was moved
        recorded = os.path.join(project.query_folder, f"{key}_{recorded_hash(project, chunks.sample_dataset)}")
        folder = recorded if os.path.isdir(recorded) else folder
    check_neighbor_folder(
        project, folder, key, chunks.sample_dataset, num_samples=num_samples, chunk_length=config.retro_chunk_length
    )
    blocks = BlockPathMap.from_dir(folder, config.retro_block_size)
    blocks.check(entry["num_active_chunks"] if config.retro_verify_neighbor_count else None)
    dataset = RetroDataset(
        num_queried_samples=num_samples,
        num_neighbors=config.retro_num_neighbors,
        num_retrieved_chunks=config.retro_num_retrieved_chunks,
        block_size=config.retro_block_size,
        db_dataset=database,
        chunk_dataset=chunks,
        neighbor_path_map=blocks,
    )
    dataset.neighbors.check()
    return dataset
