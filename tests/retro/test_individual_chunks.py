"""The chunks of one data set, from the files of its blocks."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest

from tokenloom.errors import DatasetFormatError, StorageError
from tokenloom.retro.individual_chunks import individual_chunks, individual_document_offsets, individual_paths
from tokenloom.retro.project import RetroProject

BLOCKS = {
    "000-002.hdf5": ([[0, 0, 4, 4], [1, 0, 2, 2]], [[1, 2, 4, 0]], [[0, 1], [1, 2]]),
    "002-004.hdf5": ([], [], [[2, 0], [3, 0]]),
    "004-005.hdf5": ([[4, 0, 3, 3]], [], [[4, 1]]),
}
"""Valid and invalid chunks, and the number of valid ones up to the end of each document."""


@pytest.fixture
def project(tmp_path):
    project = RetroProject(tmp_path)
    folder = project.individual_folder("web/crawl")
    os.makedirs(folder)
    for name, (valid, invalid, offsets) in BLOCKS.items():
        with h5py.File(os.path.join(folder, name), "w") as file:  # as the reference: without rows, without columns
            file.create_dataset("chunks_valid", data=np.array(valid, dtype=np.uint32))
            file.create_dataset("chunks_invalid", data=np.array(invalid, dtype=np.uint32))
            file.create_dataset("doc_offsets", data=np.array(offsets, dtype=np.uint64))
    return project


def test_blocks_are_put_together(project):
    assert [os.path.basename(path) for path in individual_paths(project, "web/crawl")] == list(BLOCKS)
    chunks = individual_chunks(project, "web/crawl", number=3)
    assert chunks.dtype == np.uint32
    assert chunks.tolist() == [[3, 0, 0, 4, 4], [3, 1, 0, 2, 2], [3, 4, 0, 3, 3]]
    assert individual_chunks(project, "web/crawl", number=3, name="chunks_invalid").tolist() == [[3, 1, 2, 4, 0]]


def test_documents_are_counted_through(project):
    offsets = individual_document_offsets(project, "web/crawl", number=3)
    assert offsets.dtype == np.uint64
    assert offsets.tolist() == [[3, 0, 1], [3, 1, 2], [3, 2, 2], [3, 3, 2], [3, 4, 3]]


def test_what_is_damaged_is_told(project):
    path = individual_paths(project, "web/crawl")[0]
    with h5py.File(path, "r+") as file:
        file["doc_offsets"][...] = [[0, 2], [1, 1]]
    with pytest.raises(DatasetFormatError, match=r"000-002.hdf5`: expected numbers of chunks that do not fall"):
        individual_document_offsets(project, "web/crawl", number=0)
    os.truncate(path, 500)
    with pytest.raises(StorageError, match=r"cannot read `chunks_valid` of `.*000-002.hdf5`"):
        individual_chunks(project, "web/crawl", number=0)
    with pytest.raises(StorageError, match=r"cannot list `.*absent`"):
        individual_paths(project, "absent")
