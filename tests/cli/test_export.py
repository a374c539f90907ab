"""`tokenloom export`."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from tests.cli.runs import rows_of, run, write_run
from tests.run.data import write_source

from tokenloom import load


def test_documents_go_to_a_file(capsys, tmp_path: Path):
    prefix = write_source(str(tmp_path / "a"), 3, 4)
    status, out, _ = run(capsys, "export", prefix, "--output", tmp_path / "a.parquet", "--tokenizer", "null:500")
    assert status == 0
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column("text").to_pylist() == ["0 0 0", "1 1 1 1"]
    size = (tmp_path / "a.parquet").stat().st_size
    assert rows_of(out)[3:7] == [
        *(["paths", f"{tmp_path}/a.parquet"], ["rows", "2"], ["tokens", "7"], ["bytes", f"{size:,}"]),
    ]
    status, _, error = run(capsys, "export", prefix, "--output", tmp_path / "a.parquet")
    assert status == 1
    assert "exists" in error
    assert run(capsys, "export", prefix, "--output", tmp_path / "a.parquet", "--overwrite")[0] == 0
    assert pq.read_table(tmp_path / "a.parquet").schema.names == ["document", "tokens"]


def test_a_run_says_itself_what_its_samples_are(capsys, tmp_path: Path):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    status, out, error = run(capsys, "export", path, "--output", tmp_path / "run.parquet", "--num-samples", 5)
    assert (status, error) == (0, "")
    assert ["rows", "5"] in rows_of(out)
    rows = pq.read_table(tmp_path / "run.parquet")["input_ids"].to_pylist()
    assert rows == load(path).batch(range(5))["tokens"].tolist()
