"""`tokenloom export`."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.cli.runs import run, write_run
from tests.run.data import write_source

from tokenloom import load


def test_documents_go_to_a_file(capsys, tmp_path: Path):
    prefix = write_source(str(tmp_path / "a"), 3, 4)
    status, out, _ = run(capsys, "export", prefix, "--output", tmp_path / "a.parquet", "--tokenizer", "null:500")
    assert status == 0
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column("text").to_pylist() == ["0 0 0", "1 1 1 1"]
    size = (tmp_path / "a.parquet").stat().st_size
    assert out == f"{tmp_path}/a.parquet: 2 documents, 7 tokens, {size:,} bytes\n"
    status, _, error = run(capsys, "export", prefix, "--output", tmp_path / "a.parquet")
    assert status == 1
    assert "exists" in error
    assert run(capsys, "export", prefix, "--output", tmp_path / "a.parquet", "--overwrite")[0] == 0
    assert pq.read_table(tmp_path / "a.parquet").schema.names == ["document", "tokens"]


def test_samples_go_to_parts_of_a_folder(capsys, tmp_path: Path):
    prefix = write_source(str(tmp_path / "a"), *[32] * 40)
    options = ("--sequence-length", 16, "--tokenizer", "null:500", "--samples", 60, "--seed", 3, "--part-bytes", "4KB")
    status, out, _ = run(capsys, "export", prefix, "--output", tmp_path / "out", *options, "--row-group-bytes", "2KB")
    assert status == 0
    assert "more files: 60 samples, 960 tokens" in out
    rows = [
        row for path in sorted((tmp_path / "out").iterdir()) for row in pq.read_table(path)["input_ids"].to_pylist()
    ]
    dataset = load(prefix, sequence_length=16, tokenizer="null:500", seed=3)
    assert rows == dataset.batch(range(60))["tokens"].tolist()


def test_a_run_says_itself_what_its_samples_are(capsys, tmp_path: Path):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    status, out, error = run(capsys, "export", path, "--output", tmp_path / "run.parquet", "--samples", 5)
    assert (status, error) == (0, "")
    assert "5 samples" in out
    rows = pq.read_table(tmp_path / "run.parquet")["input_ids"].to_pylist()
    assert rows == load(path).batch(range(5))["tokens"].tolist()


@pytest.mark.parametrize("option", ["--samples", "--seed"])
def test_options_of_samples_are_refused_for_documents(capsys, tmp_path: Path, option: str):
    prefix = write_source(str(tmp_path / "a"), 3)
    with pytest.raises(SystemExit) as caught:
        run(capsys, "export", prefix, "--output", tmp_path / "a.parquet", option, 5)
    assert caught.value.code == 2
    assert f"`{option}` is of samples: name their `--sequence-length`, too" in capsys.readouterr().err
    assert not (tmp_path / "a.parquet").exists()
