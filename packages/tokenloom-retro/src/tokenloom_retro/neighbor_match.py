"""Checks that a neighbor folder belongs to the training samples.

The name of a folder is the split and a hash of the samples, such as `train_` and an MD5. The check computes this hash
again. The hash depends on paths, so for a moved project the check uses the old path, which `config.json` records. If
the hash differs from the name, as in projects of Megatron, the check compares the settings in `config.json` instead.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from tokenloom.blending.blended import BlendedDataset
from tokenloom.errors import ConfigError, DataMismatchWarning
from tokenloom.order.keys import describe
from tokenloom_retro.multi_split import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig
from tokenloom_retro.project import RetroProject

_SETTINGS = {
    "retro_gpt_seed": "random_seed",
    "retro_gpt_seq_length": "sequence_length",
    "retro_gpt_split": "split_preprocessing",
}
"""Recorded settings that determine samples, and their names in dataset configurations."""


def check_neighbor_folder(
    project: RetroProject, folder: str, key: str, dataset: Any, *, num_samples: int, chunk_length: int
) -> None:
    """Checks that the neighbors in a folder belong to `dataset`, the samples of split `key`.

    Raises:
        ConfigError: the folder does not exist, or belongs to another split or other samples. With
            `allow_data_mismatch`, a mismatch is a warning.
    """
    if not os.path.isdir(folder):
        found = ", ".join(f"`{name}`" for name in _folders(project)) or "none"
        hint = f"use the sizes, sequence length, seed and split of the build; existing folders: {found}"
        raise ConfigError(f"no folder `{folder}` with neighbors of {key}", hint=hint)
    problem = _problem(project, os.path.basename(os.path.normpath(folder)), key, dataset, num_samples, chunk_length)
    if problem is None:
        return
    message = f"`{folder}` does not have the neighbors of these {key} samples: {problem}"
    settings = settings_of(dataset)
    if settings is None or not settings.allow_data_mismatch:
        hint = "build neighbors of these samples, or turn this error into a warning with `allow_data_mismatch=True`"
        raise ConfigError(message, hint=hint)
    warnings.warn(message, DataMismatchWarning, stacklevel=4)


def recorded_hash(project: RetroProject, dataset: Any) -> str:
    """Returns the hash that the samples would have if the project were still at its recorded path."""
    own: str = dataset.unique_description_hash
    if project.recorded_folder == project.folder or settings_of(dataset) is None:
        return own
    return describe(_as_recorded(dataset.unique_identifiers, project))[1]


def settings_of(dataset: Any) -> MultiSplitGPTDatasetConfig | None:
    """Returns the settings of a dataset or blend of samples; None for a class defined by the user."""
    if isinstance(dataset, (MultiSplitGPTDataset, BlendedDataset)):
        return dataset.config if isinstance(dataset.config, MultiSplitGPTDatasetConfig) else None
    return None


def _problem(
    project: RetroProject, name: str, key: str, dataset: Any, num_samples: int, chunk_length: int
) -> str | None:
    """Returns why the neighbors in folder `name` do not belong to the samples; None if they do."""
    split, _, found = name.rpartition("_")
    if split != key:
        return f"the folder name must start with `{key}_`, got `{name}`"
    config = settings_of(dataset)
    if config is None or found in (dataset.unique_description_hash, recorded_hash(project, dataset)):
        return None
    number = (dataset.split if isinstance(dataset, BlendedDataset) else dataset.index_split).value
    assert config.split_matrix is not None
    bounds, prepared = config.split_matrix[number], config.preprocessing_matrix[number]
    if bounds != prepared:
        return f"expected documents {_interval(prepared)} of the data, found {_interval(bounds)}: `split` differs"
    prepared_as = _as_prepared(dataset.unique_identifiers, config)
    if found in (describe(prepared_as)[1], describe(_as_recorded(prepared_as, project))[1]):
        return None
    if not project.config:
        return f"expected `{key}_{dataset.unique_description_hash}`, found `{name}`"
    differences = list(_differences(project.config, config, key, num_samples, chunk_length))
    recorded = (project.config.get("retro_neighbor_dirs") or {}).get(key)
    if recorded != name:
        differences.append(f"the recorded neighbor folder of {key} is `{recorded}`")
    return f"according to `{project.config_path}`, {', '.join(differences)}" if differences else None


def _differences(
    made_with: Mapping[str, Any], config: MultiSplitGPTDatasetConfig, key: str, num_samples: int, chunk_length: int
) -> Iterator[str]:
    wanted = {name: (own, getattr(config, own)) for name, own in _SETTINGS.items()}
    wanted["retro_gpt_chunk_length"] = "retro_chunk_length", chunk_length
    if key == "train":
        wanted["retro_gpt_train_samples"] = "number of train samples", num_samples
    for name, (own, value) in wanted.items():
        if name in made_with and made_with[name] != value:
            yield f"`{name}` was {made_with[name]!r}, but `{own}` is {value!r}"


def _as_prepared(identifiers: Mapping[str, Any], config: MultiSplitGPTDatasetConfig) -> dict[str, Any]:
    """Returns the identifiers that the samples would have with the `split` of the build."""
    prepared = dict(identifiers)
    if "datasets" in prepared:
        prepared["datasets"] = [_as_prepared(each, config) for each in prepared["datasets"]]
    if "split_matrix" in prepared:
        prepared.update(split=config.split_preprocessing, split_matrix=config.preprocessing_matrix)
    return prepared


def _as_recorded(identifiers: Mapping[str, Any], project: RetroProject) -> dict[str, Any]:
    """Returns the identifiers that the samples would have if the project were still at its recorded path."""
    recorded = dict(identifiers)
    if "datasets" in recorded:
        recorded["datasets"] = [_as_recorded(each, project) for each in recorded["datasets"]]
    if "dataset_path" in recorded:
        below = os.path.relpath(recorded["dataset_path"], project.data_folder)
        if below.split(os.sep)[0] != os.pardir:
            recorded["dataset_path"] = RetroProject(project.recorded_folder).data_prefix(below)
    return recorded


def _interval(bounds: tuple[float, float] | None) -> str:
    return "none" if bounds is None else f"[{bounds[0]:.6g}, {bounds[1]:.6g})"


def _folders(project: RetroProject) -> list[str]:
    return sorted(os.listdir(project.query_folder)) if os.path.isdir(project.query_folder) else []
