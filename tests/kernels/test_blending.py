"""The kernel that orders blends, compared with its readable reference."""

from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.reference.blend import blending_indices

from tokenloom.kernels import order
from tokenloom.kernels.order import blending_counts, build_blending_indices


def by_weight(weights, size):
    chosen, samples = build_blending_indices(np.array(weights, dtype=np.float64), size=size)
    return chosen.tolist(), samples.tolist()


def exhaustively(sizes):
    counts = np.array(sizes, dtype=np.int64)
    chosen, samples = build_blending_indices(counts / float(sum(sizes)), size=sum(sizes), sizes=counts)
    return chosen.tolist(), samples.tolist()


def normalized(weights):
    array = np.array(weights, dtype=np.float64)
    return (array / array.sum()).tolist()


def test_literal_blends_by_weight():
    assert by_weight([1.0], 4) == ([0, 0, 0, 0], [0, 1, 2, 3])
    assert by_weight([0.5, 0.5], 5) == ([0, 1, 0, 1, 0], [0, 0, 1, 1, 2])
    assert by_weight([0.25, 0.75], 8) == ([1, 0, 1, 1, 0, 1, 1, 1], [0, 0, 1, 2, 1, 3, 4, 5])
    assert by_weight([0.5, 0.25, 0.25], 8) == ([0, 1, 2, 0, 0, 1, 2, 0], [0, 0, 0, 1, 2, 1, 1, 3])
    assert by_weight([0.3, 0.7], 0) == ([], [])


skewed = st.floats(-12, 0).map(lambda exponent: 10.0**exponent)
few_values = st.sampled_from([1.0, 2.0, 3.0, 1e-6, 1 / 3])
strange = st.sampled_from([0.0, 5e-324, 1e-310, 1e-300, 1.0, 1.0, 0.1])
kinds = [st.floats(1e-3, 1.0), skewed, few_values, st.just(1.0), strange, st.one_of(skewed, few_values)]


@st.composite
def weights_of_many(draw, most=400):
    """Draws the weights of 1 to `most` datasets: smooth, repeated, equal, over 12 decades, or almost 0."""
    kind = draw(st.sampled_from(kinds))
    number = draw(st.one_of(st.integers(1, 20), st.integers(20, most)))
    if number <= 20:
        weights = draw(st.lists(kind, min_size=number, max_size=number))
    else:  # drawing hundreds of numbers one by one is slow
        pool = draw(st.lists(kind, min_size=1, max_size=12))
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        weights = rng.choice(pool, size=number)
        if draw(st.booleans()):
            weights = weights * rng.uniform(0.5, 1.5, size=number)
        weights = weights.tolist()
    return weights if sum(weights) > 0 else [*weights, 1.0]


@contextmanager
def threads(number, warm_up):
    with mock.patch.multiple(order, _num_threads=lambda size: number, _WARM_UP=warm_up):
        yield


@given(weights=weights_of_many(), size=st.integers(0, 1200), number=st.integers(1, 7), warm_up=st.integers(0, 200))
@example(weights=[1.0] * 400, size=1200, number=3, warm_up=0)
@example(weights=[1.0, 1e-12] * 30, size=1000, number=4, warm_up=10)
@example(weights=[5e-324] * 20 + [1.0], size=100, number=1, warm_up=0)
@example(weights=[1.0, 2.0], size=3, number=7, warm_up=0)
def test_blends_by_weight_equal_the_twin_for_any_number_of_threads(weights, size, number, warm_up):
    shares = normalized(weights)
    expected = blending_indices(shares, size)
    for num_threads in {1, number}:
        with threads(num_threads, warm_up):
            assert by_weight(shares, size) == expected
            counts = blending_counts(np.array(shares), size)
        assert counts.tolist() == np.bincount(np.array(expected[0], dtype=np.int64), minlength=len(shares)).tolist()


@st.composite
def sizes_of_many(draw):
    number = draw(st.one_of(st.integers(1, 12), st.integers(13, 200)))
    largest = draw(st.sampled_from([1, 2, 5, 30]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = rng.integers(1, largest + 1, size=number)
    if draw(st.booleans()):
        sizes[int(rng.integers(number))] += draw(st.integers(0, 400))
    return sizes.tolist()


@given(sizes=sizes_of_many(), number=st.integers(1, 7), warm_up=st.integers(0, 50))
@example(sizes=[1] * 200, number=3, warm_up=0)
@example(sizes=[1000, 1], number=4, warm_up=0)
def test_blends_that_use_everything_up_equal_the_twin_for_any_number_of_threads(sizes, number, warm_up):
    total = sum(sizes)
    chosen, samples = blending_indices([size / float(total) for size in sizes], total, sizes)
    for num_threads in {1, number}:
        with threads(num_threads, warm_up):
            assert exhaustively(sizes) == (chosen, samples)
    assert sorted(zip(chosen, samples, strict=True)) == [
        (number, sample) for number, size in enumerate(sizes) for sample in range(size)
    ]


@pytest.mark.parametrize(
    ("number", "kind"), [(2, "smooth"), (40, "skewed"), (40, "equal"), (200, "smooth"), (1000, "smooth")]
)
def test_a_long_blend_is_the_same_from_several_threads(number, kind, seed):
    rng = np.random.default_rng(seed)
    draw = {"smooth": lambda: rng.dirichlet(np.ones(number)), "skewed": lambda: 10 ** rng.uniform(-9, 0, number)}
    weights = draw[kind]() if kind in draw else np.ones(number)
    shares = weights / weights.sum()
    with threads(1, 0):
        alone = build_blending_indices(shares, size=300_000)
    for warm_up in (0, 1000, 1 << 15):
        with threads(3, warm_up):
            together = build_blending_indices(shares, size=300_000)
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"seed {seed}")


@pytest.mark.parametrize(("number", "dtype"), [(32767, np.int16), (32768, np.int32), (40000, np.int32)])
def test_ids_are_wide_enough(number, dtype):
    shares = np.full(number, 1 / number)
    chosen, samples = build_blending_indices(shares, size=number + 5)
    assert (chosen.dtype, chosen.tolist()) == (dtype, [*range(number), *range(5)])
    assert samples.tolist() == [0] * number + [1] * 5
    sizes = np.ones(number, dtype=np.int64)
    chosen, samples = build_blending_indices(shares, size=number, sizes=sizes)
    assert (chosen.dtype, chosen.tolist()) == (dtype, list(range(number)))
