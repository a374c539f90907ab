"""As many points as a screen can show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tokenloom.report.thinning import MOST_POINTS, spread_points, thinned


def test_few_points_stay_as_they_are():
    xs, ys = np.array([0, 5, 7]), np.array([1.0, np.nan, 3.0])
    thin_xs, thin_ys = thinned(xs, ys, most=4)
    assert thin_xs.tolist() == [0, 5, 7]
    np.testing.assert_array_equal(thin_ys, ys)


def test_every_stretch_keeps_its_least_and_greatest_value():
    ys = np.array([5, 1, 9, 5, 5, 5, 7, 2, 5, 5])
    xs, kept = thinned(np.arange(10), ys, most=6)
    assert xs.tolist() == [0, 1, 2, 6, 7, 9]
    assert kept.tolist() == [5, 1, 9, 7, 2, 5]


def test_a_gap_of_a_whole_stretch_stays_and_a_smaller_one_hides_nothing():
    ys = np.array([1.0, np.nan, 4.0, 2.0, np.nan, np.nan, np.nan, np.nan, 3.0, 8.0, 0.0, 3.0])
    xs, kept = thinned(np.arange(12), ys, most=8)
    assert xs.tolist() == [0, 2, 4, 9, 10, 11]
    np.testing.assert_array_equal(kept, [1.0, 4.0, np.nan, 8.0, 0.0, 3.0])


def test_layers_are_thinned_at_the_same_x():
    ys = np.zeros((2, 100))
    ys[0, 30], ys[1, 71] = 1.0, 2.0
    xs, kept = thinned(np.arange(100), ys, most=20)
    assert len(xs) <= 20
    assert kept[:, xs == 30].tolist() == [[1.0], [0.0]]
    assert kept[:, xs == 71].tolist() == [[0.0], [2.0]]


def test_ten_million_points_keep_one_spike():
    ys = np.zeros(10_000_000, dtype=np.float32)
    ys[7_654_321] = -1.0
    xs, kept = thinned(np.arange(len(ys)), ys)
    assert len(xs) <= MOST_POINTS
    assert kept[xs == 7_654_321].tolist() == [-1.0]


@given(
    ys=arrays.arrays(np.float64, st.integers(1, 300), elements=st.floats(-9, 9) | st.just(float("nan"))),
    most=st.integers(4, 40),
)
def test_bounds_first_and_last_are_kept(ys: np.ndarray, most: int):
    xs, kept = thinned(np.arange(len(ys)), ys, most=most)
    assert len(xs) <= most
    assert (xs[0], xs[-1]) == (0, len(ys) - 1)
    assert (np.diff(xs) > 0).all()
    np.testing.assert_array_equal(kept, ys[xs])
    if not np.isnan(ys).all():
        assert (np.nanmin(kept), np.nanmax(kept)) == (np.nanmin(ys), np.nanmax(ys))


@pytest.mark.parametrize(("num_points", "kept"), [(3, [0, 1, 2]), (10, [0, 3, 6, 9])])
def test_clouds_are_thinned_evenly(num_points: int, kept: list[int]):
    assert spread_points(num_points, most=4).tolist() == kept
