"""Samples with neighbors beside those of megatron-core 0.15.3, for projects and settings drawn anew in each run."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from retro_projects import split_datasets, write_neighbors, write_project
from tests.peer.retro_peer import answers_of_peer, printed_seed, require_peer
from tests.support import EOD, StandInTokenizer, random_documents

from tokenloom_retro.assembled import RetroSettings, get_retro_datasets
from tokenloom_retro.project import RetroProject

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.usefixtures("quiet")]

ROUNDS = 10
SPLITS = [("1,0,0", "1,0,0"), ("6,3,1", "6,3,1"), ("98,2,0", "98,2,0"), ("7,3,0", "6,4,0"), ("5,4,1", "6,4,0")]
VOCAB_SIZE = 90


class Round:
    """A project drawn at random, with neighbors of all samples of all splits.

    Neighbors of odd rounds, and what follows them, are all there; those of even ones are drawn from all numbers, -1
    included, where both sides differ on purpose.
    """

    def __init__(self, folder, number, rng):
        self.all_there = bool(number % 2)
        self.chunk_length = int(rng.choice([1, 2, 4, 5]))
        self.num_retrieved = int(rng.integers(1, 4))
        self.prefixes = [f"corpus{i}" for i in range(1 + number % 3)]
        corpora = {prefix: self._draw_documents(rng) for prefix in self.prefixes}
        self.folder = write_project(folder / str(number), corpora, chunk_length=self.chunk_length)
        split, preprocessing = SPLITS[rng.integers(len(SPLITS))]
        blended = len(self.prefixes) > 1
        self.settings = {
            "random_seed": int(rng.integers(2**32)),
            "sequence_length": self.chunk_length * int(rng.integers(1, 5)),
            "blend": (
                [os.path.join(self.folder, "data", prefix) for prefix in self.prefixes],
                rng.integers(1, 9, len(self.prefixes)).astype(float).tolist() if blended else None,
            ),
            "split": split,
            "split_preprocessing": preprocessing,
            "return_document_ids": bool(rng.integers(2)),
            "drop_last_partial_validation_sequence": bool(rng.integers(2)),
            "add_extra_token_to_sequence": bool(rng.integers(2)),
            "mid_level_dataset_surplus": 1.0,
        }
        self.sizes = [int(rng.integers(5, 60)), int(rng.integers(3, 20)), int(rng.integers(1, 5))]
        self.tokenizer = {"eod": EOD, "vocab_size": VOCAB_SIZE, "pad": int(rng.integers(10, VOCAB_SIZE))}
        self.samples = split_datasets(
            self.folder, self.prefixes, self.sizes, **self.settings, tokenizer=StandInTokenizer(**self.tokenizer)
        )
        self._write_neighbors(rng)
        self.retro = {
            "retro_project_dir": self.folder,
            "retro_chunk_length": self.chunk_length,
            "retro_block_size": self.block_size,
            "retro_neighbor_dirs": self.neighbor_dirs,
            "retro_num_neighbors": int(rng.integers(1, 4)),
            "retro_num_retrieved_chunks": self.num_retrieved,
            "retro_verify_neighbor_count": True,
        }

    def _draw_documents(self, rng):
        documents = random_documents(
            rng, count=int(rng.integers(100, 150)), longest=int(rng.choice([6, 40])), vocab_size=VOCAB_SIZE
        )
        ended = [np.append(each, EOD) if rng.random() < 0.8 else each for each in documents]
        long = np.arange(self.chunk_length * 4 + 1) % 40 + 10  # from which three chunks can be retrieved
        return [*ended, long, long, long]

    def _write_neighbors(self, rng):
        database = RetroProject(self.folder).database("train", chunk_length=self.chunk_length, eod_token_id=EOD)
        allowed = np.arange(-1, len(database))
        if self.all_there:
            numbers = np.arange(len(database))
            allowed = numbers[(database.following(numbers, self.num_retrieved) >= 0).all(axis=1)]
        self.block_size = int(rng.choice([1, 7, 100]))
        per_sample = self.settings["sequence_length"] // self.chunk_length
        self.neighbor_dirs = {}
        for key, entry in self.samples.items():
            if entry is not None:
                neighbors = rng.choice(allowed, size=(entry[1] * per_sample, 4))
                folder = Path(RetroProject(self.folder).neighbor_folder(key, entry[0]))
                write_neighbors(folder, neighbors, block_size=self.block_size)
                self.neighbor_dirs[key] = folder.name

    def case(self):
        """Returns what the other process reads it by."""
        return {"settings": self.settings, "sizes": self.sizes, "tokenizer": self.tokenizer, "retro": self.retro}

    def read(self):
        """Returns the samples with neighbors, by split."""
        datasets = get_retro_datasets(RetroSettings(**self.retro), self.samples, self.settings["sequence_length"], EOD)
        return dict(zip(("train", "valid", "test"), datasets, strict=True))


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """Returns rounds, and what the peer gives for each; the process of the peer is started once."""
    require_peer()
    seed = printed_seed()
    folder = tmp_path_factory.mktemp("retro")
    drawn = [Round(folder, number, np.random.default_rng([seed, number])) for number in range(ROUNDS)]
    arrays = answers_of_peer("read", drawn, folder)
    found = [{} for _ in drawn]
    for name in arrays.files:
        number, _, rest = name.partition("/")
        found[int(number)][rest] = arrays[name]
    return list(zip(drawn, found, strict=True))


@pytest.fixture(params=range(ROUNDS))
def compared(request, rounds):
    return rounds[request.param]


def test_splits_and_keys_are_those_of_the_peer(compared):
    drawn, theirs = compared
    config = next(entry for entry in drawn.samples.values() if entry is not None)[0].config
    assert json.dumps(config.split_matrix) == str(theirs["matrix"])
    for key, entry in drawn.samples.items():
        assert (entry is None) == (f"{key}/hash" not in theirs)
        if entry is not None:
            assert entry[0].unique_description_hash == str(theirs[f"{key}/hash"])
            assert len(entry[0]) == int(theirs[f"{key}/length"])


def test_samples_are_those_of_the_peer(compared):
    drawn, theirs = compared
    num_compared = 0
    for key, dataset in drawn.read().items():
        for position in range(0 if dataset is None else len(dataset)):
            sample = dataset[position]
            beginning = f"{key}/{position}/"
            assert list(sample) == [name[len(beginning) :] for name in theirs if name.startswith(beginning)]
            for name, array in sample.items():
                expected = theirs[beginning + name]
                assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
                if name.startswith("neighbor_"):
                    length = drawn.chunk_length if name == "neighbor_tokens" else 1
                    missing = np.repeat(sample["neighbor_chunks"] == -1, length, axis=-1)
                    assert not (drawn.all_there and missing.any())
                    assert (array[missing] == (EOD if length > 1 or name == "neighbor_tokens" else -1)).all()
                    array, expected = array[~missing], expected[~missing]
                assert (array == expected).all()
            num_compared += 1
    assert num_compared >= 5


def test_batches_are_the_samples_of_the_peer(compared):
    drawn, theirs = compared
    if drawn.settings["return_document_ids"]:
        return
    dataset = drawn.read()["train"]
    if not drawn.all_there or dataset is None:
        return
    batch = dataset.batch(range(len(dataset)))
    for position in range(len(dataset)):
        assert all((array[position] == theirs[f"train/{position}/{name}"]).all() for name, array in batch.items())
