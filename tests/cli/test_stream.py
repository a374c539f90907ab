"""`tokenloom stream`: batches as fast as they come, and what that took."""

from __future__ import annotations

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
    assert lines[0][-1] == "tokens/s"
    assert lines[2:6] == [["position", "0"], ["batches", "11"], ["samples", "88"], ["tokens", "5,632"]]
    assert lines[-1] == ["storage", "none"]


@pytest.mark.slow
def test_remote_data_have_a_table(bucket, run, prefix):
    url = bucket.put_pair(prefix, "data/corpus")
    status, lines, _ = run("--data-path", url, "--batches", "5", "--concurrency", "4")
    assert status == 0
    assert lines[3] == ["batches", "5"]
    names = "source bytes used bytes fetched requests hits waits wait seconds retries ratio"
    assert names.split() in lines
    row = lines[-1]
    assert (row[0], row[7]) == (f"{url}.bin", "0")
