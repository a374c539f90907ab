"""Cards that notebooks show: what objects say of themselves."""

import dataclasses
import re

from hypothesis import given
from hypothesis import strategies as st
from tests.rendering.cards import tables_of, text_of

from tokenloom.rendering.card import HasFacts, card
from tokenloom_check import PackingQuality, pack_report


def test_facts_become_problems_rows_and_tables():
    rows = [{"source": f"s{number}", "tokens": 1000, "share": 0.5} for number in range(14)]
    drawn = card("Pair", {"problems": ["x<y"], "tokens": 1024, "size": None, "ok": True, "sources": rows})
    facts, sources = tables_of(drawn)
    assert facts == [["tokens", "1,024"], ["ok", "True"]]
    assert sources[:2] == [["source", "tokens", "share"], ["s0", "1,000", "0.5"]]
    assert sources[-1] == ["3 others", "3,000", ""]
    assert len(sources) == 13
    assert "<p><strong>x&lt;y</strong></p>" in drawn


@given(st.text(min_size=1, max_size=300))
def test_no_name_is_more_than_a_text(text: str):
    named = card(text, {"problems": [text], text + "2": text, "rows": [{text: text}]})
    plain = card("x", {"problems": ["x"], "x2": "x", "rows": [{"x": "x"}]})
    assert re.findall(r"<[^>]*>", named) == re.findall(r"<[^>]*>", plain)
    assert not set(named) & {"\x1b", "\u202e"}


def test_a_class_that_fails_has_no_card():
    class Mine(HasFacts):
        def facts(self):
            raise RuntimeError("a user's class")

    assert Mine()._repr_html_() is None


def test_a_report_on_packing_shows_every_way_to_plan():
    report = pack_report([3, 8, 3, 2, 8, 1, 4, 3], max_seqlen_per_dp_cp_rank=8, dp_size=2)
    refused = PackingQuality(scheduler="<mine>", refused="too & long")
    shown = dataclasses.replace(report, rows=(*report.rows, refused))._repr_html_()
    facts, ways = tables_of(shown)
    assert facts[:2] == [["sub-samples", "8"], ["tokens", "32"]]
    assert [row[:4] for row in ways] == [
        ["scheduler", "microbatches", "fill", "padding tokens"],
        ["padded", "4", "50.00%", "32"],
        ["dp_balanced", "3", "66.67%", "0"],
        ["cost_balanced", "2", "100.00%", "0"],
        ["lower bound", "2", "", ""],
    ]
    assert "<mine>: too & long" in text_of(shown)
