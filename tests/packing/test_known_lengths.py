"""Packs of a dataset that knows its lengths."""

from __future__ import annotations

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, settings, write_conversations
from tests.packing.items import CONFIG
from tests.reference.packing import sample

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.chat_config import VarlenDatasetConfig
from tokenloom.datasets.conversations import VarlenDataset
from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.schedulers import wrap_data_iterator, wrap_dataset

torch = pytest.importorskip("torch")


class Sized:
    def __init__(self, lengths, real=None):
        self._lengths = np.array(lengths)
        self.real = self._lengths if real is None else real

    def __len__(self):
        return len(self._lengths)

    def lengths(self, positions):
        return self._lengths[positions]

    padded_lengths = lengths

    def __getitem__(self, position):
        return sample(position, int(self.real[position]))


def check_alike(known, exchanged):
    assert known[1:] == exchanged[1:]
    for one, other in zip(known[0], exchanged[0], strict=True):
        assert list(one) == list(other)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_known_lengths_give_the_packs_of_the_iterator():
    data = Sized([3, 4, 2, 5])
    known, exchanged = wrap_dataset(data, range(4), CONFIG), wrap_data_iterator((data[i] for i in range(4)), CONFIG, 4)
    assert known[1:] == (2, 14, 54)
    check_alike(known, exchanged)


@pytest.mark.parametrize("scheduler", ["dp_balanced", "cost_balanced"])
def test_a_blend_of_conversations_packs_by_its_index(tmp_path, scheduler):
    folders = [
        write_conversations(
            tmp_path / str(k), [conversation((PROMPT, [k, 3]), (ANSWER, [5] * row + [9])) for row in range(12)]
        )
        for k in range(2)
    ]
    blend = {"blend": (folders, [1.0, 2.0]), "split": "1,0,0", "path_to_cache": str(tmp_path / "cache")}
    config = VarlenDatasetConfig(**settings(None, sequence_length=12, context_parallel_size=2, **blend))
    train, _, _ = BlendedMegatronDatasetBuilder(VarlenDataset, [20, 0, 0], lambda: True, config).build()
    positions = np.array([7, 0, 12, 3, 19, 5, 1, 2])
    samples = [train[int(position)] for position in positions]
    assert train.lengths(positions).tolist() == [int(one["original_seq_len"]) for one in samples]
    assert train.padded_lengths(positions).tolist() == [int(one["padded_seq_len"]) for one in samples]
    packing = PackingConfig(max_seqlen_per_dp_cp_rank=32, sequence_packing_scheduler=scheduler)
    known = wrap_dataset(train, positions, packing)
    exchanged = wrap_data_iterator(iter(samples), packing, len(samples))
    assert known[2] == sum(int(one["original_seq_len"]) for one in samples)
    check_alike(known, exchanged)


def test_micro_batches_of_several_samples_are_read_in_a_row():
    data = Sized([1, 2, 3, 4, 5, 6])
    *_, total, squares = wrap_dataset(data, [4, 0, 5, 1], CONFIG, micro_batch_size=2)
    assert (total, squares) == (14, 66)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        *((positions, "length must be a multiple of 1 ranks") for positions in ([], [[1, 2]], 3)),
        ([0, 3], "position 3 out of range: the dataset has 3 samples"),
    ],
)
def test_positions_that_are_no_global_batch_are_refused(positions, message):
    with pytest.raises(ConfigError, match=message):
        wrap_dataset(Sized([1, 2, 3]), positions, CONFIG)


def test_a_dataset_must_have_the_lengths_that_it_returns():
    with pytest.raises(
        DatasetFormatError, match=r"sample at position 1: expected \(tokens, padded\) \[\(2, 2\)\], found \[\(3, 3\)\]"
    ):
        wrap_dataset(Sized([1, 2], real=[1, 3]), [0, 1], CONFIG)
