"""What a report says of the order of samples."""

from __future__ import annotations

import numpy as np
from tests.report.pages import made, target_of, words_of
from tests.run.data import write_source
from tests.run.folders import make_run, write_toml
from tests.run.megatrons import make, opened
from tests.support import StandInTokenizer

from tokenloom.report.shuffle_section import shuffle_section
from tokenloom.run.audit.sampled_order import SampledOrder
from tokenloom.run.run import Run


def test_sources_of_a_run_are_as_good_as_uniform(tmp_path):
    found = made(shuffle_section, target_of(make_run(tmp_path)))
    words = words_of(found.html)
    assert words.count("as good as uniform") == 2
    assert ", uniform 0.335 ± 0.018 " in words
    assert found.findings == []
    web, code = found.charts
    assert (web.kind, web.title, code.title) == ("points", "Order of web", "Order of code")
    assert 0 <= min(web.series[0].values) <= max(web.series[0].values) < 1


def test_what_is_not_shuffled_is_a_finding(tmp_path, monkeypatch):
    items = np.arange(1000)
    order = SampledOrder(source="web", positions=items, items=items, num_positions=1000, num_items=1000)
    monkeypatch.setattr("tokenloom.report.shuffle_section.sampled_source", lambda *_, **__: order)
    found = made(shuffle_section, target_of(make_run(tmp_path)))
    assert found.findings[0] == "The order of web: not shuffled."
    assert len(found.charts[0].x) == 800


def test_many_sources_are_looked_at_in_part(tmp_path):
    names = [f"s{number}" for number in range(10)]
    for name in names:
        write_source(tmp_path / name, *[9] * 60)
    sources = "[sources]\n" + "".join(f'{name} = "{name}"\n' for name in names)
    weights = ", ".join(f"{name} = {number + 1}" for number, name in enumerate(names))
    stage = f"[[stages]]\nsequence_length = 8\nsamples = 900\nweights = {{ {weights} }}\n"
    run = Run.open(write_toml(tmp_path, stage, sources=sources), tokenizer=StandInTokenizer())
    found = made(shuffle_section, target_of(run))
    assert "The 8 sources with the most samples; 2 are left out." in words_of(found.html)
    assert [chart.title for chart in found.charts] == [f"Order of s{number}" for number in (9, 8, 7)]


def test_a_stored_order_is_not_looked_at(tmp_path):
    assert made(shuffle_section, target_of(opened(make(tmp_path)))) is None
