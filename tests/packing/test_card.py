"""What a notebook shows of packing."""

from __future__ import annotations

import dataclasses

import pytest
from tests.rendering.cards import tables_of

from tokenloom import pack_report
from tokenloom.packing.report import PackingQuality


@pytest.fixture
def report():
    return pack_report([3, 8, 3, 2, 8, 1, 4, 3], max_seqlen_per_dp_cp_rank=8, dp_size=2)


def test_a_report_shows_every_way_to_plan(report):
    facts, ways = tables_of(report._repr_html_())
    assert facts == [
        ["sub-samples", "8"],
        ["tokens", "32"],
        ["longest", "8"],
        ["tokens of a pack, at most", "8"],
        ["ranks", "2"],
        ["microbatches, at least", "2"],
    ]
    assert [row[:4] for row in ways] == [
        ["scheduler", "microbatches", "fill", "padding tokens"],
        ["padded", "4", "50.0%", "32"],
        ["dp_balanced", "3", "66.7%", "0"],
        ["cost_balanced", "2", "100.0%", "0"],
    ]


def test_a_way_that_gives_no_plan_says_why(report):
    refused = PackingQuality(scheduler="<mine>", refused="too & long")
    shown = dataclasses.replace(report, rows=(*report.rows, refused))._repr_html_()
    assert '<p class="alarm" role="alert">&lt;mine&gt;: too &amp; long</p>' in shown
    assert len(tables_of(shown)[1]) == 4
