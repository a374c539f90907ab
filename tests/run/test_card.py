"""What a notebook shows of runs, their datasets and plans: what the lock says, without opening data."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rendering.cards import tables_of, tags_of, text_of
from tests.run.folders import make_run
from tests.run.small_runs import lock, segment, source

from tokenloom.run.plan import plan_of
from tokenloom.run.run import Run


def test_a_run_shows_its_stages_and_sources(tmp_path):
    run = make_run(tmp_path)
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


def test_a_dataset_is_shown_with_its_data_gone(tmp_path):
    dataset = make_run(tmp_path).dataset()
    for path in tmp_path.glob("*.bin"):
        path.unlink()
    facts, stages, sources = tables_of(dataset._repr_html_())
    assert facts[-1] == ["open pairs", "0"]
    assert (len(stages), len(sources)) == (2, 3)


def test_a_run_in_the_order_of_the_reference_is_shown():
    facts = tables_of(Run("run.toml", lock([source("web", 8)], [segment(0, 12, [1])], order=0))._repr_html_())[0]
    assert ["order", "megatron"] in facts


def test_a_run_without_end_and_with_many_stages_is_shown():
    stages = [segment(10 * number, 10, [1]) for number in range(20)]
    facts, shown, _ = tables_of(
        Run("run.toml", lock([source("web", 8)], [*stages, segment(200, None, [1])]))._repr_html_()
    )
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


@settings(max_examples=25)
@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_hostile_names_are_texts(name: str, stage: str):
    found = lock([source(name, 8)], [segment(0, 12, [1], stage=stage)])
    plain = lock([source("a", 8)], [segment(0, 12, [1], stage="b")])
    for shown, expected in (
        (Run(name, found)._repr_html_(), Run("a", plain)._repr_html_()),
        (plan_of(found)._repr_html_(), plan_of(plain)._repr_html_()),
    ):
        assert tags_of(shown) == tags_of(expected)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", shown)
