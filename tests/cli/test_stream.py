"""`tokenloom stream`: batches as fast as they come, and what that took."""

from __future__ import annotations

import json

import pytest
from tests.preprocess.corpus import byte_level_json
from tests.support import write_corpus

from tokenloom.cli import main


@pytest.fixture
def run(tmp_path, capsys):
    """Runs the command over data, at 64 tokens per sample; returns the exit status, the words of each line, errors."""
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")

    def stream(*options: str) -> tuple[int, list[list[str]], str]:
        common = ["--tokenizer", str(tmp_path), "--sequence-length", "64", "--split", "1,0,0"]
        status = main(["stream", *common, "--path-to-cache", str(tmp_path / "indices"), *options])
        printed = capsys.readouterr()
        return status, [line.split() for line in printed.out.splitlines() if line.strip()], printed.err

    return stream


@pytest.fixture
def prefix(tmp_path, rng):
    return write_corpus(tmp_path / "corpus", [rng.integers(0, 900, size=100) for _ in range(60)])


def test_local_data_have_a_speed_and_no_sources(run, prefix):
    status, lines, _ = run("--data-path", prefix)
    assert status == 0
    assert lines[0][:9] == ["11", "batches", "of", "8", "samples,", "5,632", "tokens", "in", lines[0][8]]
    assert len(lines) == 1


def test_indices_are_opened_as_megatrons_options_say(run, prefix, tmp_path):
    (tmp_path / "counts.json").write_text(json.dumps({prefix: [60, 61]}))
    counted = ["--data-path", prefix, "--per-dataset-sequences-path", str(tmp_path / "counts.json")]
    fast = [*counted, "--dataloader-fast-cache-load", "--dataloader-defer-npy-index-mmap", "--num-workers", "0"]
    status, _, errors = run(*fast)
    assert (status, "build the index first" in errors) == (1, True)  # nothing is built, and nothing there
    assert run(*counted)[0] == run(*fast)[0] == 0
    (tmp_path / "counts.json").write_text(json.dumps({prefix: [59, 60]}))
    assert run(*counted)[0] == 1


def test_remote_data_have_a_table(bucket, run, prefix):
    url = bucket.put_pair(prefix, "data/corpus")
    status, lines, _ = run("--data-path", url, "--batches", "5", "--concurrency", "4")
    assert status == 0
    assert lines[0][:2] == ["5", "batches"]
    assert lines[1] == [
        "source",
        "MB",
        "used",
        "MB",
        "fetched",
        "ratio",
        "requests",
        "hits",
        "waits",
        "seconds",
        "waited",
        "retries",
    ]
    row = lines[-1]
    assert (row[0], row[1], row[8]) == (f"{url}.bin", "0.01", "0")


def test_a_blend_has_a_total_and_a_block_shuffle_its_mixing(bucket, run, prefix):
    urls = [bucket.put_pair(prefix, f"data/{name}") for name in "ab"]
    blend = ["--data-path", "1", urls[0], "1", urls[1], "--train-samples", "80"]
    status, lines, _ = run(*blend, "--block-shuffle", "2", "--block-bytes", "1024", "--batches", "9")
    assert status == 0
    assert lines[1][:2] == ["mixing,", "as"]
    assert [line[0] for line in lines[3:6]] == [*urls, "(a"]
    assert lines[5][-3:] == ["0.333", "0.333", "0.293"]
    assert lines[-1][0] == "total"


def test_a_split_without_data_is_refused(run, prefix):
    status, lines, errors = run("--data-path", prefix, "--from", "test")
    assert (status, lines) == (1, [])
    assert errors == "error: expected one dataset for test, found none\nmore: tokenloom explain ConfigError\n"
