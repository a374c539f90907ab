"""What a notebook shows of jobs that are done."""

from __future__ import annotations

import dataclasses
import re

from tests.rendering.cards import tables_of, tags_of, text_of

from tokenloom.corpus.chat import ChatSummary
from tokenloom.corpus.summary import CorpusSummary, DatasetSummary

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

CHAT = ChatSummary(
    prefix="<i>chat", num_documents=5, num_sequences=7, num_tokens=100, num_answer_tokens=40, num_blank_lines=2,
    num_rejected=0, rejected_path=None, schema="messages", template="{{ <b> }}", dtype="uint16", engine="rust",
    engine_reason="x", seconds=2.0,
)  # fmt: skip


def test_a_job_shows_what_it_read_and_wrote():
    shown = SUMMARY._repr_html_()
    facts, pairs = tables_of(shown)
    assert facts == [
        ["documents", "100"],
        ["tokens", "1,010"],
        ["input files", "2"],
        ["text read", "12.3 kB"],
        ["duplicates left out", "10"],
        ["shards", "3, 1 of them done before"],
        ["dtype", "uint16"],
        ["engine", "rust: it is <fast>"],
        ["time", "1.2 s"],
    ]
    assert pairs == [
        ["pair", "split", "documents", "tokens", "size"],
        ["<b>out", "train", "90", "1,000", "2 kB"],
        ["other", "", "90", "10", "2 kB"],
    ]
    alarm = "4 bad records are set aside in out.rejected, b&lt;"
    assert re.findall(r'role="alert">(.*?)</p>', shown) == [alarm]


def test_a_job_that_had_nothing_to_do_tells_no_time():
    done = dataclasses.replace(SUMMARY, was_complete=True, num_rejected=0, num_text_bytes=0)
    facts = dict(tables_of(done._repr_html_())[0])
    assert "time" not in facts
    assert "text read" not in facts
    assert "bad records" not in text_of(done._repr_html_())


def test_of_many_pairs_the_largest_are_shown():
    many = dataclasses.replace(SUMMARY, datasets=(PAIR,) * 40)
    pairs = tables_of(many._repr_html_())[1]
    assert len(pairs) == 13
    assert pairs[-1] == ["29 others", "", "2,610", "29,000", "58 kB"]


def test_a_job_over_conversations_is_shown():
    shown = CHAT._repr_html_()
    (facts,) = tables_of(shown)
    assert facts[:5] == [
        ["conversations", "7"],
        ["documents", "5"],
        ["tokens", "100"],
        ["tokens of answers", "40"],
        ["blank lines", "2"],
    ]
    assert ["template", "{{ <b> }}"] in facts
    assert not {"b", "i"} & set(tags_of(shown))
    refused = dataclasses.replace(CHAT, num_rejected=1234, rejected_path="a.rejected")
    assert "1,234 bad records are set aside in a.rejected" in text_of(refused._repr_html_())
