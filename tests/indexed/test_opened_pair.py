import os
import pickle
import threading

import pytest
from tests.indexed.pairs import write_pair

from tokenloom.errors import ChangedFileError, DatasetFormatError, DatasetNotFoundError
from tokenloom.indexed import dataset as plain
from tokenloom.megatron.core.datasets import indexed_dataset as reference

CORPUS = [[[5, 6, 7], [8]], [], [[9]]]


@pytest.fixture(params=[plain.IndexedDataset, reference.IndexedDataset], ids=["plain", "reference"])
def open_later(request, tmp_path):
    """Opens a pair whose counts are given; these need not be its own."""
    prefix = write_pair(tmp_path / "corpus", CORPUS)

    def open_pair(counts=(3, 4), prefix=prefix, **named):
        return request.param(prefix, fast_cache_load=True, sequences_per_dataset=counts, **named)

    return open_pair


def test_counts_are_known_without_the_files(open_later, tmp_path):
    dataset = open_later(prefix=f"{tmp_path}/none")
    again = pickle.loads(pickle.dumps(dataset))
    for each in (dataset, again):
        assert (len(each), each.num_documents, each.remote_paths, each.is_open) == (3, 3, [], False)
        with pytest.raises(DatasetNotFoundError):
            each.get(0)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = each.nothing


@pytest.mark.parametrize(
    "use",
    [
        lambda dataset: dataset[0],
        lambda dataset: dataset.get(0),
        lambda dataset: dataset[0:1],
        lambda dataset: dataset.dtype,
        lambda dataset: dataset.sequence_lengths,
        lambda dataset: dataset.bin_reader,
        lambda dataset: dataset.num_tokens,
        lambda dataset: dataset.check_tokens(),
        lambda dataset: dataset.check_index(),
        lambda dataset: dataset.index_source(),
        repr,
    ],
)
def test_any_use_opens_the_files(open_later, use):
    dataset = open_later()
    assert not dataset.is_open
    use(dataset)
    assert dataset.is_open
    assert [tokens.tolist() for tokens in dataset[:]] == [[5, 6, 7], [8], [9]]


def test_data_of_other_counts_are_refused_then(open_later):
    dataset = open_later((2, 4))
    with pytest.raises(DatasetFormatError, match=r"expected \(2, 4\) sequences and boundaries, found \(3, 4\)"):
        dataset.get(0)


def test_what_was_opened_is_what_others_open(open_later, tmp_path):
    opened, unopened = open_later(), open_later()
    opened.get(0)
    pickled = [pickle.dumps(dataset) for dataset in (opened, unopened)]
    write_pair(tmp_path / "corpus", [[[1, 2, 3], [4]], [], [[5]]])
    with pytest.raises(ChangedFileError):
        pickle.loads(pickled[0]).get(0)
    assert pickle.loads(pickled[1])[2].tolist() == [5]


def test_threads_may_open_at_once(open_later):
    for _ in range(5):
        dataset, found, begin = open_later(), [], threading.Barrier(4)

        def ask(dataset=dataset, found=found, begin=begin):
            begin.wait()
            found.append(dataset.get(0).tolist())

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[5, 6, 7]] * 4


def test_a_pair_is_opened_at_once_where_either_is_missing(tmp_path):
    prefix = write_pair(tmp_path / "corpus", CORPUS)
    os.unlink(f"{prefix}.bin")
    for named in ({"fast_cache_load": True}, {"sequences_per_dataset": (3, 4)}):
        with pytest.raises(DatasetNotFoundError):
            plain.IndexedDataset(prefix, **named)
