"""How far a job is."""

from __future__ import annotations

from pathlib import Path

from tests.corpus.jobs import preprocess
from tests.preprocess.corpus import (
    write_lines,
)

from tokenloom.corpus.progress import CorpusProgress


def test_progress_tells_bytes_and_tokens(tmp_path: Path, tokenizer):
    path = write_lines(tmp_path / "in.jsonl", [{"text": f"document {number}"} for number in range(100)])
    seen: list[CorpusProgress] = []
    summary = preprocess(path, tmp_path / "out", tokenizer, block_bytes=300, progress=seen.append)
    assert len(seen) > 5
    assert [at.counts.num_tokens for at in seen] == sorted(at.counts.num_tokens for at in seen)
    last = seen[-1]
    assert last.counts.num_file_bytes == last.total_file_bytes == last.counts.num_text_bytes == path.stat().st_size
    assert (last.counts.num_tokens, last.counts.num_documents) == (summary.num_tokens, 100)
    assert (last.num_shards_done, last.num_shards) == (1, 1)
