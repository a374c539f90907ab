import numpy as np
import pytest
from tests.support import write_corpus

from tokenloom.errors import ChangedFileError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs, PairToJoin

CORPORA = [[[1, 2, 3], [4]], [[5, 6]], [[7], [], [8, 9, 10, 11]]]


def accept(pair):
    """Whatever it is."""


def joined(folder, *, mmap=True, check=accept):
    pairs = [
        PairToJoin(prefix=write_corpus(folder / f"p{number}", corpus), num_sequences=len(corpus), check=check)
        for number, corpus in enumerate(CORPORA)
    ]
    dtype = IndexedDataset(pairs[0].prefix).dtype
    return JoinedPairs(pairs, dtype=dtype, mmap=mmap)


@pytest.mark.parametrize("mmap", [True, False])
def test_sequences_are_numbered_through(tmp_path, mmap):
    pairs = joined(tmp_path, mmap=mmap)
    everything = [sequence for corpus in CORPORA for sequence in corpus]
    assert len(pairs) == len(everything)
    assert pairs.num_open == 0
    assert [pairs[number].tolist() for number in range(len(pairs))] == everything
    assert pairs.num_open == 3
    assert pairs.get(5, offset=1, length=2).tolist() == [9, 10]
    with pytest.raises(IndexError, match="sequence 6 out of range: there are 6"):
        pairs[6]


def test_only_what_is_asked_for_is_opened(tmp_path):
    pairs = joined(tmp_path)
    assert pairs[2].tolist() == [5, 6]
    assert pairs.num_open == 1
    assert pairs.sections is not None
    assert joined(tmp_path, mmap=False).sections is None


@pytest.mark.parametrize("mmap", [True, False])
def test_spans_of_several_pairs_come_in_their_order(tmp_path, mmap):
    pairs = joined(tmp_path, mmap=mmap)
    sequences, starts, lengths = (np.array(column) for column in ([5, 0, 2, 0, 5], [2, 0, 1, 1, 0], [2, 2, 1, 2, 1]))
    assert pairs.gather(sequences, starts, lengths).tolist() == [10, 11, 1, 2, 6, 2, 3, 8]
    assert pairs.gather(sequences[:0], starts[:0], lengths[:0]).tolist() == []


def test_a_pair_is_checked_when_it_is_opened(tmp_path):
    def refuse(pair):
        message = "another one"
        raise ChangedFileError(message)

    pairs = joined(tmp_path, check=refuse)
    for _ in range(2):
        with pytest.raises(ChangedFileError, match="another one"):
            pairs[0]
    assert pairs.num_open == 0
