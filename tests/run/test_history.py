"""Samples and passes before positions: what a walk through the run comes to."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.megatrons import LENGTHS, make, opened
from tests.run.small_runs import lock, random_locks, segment, source

from tokenloom.errors import ChangedFileError, ConfigError
from tokenloom.run.plan import closed_at, plan_of
from tokenloom.run.run import Run
from tokenloom.run.timeline import Timeline

WEB, CODE = source("web", 8), source("code", 2)


def run_of(sources, segments, **settings) -> Run:
    return Run("run.toml", lock(sources, segments, **settings))


def planned_passes(made, position: int) -> list[Fraction]:
    passes = {each.name: Fraction(0) for each in made.sources}
    for planned in plan_of(closed_at(made, position)).segments if position else ():
        for reading in planned.readings:
            passes[reading.source] = reading.begun_after - Fraction(reading.left_after, reading.num_windows)
    return list(passes.values())


def test_samples_shares_and_passes_of_two_sources():
    history = run_of([WEB, CODE], [segment(0, 12, [2, 1])]).history([0, 3, 6, 12])
    assert history.sources == ("web", "code")
    assert history.samples.tolist() == [[0, 0], [2, 1], [4, 2], [8, 4]]
    assert history.passes.tolist() == [[0, 0], [0.25, 0.5], [0.5, 1], [1, 2]]
    np.testing.assert_allclose(history.shares, [[2 / 3, 1 / 3]] * 3)


def test_what_is_no_point_of_the_run_is_refused():
    run = run_of([WEB], [segment(0, 12, [1])])
    for positions, until in (([0, 13], None), (None, 13)):
        with pytest.raises(ConfigError, match="position 13 out of range: the run has 12 samples"):
            run.history(positions, until=until)
    for positions in ([3, 3], [0.5]):
        with pytest.raises(ConfigError, match="must be integers of at least 0 in ascending order"):
            run.history(positions)
    with pytest.raises(ConfigError, match="the run is endless, so its history needs an end"):
        run_of([WEB], [segment(0, None, [1])]).history()


@given(random_locks(), st.data())
def test_history_is_what_a_walk_through_the_run_comes_to(made, data):
    stop = made.segments[-1].start + (made.segments[-1].num_samples or 50)
    points = sorted(data.draw(st.sets(st.integers(0, stop), min_size=1, max_size=12)))
    history = Run("run.toml", made).history(points)
    read = Timeline(made).locate(np.arange(points[-1])).sources
    for row, point in enumerate(points):
        assert history.samples[row].tolist() == np.bincount(read[:point], minlength=len(made.sources)).tolist()
        assert history.passes[row].tolist() == pytest.approx([float(each) for each in planned_passes(made, point)])


def test_samples_are_those_of_the_stored_order(tmp_path):
    run = opened(make(tmp_path))
    dataset = run.dataset()
    read = np.array([int(dataset.sample(position)["dataset_id"]) for position in range(300)])
    history = run.history([0, 1, 50, 300])
    for row, point in enumerate(history.positions.tolist()):
        assert history.samples[row].tolist() == np.bincount(read[:point], minlength=2).tolist()
    assert history.passes[-1, 0] == pytest.approx(history.samples[-1, 0] * 16 / sum(LENGTHS["web"]))


def test_an_order_that_is_lost_meanwhile_is_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("tokenloom.order.cache._SMALL_BYTES", 0)  # arrays are mapped
    path = make(tmp_path)
    opened(path, path_to_cache=tmp_path / "cache").dataset()
    run = opened(path, path_to_cache=tmp_path / "cache")
    assert run.history([300]).samples.sum() == 300
    [array] = tmp_path.rglob("*-dataset_index.npy")
    os.truncate(array, 200)
    with pytest.raises(ChangedFileError, match="was truncated while it was mapped"):
        run.history([300])


@given(random_locks(), st.data())
def test_a_closed_run_reads_the_same_before_its_end(made, data):
    stop = made.segments[-1].start + (made.segments[-1].num_samples or 50)
    position = data.draw(st.integers(1, stop))
    positions = np.arange(position)
    whole, closed = (Timeline(one).locate(positions) for one in (made, closed_at(made, position)))
    assert np.array_equal(whole, closed)
    lengths = {one.sequence_length for one in made.segments}
    if len(lengths) == 1 and all(pair.since == 0 for one in made.sources for pair in one.pairs):
        counts = np.bincount(whole.sources, minlength=len(made.sources))
        for number, passes in enumerate(planned_passes(made, position)):
            windows = sum(pair.num_tokens - pair.held_tokens for pair in made.sources[number].pairs) - 1
            assert passes == Fraction(int(counts[number]), windows // max(lengths))
