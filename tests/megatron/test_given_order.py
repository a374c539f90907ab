"""Orders of index arrays that somebody gave."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tokenloom.megatron.given_order import GivenOrder
from tokenloom.order.documents import Documents, Rows


class Low:
    """Three documents; a token says its document and place."""

    sequence_lengths = np.array([4, 5, 3], dtype=np.int32)

    def get(self, idx, offset=0, length=None):
        return (10 * idx + np.arange(self.sequence_lengths[idx]))[offset:][:length]


def make(documents, rows, shuffle):
    arrays = {
        "document_index": np.array(documents, dtype=np.int32),
        "sample_index": np.array(rows, dtype=np.int32),
        "shuffle_index": np.array(shuffle, dtype=np.uint32),
    }
    documents = Documents(Low(), Rows.of(range(3)))
    return GivenOrder(arrays, documents, sequence_length=5, extra=1, identity="given")


@pytest.mark.parametrize(
    ("documents", "rows", "shuffle", "regular"),
    [
        ([1, 0, 2], [[0, 0], [1, 0], [2, 1]], [1, 0], True),
        ([1, 0, 2], [[0, 0], [1, 0], [2, 1]], [1], False),  # too few numbers of windows
        ([1, 0, 2], [[0, 0], [1, 0], [2, 1]], [1, 2], False),  # a window that is not there
        ([1, 0, 2], [[0, 0], [2, 1]], [0], False),  # a longer window
        ([1, 0, 2], [[0, 1], [1, 1], [2, 2]], [0, 1], False),  # not from the beginning
        ([1, 0, 2], [[0, 0], [1, 0], [2, 3]], [0, 1], False),  # beyond the end
        ([1, 0, 7], [[0, 0], [1, 0], [2, 1]], [0, 1], False),  # a document that is not there
        ([1, 0, 2], [[0, 0]], [], True),  # no sample at all
        ([1, 0, 2], [0, 5], [0], False),  # no pairs
    ],
)
def test_windows_of_one_length_are_regular(documents, rows, shuffle, regular):
    assert make(documents, rows, shuffle).is_regular is regular


def test_spans_and_reading_name_the_same_tokens():
    order = make([1, 0, 2], [[0, 0], [1, 0], [2, 1]], [1, 0])
    for each in (order, pickle.loads(pickle.dumps(order))):
        assert each.num_samples == 2
        assert each.spans(np.array([0, 1]), keep_empty=False).documents.tolist() == [0, 2, 1, 0]
        parts, documents = each.read(Low(), 0)
        assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [20, 21]]
        assert documents == [0, 2]
    assert order.verify() == []
