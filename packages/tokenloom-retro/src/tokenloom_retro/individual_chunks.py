"""The chunks of one data set, from the files of its blocks of documents."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError
from tokenloom.storage.atomic import storage_errors
from tokenloom_retro.hdf5 import open_rows
from tokenloom_retro.project import RetroProject

_PLACES, _OFFSETS = 4, 2
"""Columns of chunks (document, first token, end, length of what is embedded), and of documents (document, chunks)."""


def individual_paths(project: RetroProject, prefix: str) -> list[str]:
    """Returns the paths of the files of one data set, in the order of their documents.

    Raises:
        StorageError: their folder cannot be read.
    """
    folder = project.individual_folder(prefix)
    with storage_errors("list", folder):
        names = sorted(name for name in os.listdir(folder) if name.endswith(".hdf5") and not name.startswith("."))
    return [os.path.join(folder, name) for name in names]


def individual_chunks(
    project: RetroProject, prefix: str, *, number: int, name: str = "chunks_valid"
) -> NDArray[np.uint32]:
    """Returns the chunks of one data set, uint32[num_chunks, 5], as the database has them.

    Args:
        project: the project.
        prefix: prefix of the data set.
        number: its number, which becomes the first column.
        name: "chunks_valid", or "chunks_invalid" for those that are left out.

    Raises:
        StorageError: a file cannot be read.
    """
    parts = [open_rows(path, name, columns=_PLACES) for path in individual_paths(project, prefix)]
    chunks = np.empty((sum(map(len, parts)), 1 + _PLACES), dtype=np.uint32)
    chunks[:, 0] = number
    _fill(chunks[:, 1:], parts)
    return chunks


def individual_document_offsets(project: RetroProject, prefix: str, *, number: int) -> NDArray[np.uint64]:
    """Returns where the chunks of each document end: uint64[num_documents, 3].

    A row is the number of the data set, that of the document, and the chunks of it and all before it.

    Raises:
        StorageError: a file cannot be read.
        DatasetFormatError: a file has documents that are none of it.
    """
    parts = []
    num_chunks = 0
    for path in individual_paths(project, prefix):
        part = open_rows(path, "doc_offsets", columns=_OFFSETS).astype(np.uint64)
        if len(part) and (np.diff(part[:, 1].astype(np.int64)) < 0).any():
            message = f"`{path}`: expected numbers of chunks that do not fall, found some that do"
            raise DatasetFormatError(message, hint="the file is damaged; build it again")
        part[:, 1] += np.uint64(num_chunks)
        num_chunks = int(part[-1, 1]) if len(part) else num_chunks
        parts.append(part)
    offsets = np.empty((sum(map(len, parts)), 1 + _OFFSETS), dtype=np.uint64)
    offsets[:, 0] = number
    _fill(offsets[:, 1:], parts)
    return offsets


def _fill(out: NDArray[Any], parts: list[NDArray[Any]]) -> None:
    stop = 0
    for part in parts:
        out[stop : stop + len(part)] = part
        stop += len(part)
