"""What a run shows of itself."""

from __future__ import annotations

import pytest
from tests.rendering.cards import text_of
from tests.run.folders import make_run
from tests.run.small_runs import lock, segment, source

from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom.run.run import Run

WEB, CODE = source("web", 8), source("code", 2)


@pytest.mark.parametrize(
    ("until", "message"),
    [
        (1601, "the run ends at position 1600, before 1601"),
        (0, "expected until .*, found 0"),
    ],
)
def test_a_run_has_no_other_positions(until, message):
    with pytest.raises(ConfigError, match=message):
        Run("run.toml", lock([WEB, CODE], [segment(0, 1600, [1, 1])])).plot_mixture(until=until)


def test_a_run_without_end_needs_one_to_be_drawn():
    with pytest.raises(
        ConfigError, match="expected a position up to which the history goes, of a run without an end"
    ) as caught:
        Run("run.toml", lock([WEB], [segment(0, None, [1])])).plot_mixture()
    assert caught.value.hint == "name one with `until`"


def test_a_run_on_disk_is_drawn_and_shown(tmp_path):
    run = make_run(tmp_path)
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    run.plot_mixture(path=first)
    run.plot_mixture(path=second)
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(OutputExistsError):
        run.plot_mixture(until=8, path=first)
    run.plot_mixture(until=8, path=first, overwrite=True)
    assert first.read_bytes() != second.read_bytes()
    assert text_of(run._repr_html_()).startswith("Run ")
