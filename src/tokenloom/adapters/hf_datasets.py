"""Hugging Face `datasets`: documents and samples as its datasets, and its datasets as input of a corpus."""

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

    The tokens are the mapped `.bin`; other columns take 16 bytes per document, and the texts. Other processes, as of
    `map(num_proc=…)`, get a copy: prefer `export_documents` and `load_dataset` there.
    """
    datasets = require("datasets", extra=_EXTRA)
    table = document_batches(prefix, tokenizer=tokenizer).read_all().replace_schema_metadata(None)
    return datasets.Dataset(datasets.table.InMemoryTable(table))


def samples_dataset(dataset: Any, *, num_samples: int | None = None) -> Any:
    """Returns the samples of a dataset, blend or run as a `datasets.Dataset` that reads them on access.

    It holds only positions, so it is shuffled, selected, sharded and pickled in no time; rows are NumPy arrays under
    the names of `sample_batches`. **Labels are those of the next token**: give `input_ids` alone to models that shift
    labels themselves, or use `TransformersCollator`.
    """
    datasets = require("datasets", extra=_EXTRA)
    count = len(dataset) if num_samples is None else min(num_samples, len(dataset))
    positions = datasets.Dataset.from_dict({"sample": np.arange(count)})
    positions.set_transform(partial(_read, dataset))
    return positions


def _read(dataset: Any, rows: Mapping[str, Sequence[int]]) -> dict[str, NDArray[Any]]:
    positions = np.asarray(rows["sample"], dtype=np.int64)
    return {"sample": positions, **named_samples(dataset, positions)}


def save_for_preprocessing(dataset: Any, folder: str | os.PathLike[str]) -> str:
    """Writes a `datasets.Dataset` to a folder that `preprocess_corpus` reads; returns the folder.

    A folder with the dataset's fingerprint is not written again, so a script that calls this and then
    `preprocess_corpus` resumes when it is run again. Selected or shuffled rows come in that order.

    Args:
        dataset: a `datasets.Dataset`, such as a split of a `DatasetDict`.
        folder: path of the folder, for this dataset alone.

    Raises:
        OutputExistsError: the folder has something else.
        StorageError: it cannot be written.
    """
    datasets = require("datasets", extra=_EXTRA)
    path = os.fspath(folder).rstrip("/")
    if not isinstance(dataset, datasets.Dataset):
        is_splits = isinstance(dataset, datasets.DatasetDict)
        message = f"`dataset`: must be a `datasets.Dataset`, got {type(dataset).__name__}"
        hint = "save each split in a folder of its own, as `dataset[name]`" if is_splits else "write its rows to files"
        raise ConfigError(message, hint=hint)
    fingerprint = dataset._fingerprint
    if os.path.lexists(path):
        if _saved_fingerprint(path) == fingerprint:
            return path
        raise OutputExistsError(f"`{path}` exists, and is not this dataset", hint="choose another folder, or remove it")
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
    """Returns the fingerprint in a folder of `save_to_disk`, or None."""
    try:
        with open(os.path.join(path, "state.json"), "rb") as stream:
            return json.load(stream).get("_fingerprint")  # type: ignore[no-any-return]
    except (OSError, ValueError, AttributeError):
        return None
