"""What a notebook shows of jobs that are done."""

from __future__ import annotations

import dataclasses
import re

from tests.rendering.cards import tables_of

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
