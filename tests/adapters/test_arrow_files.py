"""Documents and samples as files, read back by those who read such files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.adapters.frameworks import samples_of
from tests.indexed.pairs import write_pair

from tokenloom.adapters import document_batches, export_documents, export_samples, sample_batches
from tokenloom.errors import ConfigError, OutputExistsError, StorageError


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return write_pair(tmp_path / "a", [[list(range(number))] for number in range(100)], dtype=np.uint16)


def read_arrow(path: str) -> pa.Table:
    with pa.memory_map(path) as source:
        return pa.ipc.open_file(source).read_all()


def read(paths: tuple[str, ...]) -> pa.Table:
    return pa.concat_tables([read_arrow(path) if path.endswith(".arrow") else pq.read_table(path) for path in paths])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "made/for/it/rows.pq"])
def test_a_file_holds_the_documents_and_metadata(tmp_path: Path, prefix: str, name: str):
    report = export_documents(prefix, tmp_path / name)
    assert report.paths == (str(tmp_path / name),)
    assert (report.num_rows, report.num_tokens) == (100, 4950)
    assert report.num_bytes == (tmp_path / name).stat().st_size
    table = read_arrow(report.paths[0]) if name.endswith("arrow") else pq.read_table(report.paths[0])
    expected = document_batches(prefix).read_all()
    assert table.equals(expected)
    assert table.schema.metadata == expected.schema.metadata


@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_a_folder_gets_parts_of_a_size(tmp_path: Path, prefix: str, file_format: str):
    report = export_documents(
        prefix, tmp_path / "out", file_format=file_format, part_bytes=3000, row_group_bytes=1024, compression=None
    )
    assert names(tmp_path / "out") == [f"part-{number:05}.{file_format}" for number in range(len(report.paths))]
    assert len(report.paths) > 3
    assert read(report.paths).equals(document_batches(prefix).read_all())


def test_samples_in_parts(tmp_path: Path, rng: np.random.Generator):
    dataset = samples_of(tmp_path, rng)
    report = export_samples(dataset, tmp_path / "out", num_samples=30, part_bytes=4000, row_group_bytes=1024)
    assert len(report.paths) > 1
    assert (report.num_rows, report.num_tokens) == (30, 30 * 16)
    assert read(report.paths).equals(sample_batches(dataset, num_samples=30).read_all())


def test_what_is_there_is_replaced_only_when_that_is_said(tmp_path: Path, prefix: str):
    for output in (tmp_path / "a.parquet", tmp_path / "out"):
        first = export_documents(prefix, output)
        with pytest.raises(OutputExistsError, match="exists"):
            export_documents(prefix, output)
        again = export_documents(write_pair(tmp_path / "b", [[[1]]]), output, overwrite=True)
        assert (first.num_rows, read(again.paths).num_rows) == (100, 1)
    assert [name for name in names(tmp_path) if name.startswith(".") and not name.endswith(".lock")] == []


@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_failure_leaves_what_was_there(tmp_path: Path, rng: np.random.Generator, name: str):
    dataset = samples_of(tmp_path, rng)
    before = export_samples(dataset, tmp_path / name, num_samples=2)

    class Breaks:
        def __len__(self) -> int:
            return 40

        def batch(self, positions: np.ndarray) -> dict[str, np.ndarray]:
            if positions[-1] > 20:
                raise StorageError("the disk is gone")
            return dataset.batch(positions)

        def __getitem__(self, index: int) -> dict[str, np.ndarray]:
            return {name: rows[0] for name, rows in self.batch(np.array([index])).items()}

    found = names(tmp_path)
    with pytest.raises(StorageError, match="the disk is gone"):
        export_samples(Breaks(), tmp_path / name, row_group_bytes=1024, part_bytes=1024, overwrite=True)
    assert names(tmp_path) == found
    assert read(before.paths).num_rows == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"part_bytes": 3}, "expected `part_bytes` of at least 1024, found 3"),
        ({"row_group_bytes": 0}, "expected `row_group_bytes` of at least 1024, found 0"),
        ({"file_format": "csv"}, "expected `file_format` parquet or arrow, got 'csv'"),
        ({"compression": "nope"}, "parquet has no compression 'nope'"),
        (
            {"output": "s3://bucket/out"},
            "expected a file or folder on this machine to export to, got `s3://bucket/out`",
        ),
    ],
)
def test_settings_that_are_none(tmp_path: Path, prefix: str, settings: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        export_documents(prefix, **{"output": tmp_path / "out", **settings})
    assert not (tmp_path / "out").exists()
