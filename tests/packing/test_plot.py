"""Pictures of packing reports."""

from __future__ import annotations

import dataclasses
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from tokenloom import ConfigError, MissingExtraError, pack_report, plot_pack_report, scheduler_map


@pytest.fixture
def report(rng):
    lengths = np.clip(rng.lognormal(6, 1, size=300).astype(np.int64), 1, 4096)
    return pack_report(lengths, max_seqlen_per_dp_cp_rank=4096, dp_size=4, schedulers=sorted(scheduler_map))


def test_pictures_show_every_scheduler(tmp_path, report):
    pytest.importorskip("matplotlib")
    plot_pack_report(report, tmp_path / "report.svg")
    picture = (tmp_path / "report.svg").read_text()
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    for row in report.rows:
        assert f"<!-- {row.scheduler}" in picture
    plot_pack_report(report, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_needs_a_known_format(tmp_path, report):
    with pytest.raises(ConfigError, match=r"expected a plot whose name ends in \.png, \.svg, \.pdf, found '.*\.doc'"):
        plot_pack_report(report, tmp_path / "report.doc")


def test_a_picture_needs_matplotlib(tmp_path, report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    with pytest.raises(MissingExtraError) as caught:
        plot_pack_report(report, tmp_path / "report.png")
    assert caught.value.hint == "run `pip install 'tokenloom[plot]'`"


@pytest.mark.slow
def test_a_report_gives_its_figure(tmp_path, report):
    figure = report.plot(path=tmp_path / "a.png")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"300 sub-samples, {report.num_tokens:,} tokens",
        "imbalance on 4 ranks",
        "ranks busy (dotted: at most), and fill",
    ]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_scheduler_of_a_users_own_has_a_colour_and_its_own_name(report):
    mine = dataclasses.replace(report.rows[1], scheduler=r"$my^{way}$")
    figure = dataclasses.replace(report, rows=(*report.rows[:2], mine)).plot()
    names = [text.get_text() for text in figure.axes[2].get_yticklabels()]
    assert names == [r"\$my^{way}\$", report.rows[1].scheduler, "padded"]
    assert len({line.get_color() for line in figure.axes[1].lines[:2]}) == 2
