"""Client code as it is written for megatron-core, over our classes."""

import numpy as np
import pytest
from tests.support import make_config, make_dataset, write_corpus

from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.indexed.dataset import IndexedDataset

pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("quiet")]

pytest.importorskip("megatron.core")

from megatron.core.datasets import gpt_dataset as peer_gpt  # noqa: E402
from megatron.core.datasets.utils import Split as PeerSplit  # noqa: E402


def test_a_split_is_equal_in_both_directions_and_found_in_tables_of_either():
    for mine, theirs in zip(Split, PeerSplit, strict=True):
        assert mine == theirs
        assert theirs == mine
        assert hash(mine) == hash(theirs)
        assert theirs in {mine}
        assert mine in {theirs}
    assert Split.valid != PeerSplit.train
    assert PeerSplit.valid != Split.train
    assert Split.valid in (PeerSplit.valid,)
    assert PeerSplit.valid in list(Split)


def test_their_split_makes_the_same_dataset_as_ours(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [list(range(1, 24))] * 3)
    settings = {"sequence_length": 5, "drop_last_partial_validation_sequence": False}
    for mine, theirs in zip(Split, PeerSplit, strict=True):
        one, other = (make_dataset(prefix, split=split, in_memory=True, **settings) for split in (mine, theirs))
        assert len(one) == len(other)
        assert one.unique_description == other.unique_description


def test_their_query_over_our_class_reads_the_same_samples(tmp_path, rng):
    documents = [rng.integers(0, 20, size=int(size)) for size in rng.integers(0, 30, size=12)]
    prefix = write_corpus(tmp_path / "corpus", documents)

    class Mine(GPTDataset):
        asked = 0

        def _query_document_sample_shuffle_indices(self, idx):
            type(self).asked += 1
            return peer_gpt.GPTDataset._query_document_sample_shuffle_indices(self, idx)

    for settings in ({}, {"reset_position_ids": True, "eod_mask_loss": True}, {"add_extra_token_to_sequence": False}):
        config = make_config(None, sequence_length=7, **settings)
        indices = np.arange(len(documents), dtype=np.int32)
        plain, mine = (
            cls(IndexedDataset(prefix), prefix, indices, 20, Split.train, config) for cls in (GPTDataset, Mine)
        )
        for k in range(len(plain)):
            text, document_ids = plain._query_document_sample_shuffle_indices(k)
            their_text, their_ids, *_ = mine._query_document_sample_shuffle_indices(k)  # of newer versions three
            assert text.tolist() == their_text.tolist()
            assert document_ids.tolist() == their_ids.tolist()
            for name, tensor in plain[k].items():
                assert mine[k][name].tolist() == tensor.tolist()
    assert Mine.asked
