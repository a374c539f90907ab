"""`tokenloom.megatron.core.datasets.retro.db.dataset`."""

from __future__ import annotations

import numpy as np
from tests.support import EOD, write_corpus

from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.retro.db.dataset import DBDataset


def test_chunks_of_pairs_by_their_names_here(tmp_path):
    pair = IndexedDataset(write_corpus(tmp_path / "corpus", [[1, 2, 3, 4, 5, EOD]]))
    chunks = np.array([[0, 0, 0, 4, 4], [0, 0, 4, 5, 1]], dtype=np.uint32)
    database = DBDataset(db_path="db", indexed_datasets=[pair], chunks=chunks, chunk_length=4, eod_token_id=EOD)
    assert [database[number]["text"].tolist() for number in range(2)] == [[1, 2, 3, 4], [5, EOD, EOD, EOD]]
    assert (database.max_chunk_length, database.eod_token_id) == (4, EOD)


def test_a_pair_that_overrides_get_is_asked(tmp_path):
    class Doubled(IndexedDataset):
        def get(self, idx, offset=0, length=None):
            return super().get(idx, offset, length) * 2

    pair = Doubled(write_corpus(tmp_path / "corpus", [[1, 2, 3, 4, 5, EOD]]))
    database = DBDataset("db", [pair], np.array([[0, 0, 0, 4, 4]], dtype=np.uint32), 4, EOD)
    assert database.gather([0]).tolist() == [[2, 4, 6, 8]]
