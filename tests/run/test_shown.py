"""What a notebook and pictures show of runs and plans."""

from __future__ import annotations

import numpy as np
import pytest
from tests.rendering.cards import tables_of, tags_of, text_of
from tests.rendering.figure_parts import legend_of, rows_of, words_of
from tests.run.folders import make_run
from tests.run.small_runs import lock, segment, source

from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom.run.plan import plan_of
from tokenloom.run.run import Run

WEB, CODE = source("web", 8), source("$x$ <b>", 2)
STAGES = [segment(0, 600, [1, 0]), segment(600, 400, [1, 1], stage="decay $\\frac$"), segment(1000, 600, [3, 1])]


def heights(axes) -> list[list[float]]:
    """Returns where each area ends, from left to right."""
    return [patch.get_data().values.tolist() for patch in axes.patches]


def test_a_run_and_its_dataset_show_stages_and_sources_without_data(tmp_path):
    run = make_run(tmp_path)
    for path in tmp_path.glob("*.bin"):
        path.unlink()
    facts, stages, sources = tables_of(run._repr_html_())
    assert facts == [
        ["identity", run.identity[:16]],
        ["samples", "600"],
        ["order", "1"],
        ["seed", "1234"],
        ["dataset", "gpt"],
    ]
    assert stages == [
        ["stage", "from position", "samples", "sequence length", "sources"],
        ["stage 1", "0", "600", "16", "2"],
    ]
    assert [row[:3] for row in sources] == [["source", "pairs", "documents"], ["web", "2", "250"], ["code", "1", "140"]]
    assert tables_of(run.dataset()._repr_html_())[0][-1] == ["open pairs", "0"]


def test_a_run_without_end_and_with_many_stages_is_shown():
    stages = [*(segment(10 * number, 10, [1]) for number in range(20)), segment(200, None, [1])]
    facts, shown, _ = tables_of(Run("run.toml", lock([source("web", 8)], stages))._repr_html_())
    assert ["samples", "without end"] in facts
    assert len(shown) == 14
    assert shown[-1][0] == "9 others"


def test_a_plan_shows_what_becomes_of_each_source():
    capped = source("code", 2, max_passes=2)
    plan = plan_of(lock([source("web", 8), capped], [segment(0, 12, [1, 1])]))
    facts, sources = tables_of(plan._repr_html_())
    assert facts == [["samples", "12"], ["tokens", "120"], ["sources", "2"], ["segments", "1"]]
    assert [row[:4] for row in sources] == [
        ["what becomes of", "passes", "offered", "seen"],
        ["web", "1", "81", "60"],
        ["code", "3", "63", "60"],
    ]
    assert "code has had its 2 passes at position" in text_of(plan._repr_html_())


def test_markup_in_names_is_text():
    name = '<script>alert("x")</script>&amp;'
    found = lock([source(name, 8)], [segment(0, 12, [1], stage=name)])
    plain = lock([source("a", 8)], [segment(0, 12, [1], stage="b")])
    assert tags_of(Run(name, found)._repr_html_()) == tags_of(Run("a", plain)._repr_html_())
    assert tags_of(plan_of(found)._repr_html_()) == tags_of(plan_of(plain)._repr_html_())


def test_shares_and_passes_are_drawn_with_stages(tmp_path):
    run = Run("run.toml", lock([WEB, CODE], STAGES))
    shares, passes = run.plot_mixture(path=tmp_path / "a.png").axes
    assert legend_of(shares) == ["web", r"\$x\$ <b>"]
    web, both = (np.array(each) for each in heights(shares))
    edges = shares.patches[0].get_data().edges
    starts = [0, *np.searchsorted(edges, [600, 1000]).tolist()]
    assert np.add.reduceat(web * np.diff(edges), starts) == pytest.approx([600, 200, 450])
    assert both == pytest.approx(np.ones(len(both)))
    assert words_of(shares) == ["main", r"decay \$\frac\$", "main"]
    last = [line.get_ydata()[-1] for line in passes.lines[:2]]
    assert last == pytest.approx([(600 + 200 + 450) / 8, (200 + 150) / 2])
    picture = (tmp_path / "a.png").read_bytes()
    with pytest.raises(OutputExistsError):
        run.plot_mixture(until=8, path=tmp_path / "a.png")
    run.plot_mixture(path=tmp_path / "a.png", overwrite=True)
    assert (tmp_path / "a.png").read_bytes() == picture


def test_a_plan_draws_segments_and_passes():
    shares, passes = plan_of(lock([WEB, CODE], STAGES)).plot().axes
    assert heights(shares)[0] == pytest.approx([1, 0.5, 0.75])
    assert rows_of(passes) == ["web", r"\$x\$ <b>"]
    assert words_of(passes) == ["156.25 (12,500 tokens)", "175.00 (3,500 tokens)"]


@pytest.mark.slow
def test_many_sources_and_stages_are_drawn():
    sources = [source(f"s{number}", 50) for number in range(201)]
    run = Run("run.toml", lock(sources, [segment(0, 20100, list(range(201)))]))
    shares, passes = run.plot_mixture().axes
    assert legend_of(shares) == [*(f"s{number}" for number in range(200, 188, -1)), "188 others"]
    assert heights(shares)[-1] == pytest.approx([1.0] * len(heights(shares)[-1]))
    assert len(passes.lines) == 12
    stages = [segment(10 * number, 10, [1], stage=f"stage {number}") for number in range(100)]
    shares, _ = Run("run.toml", lock([WEB], stages)).plot_mixture().axes
    assert (words_of(shares), len(shares.lines)) == ([], 99)


@pytest.mark.parametrize(
    ("size", "until", "message"),
    [
        (1600, 1601, "the run ends at position 1600, before 1601"),
        (1600, 0, "expected until .*, found 0"),
        (None, None, "expected a position up to which the history goes, of a run without an end"),
    ],
)
def test_positions_that_cannot_be_drawn_are_refused(size, until, message):
    with pytest.raises(ConfigError, match=message):
        Run("run.toml", lock([WEB], [segment(0, size, [1])])).plot_mixture(until=until)
