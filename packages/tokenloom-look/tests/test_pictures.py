"""Charts as pictures: files and notebooks."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from tests.support import write_corpus

import tokenloom_look
from tokenloom import ConfigError, OutputExistsError
from tokenloom.cli import main
from tokenloom_look.report.section import KINDS, Chart, Mark, Series

HOSTILE = r"$\frac{1}{0}$ \x"


def chart(kind="lines", **others) -> Chart:
    size = 3 if kind == "bars" else 4
    texts = {
        "id": "a",
        "title": "shares",
        "summary": "",
        "x_label": "position",
        "y_label": "share",
        "y_format": "share",
    }
    series = [Series(HOSTILE, [0.1, 0.25, 0.5, np.nan][:size]), Series("web", [0.9, 0.7, 0.1, 0.2][:size], colour=99)]
    xs = np.array([1, 10**6, 2 * 10**6, 3 * 10**9])
    return Chart(kind=kind, x=xs, series=series, marks=[Mark(10**6, HOSTILE)], **texts, **others)


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_deterministic(kind, tmp_path):
    chart(kind).save(tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    for words in (HOSTILE, "web", "shares", "position", "20%"):
        assert f"<!-- {words} -->" in drawn
    with matplotlib.rc_context({"figure.facecolor": "black", "font.size": 30}):
        chart(kind).save(tmp_path / "a.svg")  # it shows the same
    with pytest.raises(OutputExistsError):
        chart(kind, x_scale="log").save(tmp_path / "a.svg")
    with pytest.raises(ConfigError, match=r"the picture path must end in \.png, \.svg, \.pdf, got `.*a\.gif`"):
        chart(kind).save(tmp_path / "a.gif")


def test_charts_of_a_report_as_files_and_in_notebooks(tmp_path, capsys):
    prefix = write_corpus(tmp_path / "web", [[1, 2, 3], [4] * 40])
    found = tokenloom_look.charts(prefix)
    assert "Lengths of documents" in [each.title for each in found]
    assert found[0]._repr_png_().startswith(b"\x89PNG")
    assert main(["report", prefix, "-o", str(tmp_path / "page.html"), "--pictures", str(tmp_path / "pictures")]) == 0
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == sorted(f"{each.id}.png" for each in found)
