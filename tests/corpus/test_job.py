from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from tests.corpus.jobs import corpus_of, preprocess
from tests.indexed.pairs import pair_bytes
from tests.preprocess.corpus import build_by_hand, documents_of, write_lines

from tokenloom.errors import ConfigError, InputError, StorageError
from tokenloom.preprocess.settings import BadRecordBudget
from tokenloom.preprocess.sharded import JobProgress

DOCUMENTS = [f"document {number} " * (number % 5) for number in range(60)]


def test_only_the_shards_of_inputs_that_changed_are_done_again(tmp_path: Path, words):
    paths = corpus_of(tmp_path, ["alpha"] * 60)
    with paths[2].open("ab") as stream:
        stream.write(b"bad\n")
    with pytest.raises(InputError, match=r"part-2\.jsonl` line 21: not JSON"):
        preprocess(paths, tmp_path / "out", words, shard_bytes=80, num_processes=1)
    num_done = len(list((tmp_path / "out.job").glob("*.bin")))
    write_lines(paths[2], [{"text": "beta"}] * 3)
    summary = preprocess(paths, tmp_path / "out", words, shard_bytes=80)
    assert 0 < summary.num_shards_reused <= num_done
    assert documents_of(tmp_path / "out_text_document") == [[[2]]] * 40 + [[[3]]] * 3


def test_bad_records_are_numbered_from_the_beginning_of_their_file(tmp_path: Path, words):
    lines: list[object] = [{"text": "alpha"}] * 50
    lines[7], lines[31], lines[49] = b"seven", b"", b"forty-nine"
    paths = [write_lines(tmp_path / name, lines) for name in ("a.jsonl", "b.jsonl")]
    summary = preprocess(paths, tmp_path / "out", words, shard_bytes=60, skip_bad_records=True, num_workers=2)
    assert summary.rejected_paths == (str(tmp_path / "out.rejected.jsonl"),)
    records = [json.loads(line) for line in (tmp_path / "out.rejected.jsonl").read_text().splitlines()]
    assert [(record["file"], record["line"], record["text"]) for record in records] == [
        (str(path), line, text) for path in paths for line, text in ((8, "seven"), (50, "forty-nine"))
    ]
    assert (summary.num_documents, summary.num_rejected, summary.num_blank_lines) == (94, 4, 2)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (BadRecordBudget(most=2), "(3 of 30, 2 allowed|line 30: .*: more than 2 bad records)"),
        (BadRecordBudget(most=None, most_share=0.05), "too many bad records: 3 of 30, 5 % allowed"),
    ],
)
def test_too_many_bad_records_are_an_error(tmp_path: Path, words, budget: BadRecordBudget, message: str):
    lines: list[object] = [{"text": "alpha"}] * 30
    lines[3] = lines[15] = lines[29] = b"bad"
    path = write_lines(tmp_path / "in.jsonl", lines)
    with pytest.raises(InputError, match=message):
        preprocess(path, tmp_path / "out", words, bad_records=budget, shard_bytes=100)
    assert preprocess(path, tmp_path / "fine", words, bad_records=BadRecordBudget(most=3)).num_rejected == 3
    assert preprocess(path, tmp_path / "good", words, bad_records=BadRecordBudget.parse("10%")).num_rejected == 3
    assert not (tmp_path / "out_text_document.idx").exists()


def test_a_pair_per_file(tmp_path: Path, tokenizer):
    paths = corpus_of(tmp_path, DOCUMENTS)
    (tmp_path / "pairs").mkdir()
    options = {"shard_bytes": 300, "num_processes": 2, "num_workers": 1}
    summary = preprocess(paths, tmp_path / "pairs", tokenizer, one_pair_per_file=True, **options)
    for number, dataset in enumerate(summary.datasets):
        assert dataset.prefix == str(tmp_path / "pairs" / f"part-{number}_text_document")
        expected = build_by_hand(tmp_path / "hand", tokenizer, DOCUMENTS[20 * number :][:20], eod=None)
        assert pair_bytes(dataset.prefix) == expected
    (tmp_path / "other").mkdir()
    twin = write_lines(tmp_path / "other" / "part-0.jsonl", [{"text": "x"}])
    with pytest.raises(ConfigError, match="would both be written to `part-0`"):
        preprocess([*paths, twin], tmp_path / "pairs2", tokenizer, one_pair_per_file=True)


def test_a_disk_that_is_full_in_the_end_leaves_no_dataset(tmp_path: Path, tokenizer):
    path = write_lines(tmp_path / "in.jsonl", [{"text": "some text " * 50}] * 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StorageError, match="File too large"):
            preprocess(path, tmp_path / "out", tokenizer, shard_bytes=10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.glob("out_*"))
    assert preprocess(path, tmp_path / "out", tokenizer, shard_bytes=10_000).num_shards_reused > 3
    expected = build_by_hand(tmp_path / "hand", tokenizer, ["some text " * 50] * 100, eod=None)
    assert pair_bytes(tmp_path / "out_text_document") == expected


def test_progress_tells_bytes_and_tokens(tmp_path: Path, tokenizer):
    path = write_lines(tmp_path / "in.jsonl", [{"text": f"document {number}"} for number in range(100)])
    seen: list[JobProgress] = []
    summary = preprocess(path, tmp_path / "out", tokenizer, block_bytes=300, progress=seen.append)
    assert len(seen) > 5
    assert [at.counts["num_tokens"] for at in seen] == sorted(at.counts["num_tokens"] for at in seen)
    last = seen[-1]
    assert last.counts["num_file_bytes"] == last.total == last.counts["num_text_bytes"] == path.stat().st_size
    assert (last.counts["num_tokens"], last.counts["num_documents"]) == (summary.num_tokens, 100)
    assert (last.num_shards_done, last.num_shards) == (1, 1)


def test_budgets_are_counts_or_shares():
    for text, most, share, shown in (("3", 3, 1.0, "3"), ("0.5%", None, 0.005, "0.5 %")):
        assert str(BadRecordBudget.parse(text)) == shown
        assert BadRecordBudget.parse(text) == BadRecordBudget(most=most, most_share=share)
    for text in ("-1", "101%", "many", ""):
        with pytest.raises(ConfigError, match=r"bad records '.*\nhint: give a number .* such as 100, or a share"):
            BadRecordBudget.parse(text)
