"""Cards that notebooks show: what objects say of themselves."""

from __future__ import annotations

import dataclasses
import re

from hypothesis import given
from hypothesis import strategies as st
from tests.rendering.cards import tables_of, tags_of, text_of

from tokenloom.preprocess.summary import CorpusSummary, DatasetSummary
from tokenloom.rendering.card import HasFacts, card
from tokenloom_check import PackingQuality, pack_report

PAIR = DatasetSummary(
    key="text", split="train", prefix="<b>out", num_documents=90, num_empty=1, num_sequences=90, num_tokens=1000,
    num_bytes=2000,
)  # fmt: skip

SUMMARY = CorpusSummary(
    datasets=(PAIR, dataclasses.replace(PAIR, split=None, prefix="other", num_tokens=10)),
    num_files=2, num_ignored=0, num_shards=3, num_shards_reused=1, was_complete=False, num_documents=100,
    num_duplicates=10, num_doubled=0, num_blank_lines=0, num_rejected=4, rejected_paths=("out.rejected", "b<"),
    num_text_bytes=12_345, dtype="uint16", engine="rust", engine_reason="it is <fast>", seconds=1.25,
)  # fmt: skip


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
    assert "\x1b" not in named


def test_a_class_that_fails_has_no_card():
    class Mine(HasFacts):
        def facts(self):
            raise RuntimeError("a user's class")

    assert Mine()._repr_html_() is None


def test_a_job_shows_what_it_read_and_wrote():
    facts, pairs = tables_of(SUMMARY._repr_html_())
    assert ["tokens", "1,010"] in facts
    assert ["shards", "3, 1 of them done before"] in facts
    assert pairs[1] == ["<b>out", "train", "90", "1,000", "2,000"]
    assert "script" not in tags_of(SUMMARY._repr_html_())
    assert "4 bad records are set aside in out.rejected, b<" in text_of(SUMMARY._repr_html_())


def test_a_report_on_packing_shows_every_way_to_plan():
    report = pack_report([3, 8, 3, 2, 8, 1, 4, 3], max_seqlen_per_dp_cp_rank=8, dp_size=2)
    refused = PackingQuality(scheduler="<mine>", refused="too & long")
    shown = dataclasses.replace(report, rows=(*report.rows, refused))._repr_html_()
    facts, ways = tables_of(shown)
    assert facts[:2] == [["sub-samples", "8"], ["tokens", "32"]]
    assert [row[:4] for row in ways] == [
        ["scheduler", "microbatches", "fill", "padding tokens"],
        ["padded", "4", "50.0%", "32"],
        ["dp_balanced", "3", "66.7%", "0"],
        ["cost_balanced", "2", "100.0%", "0"],
    ]
    assert "<mine>: too & long" in text_of(shown)
