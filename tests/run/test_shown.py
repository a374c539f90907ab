"""What a notebook shows of runs and plans."""

from __future__ import annotations

from tests.rendering.cards import tables_of, tags_of
from tests.run.folders import make_run
from tests.run.small_runs import lock, segment, source

from tokenloom.run.plan import plan_of
from tokenloom.run.run import Run


def test_a_run_and_its_dataset_show_stages_and_sources_without_data(tmp_path):
    run = make_run(tmp_path)
    for path in tmp_path.glob("*.bin"):
        path.unlink()
    facts, stages, sources = tables_of(run._repr_html_())
    expected = {"identity": run.identity[:16], "samples": "600", "order": "1", "seed": "1234", "dataset": "gpt"}
    assert facts[1:] == list(map(list, expected.items()))
    assert stages == [["stage", "from position", "samples", "tokens"], ["stage 1", "0", "600", "16"]]
    assert [row[:3] for row in sources] == [["source", "pairs", "documents"], ["web", "2", "250"], ["code", "1", "140"]]
    assert tables_of(run.dataset()._repr_html_())[0][-1] == ["open pairs", "0"]
    endless = Run("run.toml", lock([source("web", 8)], [segment(0, None, [1])]))
    assert ["samples", "without end"] in tables_of(endless._repr_html_())[0]


def test_a_plan_shows_what_becomes_of_each_source():
    capped = source("code", 2, max_passes=2)
    plan = plan_of(lock([source("web", 8), capped], [segment(0, 12, [1, 1])]))
    facts, sources, caps = tables_of(plan._repr_html_())
    assert facts == [["samples", "12"], ["tokens", "120"]]
    assert [row[:4] for row in sources[1:]] == [["web", "1", "81", "60"], ["code", "3", "63", "60"]]
    assert caps[1][:2] == ["code", "2"]


def test_markup_in_names_is_text():
    name = '<script>alert("x")</script>&amp;'
    found = lock([source(name, 8)], [segment(0, 12, [1], stage=name)])
    plain = lock([source("a", 8)], [segment(0, 12, [1], stage="b")])
    assert tags_of(Run(name, found)._repr_html_()) == tags_of(Run("a", plain)._repr_html_())
    assert tags_of(plan_of(found)._repr_html_()) == tags_of(plan_of(plain)._repr_html_())
