"""Batches in the caller's arrays: the same samples; arrays of another layout stay unchanged."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import StandInTokenizer, equal_samples, make_dataset, random_documents, write_corpus

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.sample_arrays import causal_mask
from tokenloom.errors import ConfigError, TokenRangeError

MASKS = {"create_attention_mask": True, "reset_attention_mask": True}
SETTINGS = {
    "plain": {},
    "resets": {"reset_position_ids": True, "eod_mask_loss": True},
    "constant mask": {"create_attention_mask": True},
    "mask": {"reset_position_ids": True, **MASKS},
    "documents": {"inter_document_masking": True},
    "padding": {"tokenizer": StandInTokenizer(pad=3)},
    "unmapped": {"mmap_bin_files": False, "reset_position_ids": True},
}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    rng = np.random.default_rng(0)
    documents = random_documents(rng, count=60, longest=30, vocab_size=20)
    return write_corpus(tmp_path_factory.mktemp("outputs") / "corpus", documents)


def spoil(batch):
    """Fills every array with garbage, so that missing writes are found."""
    for array in batch.values():
        if array.flags.writeable:
            array.fill(77)


@pytest.mark.parametrize("name", SETTINGS)
@given(data=st.data())
def test_given_arrays_hold_the_samples(prefix, name, data):
    dataset = make_dataset(prefix, num_samples=50, sequence_length=9, **SETTINGS[name])
    positions = data.draw(st.lists(st.one_of(st.none(), st.integers(-50, 49)), max_size=6))
    out = dataset.allocate_batch(len(positions))
    spoil(out)
    assert dataset.batch(positions, out=out) is out
    assert equal_samples(out, dataset.batch(positions))
    for row, position in enumerate(positions):
        assert equal_samples({key: array[row] for key, array in out.items()}, dataset.sample(position))


@pytest.mark.parametrize("name", ["mask", "documents", "padding", "unmapped"])
def test_rows_are_filled_in_any_order_and_others_left_alone(prefix, name):
    dataset = make_dataset(prefix, num_samples=50, sequence_length=9, **SETTINGS[name])
    out = dataset.allocate_batch(5)
    spoil(out)
    dataset.fill_rows([7, None], out, np.array([4, 1]))
    expected = dataset.batch([7, None])
    for key, array in out.items():
        assert (array[[4, 1]] == expected[key]).all()
        assert not array.flags.writeable or (array[[0, 2, 3]] == np.full(1, 77, dtype=array.dtype)).all()


@pytest.mark.parametrize("name", ["resets", "documents", "unmapped"])
def test_integers_can_be_narrow(prefix, name):
    dataset = make_dataset(prefix, num_samples=50, sequence_length=9, **SETTINGS[name])
    out = dataset.batch([3, 1, None], out=dataset.allocate_batch(3, integer_dtype=np.int32))
    expected = dataset.batch([3, 1, None])
    assert list(out) == list(expected)
    for key, array in out.items():
        wanted = np.dtype(np.int32) if expected[key].dtype == np.int64 else expected[key].dtype
        assert array.dtype == wanted
        assert (array == expected[key]).all()
    for dtype in (np.int16, "float32", "nonsense"):
        with pytest.raises(ConfigError, match="`integer_dtype`: must be int64 or int32, got"):
            dataset.allocate_batch(2, integer_dtype=dtype)


@pytest.mark.parametrize("mmap_bin_files", [True, False])
def test_tokens_that_do_not_fit_are_refused(tmp_path, mmap_bin_files):
    prefix = write_corpus(tmp_path / "wide", [[1, 2, 3, 4, 5], [6, 2**31, 8, 9]], dtype=np.int64)
    dataset = make_dataset(prefix, mmap_bin_files=mmap_bin_files)
    with pytest.raises(TokenRangeError, match=r"wide` \(train\): token 2147483648 does not fit into 32 bits") as caught:
        dataset.batch([0, 1], out=dataset.allocate_batch(2, integer_dtype=np.int32))
    assert caught.value.hint == "use integer_dtype=np.int64"
    negative = write_corpus(tmp_path / "negative", [[1, -(2**31) - 1, 3, 4, 5]], dtype=np.int64)
    dataset = make_dataset(negative, mmap_bin_files=mmap_bin_files)
    with pytest.raises(TokenRangeError, match="token -2147483649 does not fit into 32 bits"):
        dataset.batch([0], out=dataset.allocate_batch(1, integer_dtype=np.int32))
    assert dataset.batch([0])["tokens"].tolist() == [[1, -(2**31) - 1, 3, 4]]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"labels": None}, "labels, loss_mask, position_ids, tokens, found loss_mask, position"),
        ({"labels": np.zeros((2, 9))}, r"`labels` in `out`: .* array, int64\[2, 9\], got float64\[2, 9\]"),
        ({"labels": np.zeros((2, 9), np.int32)}, r"`labels` in `out`: .* array, int64\[2, 9\], got int32\[2, 9\]"),
        ({"loss_mask": np.zeros((3, 9), np.float32)}, r"`loss_mask` in `out`: .*float32\[2, 9\], got float32\[3, 9\]"),
        ({"loss_mask": np.zeros((2, 18), np.float32)[:, ::2]}, r"`loss_mask` .*, got non-contiguous float32\[2, 9\]"),
        ({"tokens": np.broadcast_to(np.int64(0), (2, 9))}, "`tokens` .*, got read-only non-contiguous int64"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_before_anything_is_written(prefix, change, problem):
    dataset = make_dataset(prefix, num_samples=50, sequence_length=9)
    out = dataset.allocate_batch(2)
    spoil(out)
    given = {key: array for key, array in {**out, **change}.items() if array is not None}
    with pytest.raises(ConfigError, match=problem) as caught:
        dataset.batch([0, 1], out=given)
    assert caught.value.hint == "make the arrays with `allocate_batch(2)`"
    assert all((array == 77).all() for array in out.values())


@pytest.mark.parametrize("name", ["mask", "documents", "padding"])
def test_blends_fill_given_arrays(prefix, tmp_path, name):
    other = write_corpus(tmp_path / "other", [[7, 9] * 9] * 30)
    settings = {"num_samples": 30, "sequence_length": 9, **SETTINGS[name]}
    datasets = [make_dataset(path, **settings) for path in (prefix, other, prefix)]
    blend = BlendedDataset(datasets, [1.0, 2.0, 1.0], 40, datasets[0].config)
    positions = [3, None, 39, 8, 8, 0, 17]
    out = blend.allocate_batch(len(positions))
    spoil(out)
    assert blend.batch(positions, out=out) is out
    for row, position in enumerate(positions):
        one = {key: array[row] for key, array in out.items()}
        if position is None:
            assert one["loss_mask"].sum() == 0
        else:
            assert equal_samples(one, blend.sample(position))
    with pytest.raises(ConfigError, match=r"`dataset_id` in `out`: samples of the blend of 3 datasets .*int16\[2\]"):
        blend.batch([0, 1], out={**blend.allocate_batch(2), "dataset_id": np.zeros(2)})


def peak_bytes(work):
    """Returns the peak memory of a call in bytes, including NumPy arrays."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("changes", "mmap_bin_files"), [({"reset_position_ids": True, "eod_mask_loss": True}, True), ({}, False)]
)
def test_a_long_sample_costs_memory_in_proportion_to_its_length(tmp_path, changes, mmap_bin_files):
    length = 131_072
    rng = np.random.default_rng(0)
    prefix = write_corpus(tmp_path / "long", [rng.integers(0, 20, size=length // 4) for _ in range(12)])
    dataset = make_dataset(prefix, sequence_length=length, mmap_bin_files=mmap_bin_files, **changes)
    sample = dataset.sample(0)
    bytes_of_sample = sum(array.nbytes for array in sample.values())
    assert bytes_of_sample <= 33 * length
    assert peak_bytes(lambda: dataset.sample(1)) <= (1.05 if mmap_bin_files else 3) * bytes_of_sample
    out = dataset.allocate_batch(2)
    filled_again = peak_bytes(lambda: dataset.batch([0, 1], out=out))
    assert filled_again <= (0.05 if mmap_bin_files else 2) * 2 * bytes_of_sample


def test_a_constant_mask_exists_once_for_all_datasets(prefix):
    first, second = (make_dataset(prefix, sequence_length=64, create_attention_mask=True) for _ in range(2))
    masks = [first.sample(0), first.batch([0, 1]), second.sample(1), second.allocate_batch(3)]
    assert all(np.may_share_memory(sample["attention_mask"], causal_mask(64)) for sample in masks)
    assert peak_bytes(lambda: first.batch(range(8))) < 8 * 64 * 64
    assert causal_mask(5)[0].tolist() == [[column > row for column in range(5)] for row in range(5)]
