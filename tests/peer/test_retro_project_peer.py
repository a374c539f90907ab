"""Projects that we build, read by megatron-core 0.15.3: the same samples, with the same neighbors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from retro_building import EOD, PREFIXES, SETTINGS, LetterTokenizer, build, project
from tests.peer.retro_peer import answers_of_peer, require_peer

from tokenloom_retro.assembled import RetroSettings, get_retro_datasets
from tokenloom_retro.build import retro_samples

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.usefixtures("quiet")]

VOCAB_SIZE = 27
ROUNDS = 3


class Tokenizer(LetterTokenizer):
    """The one that the peer has, with letters."""

    unique_identifiers: ClassVar = {"class": "StandInTokenizer", "vocab_size": VOCAB_SIZE}
    pad = 26


class Round:
    """A project, built with settings that are drawn at random."""

    def __init__(self, folder, number, rng):
        chunk_length = int(rng.choice([2, 4]))
        names = PREFIXES[: 1 + number % 2]
        self.settings = replace(
            SETTINGS,
            data=tuple((float(rng.integers(1, 5)), name) for name in names),
            sequence_length=chunk_length * int(rng.integers(1, 4)),
            chunk_length=chunk_length,
            sizes=(int(rng.integers(10, 30)), int(rng.integers(1, 5)), None),
            seed=int(rng.integers(2**31)),
            index=["Flat", "HNSW8"][number % 2],
            block_size=int(rng.choice([7, 100])),
            of_samples={"mid_level_dataset_surplus": 1.0},
        )
        self.made = project(folder / str(number), rng, num_documents=40)
        build(self.made, self.settings, tokenizer=Tokenizer())
        config = json.loads(Path(self.made.config_path).read_text())
        self.retro = {
            "retro_project_dir": self.made.folder,
            "retro_chunk_length": chunk_length,
            "retro_block_size": self.settings.block_size,
            "retro_neighbor_dirs": {key: name for key, name in config["retro_neighbor_dirs"].items() if name},
            "retro_num_neighbors": 2,
            "retro_num_retrieved_chunks": 2,
            "retro_verify_neighbor_count": True,
        }

    def case(self):
        """Returns what the other process reads it by: what training names, not what we had at hand."""
        settings = {
            "random_seed": self.settings.seed,
            "sequence_length": self.settings.sequence_length,
            "blend": (
                [self.made.data_prefix(prefix) for _, prefix in self.settings.data],
                [weight for weight, _ in self.settings.data],
            ),
            "split": self.settings.split,
            "split_preprocessing": self.settings.split,
            "return_document_ids": True,
            "mid_level_dataset_surplus": 1.0,
        }
        tokenizer = {"eod": EOD, "vocab_size": VOCAB_SIZE, "pad": Tokenizer.pad}
        sizes = [size or 0 for size in self.settings.sizes]
        return {"settings": settings, "sizes": sizes, "tokenizer": tokenizer, "retro": self.retro}

    def read(self):
        """Returns the samples with neighbors, by split."""
        samples = retro_samples(self.made, self.settings, Tokenizer())
        datasets = get_retro_datasets(RetroSettings(**self.retro), samples, self.settings.sequence_length, EOD)
        return dict(zip(("train", "valid", "test"), datasets, strict=True))


def test_the_peer_reads_what_we_build(tmp_path: Path, seed: int):
    require_peer()
    rounds = [Round(tmp_path, number, np.random.default_rng([seed, number])) for number in range(ROUNDS)]
    theirs = answers_of_peer("read", rounds, tmp_path)
    num_there = 0
    for number, drawn in enumerate(rounds):
        for key, dataset in drawn.read().items():
            for position in range(0 if dataset is None else len(dataset)):
                for name, array in dataset[position].items():
                    expected = theirs[f"{number}/{key}/{position}/{name}"]
                    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
                    if name.startswith("neighbor_"):  # a chunk that is not there is the last one for the peer
                        there = dataset[position]["neighbor_chunks"] != -1
                        if name == "neighbor_tokens":
                            there = np.repeat(there, drawn.settings.chunk_length, axis=-1)
                        array, expected = array[there], expected[there]
                        num_there += len(array)
                    assert (array == expected).all(), (number, key, position, name)
    assert num_there > 100
