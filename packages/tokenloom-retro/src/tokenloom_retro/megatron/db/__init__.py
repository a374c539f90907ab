"""`megatron.core.datasets.retro.db` and its modules: the chunks of a project.

Errors are the same as those of `tokenloom_retro.RetroProject`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.storage.atomic import publish_bytes
from tokenloom_retro.chunk_database import DBDataset
from tokenloom_retro.chunk_table import individual_chunks, individual_document_offsets, individual_paths
from tokenloom_retro.project import DatabaseKind, RetroProject

__all__ = [
    "DBDataset",
    "IndexedDataset",
    "get_db_dir",
    "get_indexed_dataset_infos",
    "get_indexed_dataset_infos_path",
    "get_individual_chunk_db",
    "get_individual_db_dir",
    "get_individual_db_paths",
    "get_individual_doc_offsets",
    "get_merged_dataset",
    "get_merged_datasets",
    "get_merged_db_path_map",
    "get_merged_sampled_dataset",
    "get_merged_train_dataset",
    "get_merged_valid_dataset",
    "init_indexed_dataset_infos",
    "load_indexed_datasets",
    "save_indexed_dataset_infos",
]

Infos = Sequence[dict[str, Any]]
"""The datasets of a project: the fields of `DatasetInfo`, and the opened pair as `dataset`."""

_KINDS: tuple[DatabaseKind, ...] = ("sampled", "train", "valid")


def get_db_dir(project_dir: str) -> str:
    """Returns the folder of a project's chunk database."""
    return RetroProject(project_dir).database_folder


def init_indexed_dataset_infos(config: Any) -> list[dict[str, Any]]:
    """Returns a mapping per dataset of a configuration: `ratio`, `prefix`, and the opened pair as `dataset`."""
    blend = list(config.retro_gpt_data_path)
    if len(blend) % 2:
        message = f"`retro_gpt_data_path` must be alternating weights and prefixes, got {blend!r}"
        raise ConfigError(message, hint="write a weight before each prefix, even for a single pair")
    infos = [{"ratio": float(ratio), "prefix": prefix} for ratio, prefix in zip(blend[::2], blend[1::2], strict=True)]
    load_indexed_datasets(config.retro_project_dir, infos)
    return infos


def get_indexed_dataset_infos_path(project_dir: str) -> str:
    """Returns the path of the list of datasets."""
    return RetroProject(project_dir).infos_path


def save_indexed_dataset_infos(project_dir: str, indexed_dataset_infos: Infos) -> None:
    """Writes the list of datasets atomically, without the opened pairs."""
    infos = [{name: value for name, value in info.items() if name != "dataset"} for info in indexed_dataset_infos]
    publish_bytes(get_indexed_dataset_infos_path(project_dir), json.dumps(infos, indent=4).encode(), durable=True)


def load_indexed_datasets(project_dir: str, indexed_dataset_infos: Infos) -> None:
    """Opens the pair of each dataset, and adds it to the dataset's mapping as `dataset`."""
    project = RetroProject(project_dir)
    for info in indexed_dataset_infos:
        info["dataset"] = IndexedDataset(project.data_prefix(info["prefix"]))


def get_indexed_dataset_infos(project_dir: str) -> list[dict[str, Any]]:
    """Returns the datasets of a project with opened pairs."""
    infos = [dataclasses.asdict(info) for info in RetroProject(project_dir).infos]
    load_indexed_datasets(project_dir, infos)
    return infos


def get_individual_db_dir(project_dir: str, prefix: str) -> str:
    """Returns the folder with the chunks of one dataset."""
    return RetroProject(project_dir).individual_folder(prefix)


def get_individual_db_paths(project_dir: str, prefix: str) -> list[str]:
    """Returns the paths of the block files of one dataset, in order."""
    return individual_paths(RetroProject(project_dir), prefix)


def get_individual_chunk_db(project_dir: str, ds_id: int, ds_info: Mapping[str, Any]) -> NDArray[np.uint32]:
    """Returns the chunks of one dataset, uint32[num_chunks, 5]."""
    chunks = individual_chunks(RetroProject(project_dir), ds_info["prefix"], number=ds_id)
    if len(chunks) != ds_info["n_chunks"]:
        folder = get_individual_db_dir(project_dir, ds_info["prefix"])
        message = f"`{folder}`: expected {ds_info['n_chunks']} chunks, found {len(chunks)}"
        raise DatasetFormatError(message, hint="the files are incomplete or from another build")
    return chunks


def get_individual_doc_offsets(project_dir: str, ds_id: int, ds_info: Mapping[str, Any]) -> NDArray[np.uint64]:
    """Returns uint64[num_documents, 3]: dataset, document, and number of chunks up to the end of the document."""
    return individual_document_offsets(RetroProject(project_dir), ds_info["prefix"], number=ds_id)


def get_merged_db_path_map(project_dir: str) -> dict[str, str]:
    """Returns the paths of the merged tables by "sampled", "train" and "valid"."""
    project = RetroProject(project_dir)
    return {kind: project.merged_path(kind) for kind in _KINDS}


def get_merged_dataset(
    project_dir: str,
    chunk_length: int,
    eod_token_id: int,
    db_type: str,
    indexed_dataset_infos: Infos | None = None,
) -> DBDataset:
    """Returns the merged table `db_type`, with the chunks of all datasets.

    Args:
        project_dir: path of the project folder.
        chunk_length: tokens per chunk.
        eod_token_id: end-of-document id, which pads shorter chunks.
        db_type: "sampled", "train" or "valid".
        indexed_dataset_infos: the datasets, if they are already open.
    """
    if db_type not in _KINDS:
        raise ConfigError(f"`db_type` must be one of {', '.join(_KINDS)}, got {db_type!r}")
    project = RetroProject(project_dir)
    if not indexed_dataset_infos:
        return project.database(db_type, chunk_length=chunk_length, eod_token_id=eod_token_id)
    pairs = [info["dataset"] for info in indexed_dataset_infos]
    return DBDataset.open(project.merged_path(db_type), pairs, chunk_length=chunk_length, eod_token_id=eod_token_id)


def get_merged_sampled_dataset(
    project_dir: str, chunk_length: int, eod_token_id: int, indexed_dataset_infos: Infos | None = None
) -> DBDataset:
    """Returns the chunks that the index is trained on; see `get_merged_dataset`."""
    return get_merged_dataset(project_dir, chunk_length, eod_token_id, "sampled", indexed_dataset_infos)


def get_merged_train_dataset(
    project_dir: str, chunk_length: int, eod_token_id: int, indexed_dataset_infos: Infos | None = None
) -> DBDataset:
    """Returns the chunks of train documents; see `get_merged_dataset`."""
    return get_merged_dataset(project_dir, chunk_length, eod_token_id, "train", indexed_dataset_infos)


def get_merged_valid_dataset(
    project_dir: str, chunk_length: int, eod_token_id: int, indexed_dataset_infos: Infos | None = None
) -> DBDataset:
    """Returns the chunks of documents after the train documents; see `get_merged_dataset`."""
    return get_merged_dataset(project_dir, chunk_length, eod_token_id, "valid", indexed_dataset_infos)


def get_merged_datasets(project_dir: str, chunk_length: int, eod_token_id: int) -> dict[str, DBDataset]:
    """Returns the result of `get_merged_dataset` for each `db_type`: "sampled", "train" and "valid"."""
    return {kind: get_merged_dataset(project_dir, chunk_length, eod_token_id, kind) for kind in _KINDS}
