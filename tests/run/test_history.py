"""Samples and passes before positions: what a walk through the run comes to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.folders import make_run
from tests.run.small_runs import lock, random_locks, segment, source

from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizeSchedule
from tokenloom.loading.topology import Topology
from tokenloom.run.history import NUM_POINTS, StageStart
from tokenloom.run.passes import passes_before
from tokenloom.run.run import Run
from tokenloom.run.timeline import Timeline

WEB, CODE = source("web", 8), source("code", 2)


def run_of(sources, segments, **settings) -> Run:
    return Run("run.toml", lock(sources, segments, **settings))


def test_samples_shares_and_passes_of_two_sources():
    history = run_of([WEB, CODE], [segment(0, 12, [2, 1])]).history([0, 3, 6, 12])
    assert history.sources == ("web", "code")
    assert history.samples.tolist() == [[0, 0], [2, 1], [4, 2], [8, 4]]
    assert history.passes.tolist() == [[0, 0], [0.25, 0.5], [0.5, 1], [1, 2]]
    np.testing.assert_allclose(history.shares, [[2 / 3, 1 / 3]] * 3)
    np.testing.assert_allclose(history.shares_so_far, [[0, 0], *[[2 / 3, 1 / 3]] * 3])


def test_stages_are_points_and_have_names():
    stages = [segment(0, 6, [1, 0]), segment(6, 4, [0, 1], stage="decay"), segment(10, 50, [1, 1], stage="decay")]
    history = run_of([WEB, CODE], stages).history()
    assert history.stages == (StageStart(stage="main", position=0), StageStart(stage="decay", position=6))
    assert {0, 6, 10, 60} <= set(history.positions.tolist())
    assert history.samples[history.positions == 10].tolist() == [[6, 4]]
    assert history.shares[history.positions[:-1] < 6].tolist() == [[1, 0]] * 6


def test_points_are_few_and_even_however_long_the_run_is():
    history = run_of([WEB, CODE], [segment(0, None, [3, 1])]).history(until=10**15)
    assert len(history.positions) == NUM_POINTS + 1
    assert (history.positions[0], history.positions[-1]) == (0, 10**15)
    assert history.samples[-1].tolist() == [750 * 10**12, 250 * 10**12]
    assert history.samples.sum(axis=1).tolist() == history.positions.tolist()


def test_points_lie_between_mixing_blocks():
    stages = [segment(0, 1000, [1, 0]), segment(1000, 99_000, [3, 1])]
    history = run_of([WEB, CODE], stages, block=64).history()
    positions = history.positions[1:-1]
    assert (np.where(positions < 1000, positions, positions - 1000) % 64 == 0).all()
    np.testing.assert_allclose(history.shares[positions.searchsorted(1000) + 1 : -1, 1], 0.25, atol=0.01)


def test_ten_thousand_sources():
    sources = [source(f"source {number}", 1000) for number in range(10_000)]
    history = run_of(sources, [segment(0, 10**9, [1 + number for number in range(10_000)])], block=1024).history()
    assert history.samples.sum(axis=1).tolist() == history.positions.tolist()
    assert history.largest(3).tolist() == [9999, 9998, 9997]


def test_the_largest_are_those_that_were_read():
    history = run_of([WEB, CODE], [segment(0, 6, [0, 1]), segment(6, 9, [1, 0])]).history([0, 6])
    assert history.largest(2).tolist() == [1]


def test_steps_follow_from_batch_sizes():
    history = run_of([WEB], [segment(0, 12, [1])]).history([0, 4, 12])
    assert history.steps is None
    topology = Topology(batch_sizes=BatchSizeSchedule.constant(4))
    assert history.with_steps(topology).steps.tolist() == [0, 1, 3]


def test_what_is_no_point_of_the_run_is_refused():
    run = run_of([WEB], [segment(0, 12, [1])])
    with pytest.raises(ConfigError, match="the run ends at position 12, before 13"):
        run.history([0, 13])
    with pytest.raises(ConfigError, match="the run ends at position 12, before 13"):
        run.history(until=13)
    with pytest.raises(ConfigError, match=r"expected positions that rise from 0 on, found \[3, 3\]"):
        run.history([3, 3])
    with pytest.raises(ConfigError, match="expected whole numbers as the positions of a history, found"):
        run.history([0.5])
    with pytest.raises(ConfigError, match="expected a position up to which the history goes"):
        run_of([WEB], [segment(0, None, [1])]).history()


@given(random_locks(), st.data())
def test_history_is_what_a_walk_through_the_run_comes_to(made, data):
    stop = made.segments[-1].start + (made.segments[-1].num_samples or 50)
    points = sorted(data.draw(st.sets(st.integers(0, stop), min_size=1, max_size=12)))
    history = Run("run.toml", made).history(points)
    read = Timeline(made).locate(np.arange(points[-1])).sources
    for row, point in enumerate(points):
        assert history.samples[row].tolist() == np.bincount(read[:point], minlength=len(made.sources)).tolist()
        assert history.passes[row].tolist() == pytest.approx([float(each) for each in passes_before(made, point)])


def test_of_a_run_in_a_folder(tmp_path):
    run = make_run(tmp_path)
    history = run.history()
    assert history.positions[-1] == 600
    assert dict(zip(history.sources, history.passes[-1].tolist(), strict=True)) == pytest.approx(run.passes(600))
    assert (
        repr(history)
        == f"RunHistory({len(history.positions)} points, positions 0 to 600, {len(history.sources)} sources)"
    )
