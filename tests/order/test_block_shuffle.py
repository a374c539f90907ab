"""The block shuffle: its permutation, locality and degree of mixing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import make_config, make_dataset, write_corpus

from tokenloom import BlockShuffle, ConfigError
from tokenloom.order.block_shuffle import build_block_document_index, build_block_shuffle_index
from tokenloom.order.epochs import EpochPlan


def plan_of(num_epochs: int, num_samples: int = 10) -> EpochPlan:
    return EpochPlan(
        tokens_per_epoch=1,
        num_epochs=num_epochs,
        num_samples=num_samples,
        num_samples_sans_final_epoch=num_samples,
        separate_final_epoch=False,
    )


def documents(offsets: list[int], blocks: BlockShuffle, *, num_epochs: int = 1, seed: int = 1) -> np.ndarray:
    indices = np.arange(100, 100 + len(offsets), dtype=np.int32)
    numbers = np.array(offsets, dtype=np.int64) // blocks.block_bytes
    stream = build_block_document_index(indices, numbers, plan_of(num_epochs), blocks, seed)
    assert stream.dtype == np.int32
    return stream.reshape(num_epochs, -1) - 100


def neighbour_distance(order: np.ndarray) -> float:
    """Returns the mean distance of file neighbours in an order, as a fraction of its length; 1/3 for a full shuffle."""
    return float(np.abs(np.diff(np.argsort(order, kind="stable"))).mean() / len(order))


@given(
    st.lists(st.integers(0, 50), max_size=80),
    st.integers(1, 200),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_every_epoch_is_a_permutation_by_windows_of_blocks(sizes, block_bytes, window_blocks, num_epochs, seed):
    offsets = (np.cumsum(sizes) - sizes).tolist() if sizes else []
    blocks = BlockShuffle(block_bytes=block_bytes, window_blocks=window_blocks)
    epochs = documents(offsets, blocks, num_epochs=num_epochs, seed=seed)
    numbers = np.array(offsets, dtype=np.int64) // block_bytes
    for order in epochs:
        assert sorted(order.tolist()) == list(range(len(offsets)))
        seen = list(dict.fromkeys(numbers[order].tolist()))
        for begin in range(0, len(set(numbers.tolist())), window_blocks):
            # a block ends before the window after its own begins
            later = set(seen[begin + window_blocks :])
            last = max(
                (place for place, row in enumerate(order) if numbers[row] in seen[begin:][:window_blocks]), default=-1
            )
            assert not later & set(numbers[order[: last + 1]].tolist())


def test_an_epoch_depends_on_the_seed_and_its_number_alone():
    offsets = list(range(0, 1000, 10))
    blocks = BlockShuffle(block_bytes=50, window_blocks=3)
    three = documents(offsets, blocks, num_epochs=3)
    assert (three[:2] == documents(offsets, blocks, num_epochs=2)).all()
    assert (three[0] != three[1]).any()
    assert (three[0] != documents(offsets, blocks, seed=2)[0]).any()


def test_the_order_is_pinned():
    order = documents(list(range(0, 120, 10)), BlockShuffle(block_bytes=20, window_blocks=2), seed=7)[0]
    assert order.tolist() == [10, 9, 8, 11, 1, 4, 5, 0, 3, 6, 2, 7]


def test_samples_mix_within_the_bytes_of_a_window():
    blocks = BlockShuffle(block_bytes=100, window_blocks=2)
    shuffled = build_block_shuffle_index(plan_of(1, 100), blocks, sample_bytes=20, seed=3)
    assert shuffled.dtype == np.uint32
    for begin in range(0, 100, 10):
        assert sorted(shuffled[begin : begin + 10].tolist()) == list(range(begin, begin + 10))
    assert (shuffled != np.arange(100)).any()


def test_larger_windows_mix_further(rng):
    offsets = list(range(0, 40000, 10))
    distances = [
        neighbour_distance(documents(offsets, BlockShuffle(block_bytes=400, window_blocks=window))[0])
        for window in (1, 4, 20, 100)
    ]
    assert distances == sorted(distances)
    assert distances[0] < 0.05
    assert distances[-1] > 0.3


def test_datasets_keep_the_two_orders_apart(tmp_path, rng):
    prefix = write_corpus(tmp_path / "corpus", [rng.integers(0, 100, size=20) for _ in range(200)])
    settings = {"path_to_cache": str(tmp_path / "cache"), "sequence_length": 16}
    blocks = BlockShuffle(block_bytes=400, window_blocks=2)
    for _ in range(2):  # built, then from the cache
        full, local = make_dataset(prefix, **settings), make_dataset(prefix, block_shuffle=blocks, **settings)
        assert full.unique_description_hash != local.unique_description_hash
        assert neighbour_distance(full.document_index) > 0.25 > 0.1 > neighbour_distance(local.document_index)
        assert local.verify_indices() == []
        assert sorted(local.shuffle_index.tolist()) == list(range(len(local)))
    assert len(list((tmp_path / "cache").glob("*-document_index.npy"))) == 2


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="window_blocks"):
        BlockShuffle(window_blocks=0)
    with pytest.raises(ConfigError, match="`block_shuffle`: needs data, got mock data"):
        make_config(None, block_shuffle=BlockShuffle())
    with pytest.raises(ConfigError, match="`block_shuffle` and `window_policy='best_fit'` exclude each other"):
        make_config("some", block_shuffle=BlockShuffle(), window_policy="best_fit")


def test_numbers_of_documents_may_need_64_bits():
    indices = np.array([1, 2**31, 2**31 + 1])
    stream = build_block_document_index(indices, np.zeros(3, dtype=np.int64), plan_of(2), BlockShuffle(), 1)
    assert stream.dtype == np.int64
    assert sorted(stream[:3].tolist()) == sorted(stream[3:].tolist()) == indices.tolist()
