"""Documents and samples as files, read back by those who read such files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.adapters.frameworks import samples_of
from tests.adapters.libraries import library
from tests.indexed.pairs import pair_bytes, write_pair

from tokenloom import IndexedDataset, preprocess_corpus
from tokenloom.adapters import document_batches, export_documents, export_samples, sample_batches
from tokenloom.corpus.settings import CorpusSettings
from tokenloom.errors import ConfigError, OutputExistsError, StorageError
from tokenloom.tokenizers.load import load_tokenizer


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


def test_row_groups_have_the_wanted_size(tmp_path: Path, prefix: str):
    [path] = export_documents(prefix, tmp_path / "a.parquet", row_group_bytes=2000).paths
    metadata = pq.read_metadata(path)
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert sum(rows) == 100
    lengths = iter(range(100))
    assert all(sum(next(lengths) for _ in range(count)) <= 1000 for count in rows)


def test_a_pair_without_documents_gives_a_file_without_rows(tmp_path: Path):
    report = export_documents(write_pair(tmp_path / "a", []), tmp_path / "out")
    assert (report.num_rows, report.num_tokens, len(report.paths)) == (0, 0, 1)
    assert pq.read_table(report.paths[0]).schema.names == ["document", "tokens"]


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


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path, prefix: str):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(StorageError, match=r"it holds 'letter.txt', which is no part"):
        export_documents(prefix, tmp_path / "home", overwrite=True)
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


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
        ({"part_bytes": 3}, "expected `part_bytes` of at least 1024, got 3"),
        ({"row_group_bytes": 0}, "expected `row_group_bytes` of at least 1024, got 0"),
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


def test_exported_texts_of_ids_are_tokenized_to_the_same_pair(tmp_path: Path):
    prefix = write_pair(tmp_path / "a", [[list(range(number))] for number in range(1, 50)], dtype=np.uint16)
    [path] = export_documents(prefix, tmp_path / "out.parquet", tokenizer="null:1000").paths
    preprocess_corpus([path], tmp_path / "b", load_tokenizer("null:1000"), CorpusSettings(), num_processes=1)
    assert pair_bytes(tmp_path / "b_text_document") == pair_bytes(prefix)


@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_datasets_and_polars_read_the_same(tmp_path: Path, prefix: str, file_format: str):
    datasets, polars = library("datasets"), library("polars")
    report = export_documents(
        prefix, tmp_path / "out", file_format=file_format, part_bytes=4000, row_group_bytes=1024, compression=None
    )
    pair = IndexedDataset(prefix)
    expected = [pair[number].tolist() for number in range(len(pair))]
    files = [str(path) for path in report.paths]
    loaded = datasets.load_dataset(file_format, data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["tokens"][:] == expected
    frames = [getattr(polars, {"parquet": "read_parquet", "arrow": "read_ipc"}[file_format])(path) for path in files]
    assert polars.concat(frames)["tokens"].to_list() == expected


def test_datasets_and_polars_read_samples(tmp_path: Path, rng: np.random.Generator):
    datasets, polars = library("datasets"), library("polars")
    dataset = samples_of(tmp_path, rng)
    [path] = export_samples(dataset, tmp_path / "out.parquet").paths
    expected = dataset.batch(range(len(dataset)))["tokens"].tolist()
    loaded = datasets.load_dataset("parquet", data_files=path, split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["input_ids"][:] == expected
    assert polars.read_parquet(path)["input_ids"].to_list() == expected
