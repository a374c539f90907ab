"""Samples with neighbors, compared with a slow twin."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from retro_projects import CHUNK_LENGTH, split_datasets, write_neighbors, write_project
from tests.support import EOD, equal_samples

from tokenloom.errors import ConfigError
from tokenloom.testing.datasets import check_dataset
from tokenloom_retro.block_files import BlockPathMap
from tokenloom_retro.dataset import RetroDataset
from tokenloom_retro.gpt_chunks import GPTChunkDataset
from tokenloom_retro.project import RetroProject

BOOKS = [[1, 2, 3, 4, 5, EOD], [6, 7, EOD], [EOD], [20, 21, 22, 23, 24, 25, 26, 27, 28, EOD]]
CHUNKS = [[1, 2, 3, 4], [5, 9, 9, 9], [6, 7, 9, 9], [20, 21, 22, 23], [24, 25, 26, 27], [28, 9, 9, 9]]
DOCUMENT = [0, 0, 1, 3, 3, 3]
"""The documents of `CHUNKS`."""


def make(folder, *, prefixes=("books",), num_samples=4, queried=None, neighbors=None, block_size=3, **changes):
    """Returns samples of two chunks with neighbors, and the neighbors."""
    project = write_project(folder / "project", dict.fromkeys(prefixes, BOOKS))
    retrieved = {"num_neighbors": changes.pop("num_neighbors", 2), "num_retrieved_chunks": changes.pop("retrieved", 2)}
    samples, _ = split_datasets(project, list(prefixes), [num_samples, 0, 0], **changes)["train"]
    queried = len(samples) if queried is None else queried
    database = RetroProject(project).database("train", chunk_length=CHUNK_LENGTH, eod_token_id=EOD)
    if neighbors is None:
        neighbors = np.random.default_rng(3).integers(-1, len(database), size=(2 * queried, 3))
    query = write_neighbors(folder / "query", np.asarray(neighbors, dtype=np.int64), block_size=block_size)
    dataset = RetroDataset(
        num_queried_samples=queried,
        block_size=block_size,
        db_dataset=database,
        chunk_dataset=GPTChunkDataset(samples, 2 * CHUNK_LENGTH, CHUNK_LENGTH),
        neighbor_path_map=BlockPathMap.from_dir(query, block_size),
        **retrieved,
    )
    return dataset, neighbors


def test_neighbors_include_the_following_chunk(tmp_path):
    neighbors = [[0, 1, 5], [2, 3, 5], [5, -1, 5], [-1, -1, -1]]
    dataset, _ = make(tmp_path, num_samples=2, queried=2, neighbors=neighbors)
    first, second = dataset[0], dataset[1]
    assert first["neighbor_chunks"].tolist() == [[[0, 1], [1, -1]], [[2, -1], [3, 4]]]
    assert first["neighbor_tokens"].tolist() == [
        [[1, 2, 3, 4, 5, 9, 9, 9], [5, 9, 9, 9, 9, 9, 9, 9]],
        [[6, 7, 9, 9, 9, 9, 9, 9], [20, 21, 22, 23, 24, 25, 26, 27]],
    ]
    # Megatron would return the last chunk for a missing one, and the first chunk after the last.
    assert second["neighbor_chunks"].tolist() == [[[5, -1], [-1, -1]], [[-1, -1], [-1, -1]]]
    assert second["neighbor_tokens"].tolist() == [[[28, *[9] * 7], [9] * 8], [[9] * 8, [9] * 8]]
    assert list(first) == ["text", "neighbor_chunks", "neighbor_tokens"]
    assert [array.dtype for array in first.values()] == [np.int64] * 3
    assert first["text"].tolist() == dataset.sample_dataset[0]["text"].tolist()


@pytest.mark.parametrize(("retrieved", "num_neighbors", "block_size"), [(1, 3, 1), (2, 1, 3), (3, 3, 100)])
def test_samples_match_the_slow_reference(tmp_path, retrieved, num_neighbors, block_size):
    dataset, neighbors = make(tmp_path, retrieved=retrieved, num_neighbors=num_neighbors, block_size=block_size)
    for number in range(len(dataset)):
        sample = dataset[number]
        for chunk, neighbor, after in np.ndindex(2, num_neighbors, retrieved):
            nearest = int(neighbors[2 * number + chunk, neighbor])
            wanted = nearest + after
            is_there = nearest >= 0 and wanted < len(CHUNKS) and DOCUMENT[wanted] == DOCUMENT[nearest]
            place = slice(after * CHUNK_LENGTH, (after + 1) * CHUNK_LENGTH)
            assert sample["neighbor_chunks"][chunk, neighbor, after] == (wanted if is_there else -1)
            expected = CHUNKS[wanted] if is_there else [EOD] * CHUNK_LENGTH
            assert sample["neighbor_tokens"][chunk, neighbor, place].tolist() == expected


@pytest.mark.parametrize("prefixes", [pytest.param(["books"], marks=pytest.mark.slow), ["books", "more", "again"]])
def test_all_ways_to_read_samples_agree(tmp_path, prefixes):
    dataset, _ = make(tmp_path, prefixes=prefixes, num_samples=7)
    assert "worker processes yield the samples" in check_dataset(dataset).passed
    batch = dataset.batch(range(len(dataset)))
    for position in range(len(dataset)):
        sample = dataset.sample(position)
        assert equal_samples(sample, {name: array[position] for name, array in batch.items()})
        assert equal_samples(sample, dataset[position])
    assert list(batch) == [*(["dataset_id"] if len(prefixes) > 1 else []), "text", "neighbor_chunks", "neighbor_tokens"]
    assert dataset.batch([])["neighbor_tokens"].shape == (0, 2, 2, 2 * CHUNK_LENGTH)
    assert equal_samples(pickle.loads(pickle.dumps(dataset)).batch([5, 1]), dataset.batch([5, 1]))


def test_samples_wrap_around(tmp_path):
    dataset, _ = make(tmp_path, num_samples=5, queried=3)
    assert equal_samples(dataset.batch([4, 3]), dataset.batch([1, 0]))
    assert equal_samples(dataset[-1], dataset[(len(dataset) - 1) % 3])


def test_positions_out_of_range_are_errors(tmp_path):
    dataset, _ = make(tmp_path)
    count = len(dataset)
    for number in (count, -count - 1):
        with pytest.raises(IndexError, match=f"sample index {number} out of range: the dataset has {count} samples"):
            dataset.batch([0, number])
    with pytest.raises(ConfigError, match="must not be None"):
        dataset.batch([0, None])
