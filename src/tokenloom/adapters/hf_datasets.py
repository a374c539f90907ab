"""Hugging Face `datasets`: converts documents and samples to a `Dataset`, and a `Dataset` to preprocessing input."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.adapters.arrow import document_batches, named_samples
from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom.optional import require
from tokenloom.storage.atomic import hidden_path, storage_errors, sync_folder

_EXTRA = "hf"


def documents_dataset(prefix: str | os.PathLike[str], *, tokenizer: Any = None) -> Any:
    """Returns the documents of a pair as a `datasets.Dataset`, with the columns of `document_batches`.

    Tokens are views of the mapped `.bin` file; other columns need 16 bytes of memory per document, plus the texts. For
    `map(num_proc=…)`, which copies all columns to each process, use `export_documents` and `load_dataset` instead.
    """
    datasets = require("datasets", extra=_EXTRA)
    table = document_batches(prefix, tokenizer=tokenizer).read_all().replace_schema_metadata(None)
    return datasets.Dataset(datasets.table.InMemoryTable(table))


def samples_dataset(dataset: Any, *, num_samples: int | None = None) -> Any:
    """Returns the samples of a dataset, blend or run as a `datasets.Dataset` that reads samples on access.

    The result stores only positions, so shuffling, selecting, sharding and pickling are fast. A row has the columns of
    `sample_batches` as NumPy arrays. **Labels are already shifted by one token**: pass only `input_ids` to models that
    shift labels themselves, or use `TransformersCollator`.
    """
    datasets = require("datasets", extra=_EXTRA)
    count = len(dataset) if num_samples is None else min(num_samples, len(dataset))
    positions = datasets.Dataset.from_dict({"sample": np.arange(count)})
    positions.set_transform(partial(_read, dataset))
    return positions


def _read(dataset: Any, rows: Mapping[str, Sequence[int]]) -> dict[str, NDArray[Any]]:
    return named_samples(dataset, np.asarray(rows["sample"], dtype=np.int64))


def save_for_preprocessing(dataset: Any, folder: str | os.PathLike[str]) -> str:
    """Writes a `datasets.Dataset` to a folder that `preprocess_corpus` can read; returns the path of the folder.

    The folder has the rows of the dataset in their order, after `select` and `shuffle`. If the folder already contains
    a dataset with the same fingerprint, nothing is written, so a restarted script can resume `preprocess_corpus`.

    Args:
        dataset: a `datasets.Dataset`, such as a split of a `DatasetDict`.
        folder: path of a folder for this dataset only.

    Raises:
        OutputExistsError: the folder exists and does not contain this dataset.
    """
    datasets = require("datasets", extra=_EXTRA)
    path = os.fspath(folder).rstrip("/")
    if not isinstance(dataset, datasets.Dataset):
        message = f"`dataset`: must be a `datasets.Dataset`, got {type(dataset).__name__}"
        raise ConfigError(message, hint="pass one split of a `DatasetDict`, such as `dataset['train']`")
    fingerprint = dataset._fingerprint
    if os.path.lexists(path):
        if _saved_fingerprint(path) == fingerprint:
            return path
        message = f"`{path}` exists and does not contain this dataset"
        raise OutputExistsError(message, hint="choose another folder, or remove this folder")
    hidden = hidden_path(path, f"{secrets.token_hex(4)}.tmp")
    try:
        with storage_errors("write", hidden):
            flat = dataset.flatten_indices() if dataset._indices is not None else dataset
            flat._fingerprint = fingerprint
            flat.save_to_disk(hidden)
            sync_folder(hidden)
            os.rename(hidden, path)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return path


def _saved_fingerprint(path: str) -> str | None:
    """Returns the fingerprint of the dataset in a folder; None if the folder has no readable fingerprint."""
    try:
        with open(os.path.join(path, "state.json"), "rb") as stream:
            return json.load(stream).get("_fingerprint")  # type: ignore[no-any-return]
    except (OSError, ValueError, AttributeError):
        return None
