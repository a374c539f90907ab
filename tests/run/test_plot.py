"""Pictures of what runs read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from tests.rendering.figure_parts import legend_of, rows_of, title_of, words_of
from tests.run.small_runs import lock, random_locks, segment, source

from tokenloom.errors import ConfigError
from tokenloom.run.plan import plan_of
from tokenloom.run.plot import plot_history
from tokenloom.run.run import Run

WEB, CODE = source("web", 8), source("$x$ <b>", 2)
STAGES = [segment(0, 600, [1, 0]), segment(600, 400, [1, 1], stage="decay $\\frac$"), segment(1000, 600, [3, 1])]


def run_of(sources, segments, **other) -> Run:
    return Run("run.toml", lock(sources, segments, **other))


def heights(axes) -> list[list[float]]:
    """Returns where each area ends, from left to right."""
    return [patch.get_data().values.tolist() for patch in axes.patches]


def test_shares_and_passes_are_drawn_with_stages(tmp_path):
    figure = run_of([WEB, CODE], STAGES).plot_mixture(path=tmp_path / "a.png")
    shares, passes = figure.axes
    assert legend_of(shares) == ["web", r"\$x\$ <b>"]
    web, both = (np.array(each) for each in heights(shares))
    edges = shares.patches[0].get_data().edges
    starts = [0, *np.searchsorted(edges, [600, 1000]).tolist()]
    assert np.add.reduceat(web * np.diff(edges), starts) == pytest.approx([600, 200, 450])
    assert both == pytest.approx(np.ones(len(both)))
    assert words_of(shares) == ["main", r"decay \$\frac\$", "main"]
    last = [line.get_ydata()[-1] for line in passes.lines[:2]]
    assert last == pytest.approx([(600 + 200 + 450) / 8, (200 + 150) / 2])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_one_source_is_drawn():
    figure = run_of([WEB], [segment(0, 1, [1])]).plot_mixture()
    assert heights(figure.axes[0]) == [[1.0]]


def test_of_200_sources_the_most_read_have_a_colour_of_their_own():
    sources = [source(f"s{number}", 50) for number in range(201)]
    run = run_of(sources, [segment(0, 20100, list(range(201)))])
    shares, passes = run.plot_mixture().axes
    assert legend_of(shares) == [*(f"s{number}" for number in range(200, 188, -1)), "188 others"]
    assert heights(shares)[-1] == pytest.approx([1.0] * len(heights(shares)[-1]))
    assert len(passes.lines) == 12
    drawn, _ = run.plan().plot().axes
    assert heights(drawn)[-1] == pytest.approx([1.0])


def test_many_stages_are_marked_and_not_named():
    stages = [segment(10 * number, 10, [1], stage=f"stage {number}") for number in range(100)]
    shares, _ = run_of([WEB], stages).plot_mixture().axes
    assert words_of(shares) == []
    assert len(shares.lines) == 99


def test_a_history_of_a_point_has_no_picture():
    with pytest.raises(ConfigError, match="expected a history of two points at least to draw, found 1"):
        plot_history(run_of([WEB], [segment(0, 8, [1])]).history([8]))


def test_a_plan_draws_segments_and_passes(tmp_path):
    figure = plan_of(lock([WEB, CODE], STAGES)).plot(path=tmp_path / "a.svg")
    shares, passes = figure.axes
    assert [title_of(axes) for axes in figure.axes] == ["shares, 1,600 samples", "passes"]
    assert heights(shares)[0] == pytest.approx([1, 0.5, 0.75])
    assert rows_of(passes) == ["web", r"\$x\$ <b>"]
    assert words_of(passes) == ["156.25 (12,500 tokens)", "175.00 (3,500 tokens)"]
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")


def test_a_plan_without_end_shows_the_shares_that_are_wanted():
    for stages in ([segment(0, None, [3, 1])], [segment(0, 8, [1, 1]), segment(8, None, [3, 1])]):
        shares, _ = plan_of(lock([WEB, CODE], stages)).plot().axes
        assert heights(shares)[0][-1] == pytest.approx(0.75)
        assert shares.get_xlabel() == "position (the last stage has no end)"


@settings(max_examples=5)
@given(random_locks())
def test_any_plan_is_drawn(lock):
    assert len(plan_of(lock).plot().axes) == 2
