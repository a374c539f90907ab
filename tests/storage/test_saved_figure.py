"""Pictures as files."""

from __future__ import annotations

import pytest

from tokenloom import ConfigError, OutputExistsError
from tokenloom.rendering.figures import new_figure
from tokenloom.storage.saved_figure import saved


def drawn(height: float):
    with new_figure(2, 2) as figure:
        figure.subplots().plot([1, height])
    return figure


def test_a_picture_is_written_once_and_replaced_only_on_request(tmp_path):
    path = tmp_path / "a.png"
    figure = drawn(2)
    assert saved(figure, None, overwrite=False) is figure
    assert saved(figure, path, overwrite=False) is figure
    first = path.read_bytes()
    saved(drawn(2), path, overwrite=False)  # it shows the same
    with pytest.raises(OutputExistsError, match=r"a\.png` exists"):
        saved(drawn(3), path, overwrite=False)
    assert path.read_bytes() == first
    saved(drawn(3), path, overwrite=True)
    assert path.read_bytes() != first
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_nothing_is_written_under_another_suffix(tmp_path):
    with pytest.raises(ConfigError, match=r"found '.*a\.gif'"):
        saved(drawn(2), tmp_path / "a.gif", overwrite=True)
    assert list(tmp_path.iterdir()) == []
