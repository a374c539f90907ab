"""Documents and samples as record batches, files and Hugging Face datasets; a killed export leaves old or new files."""

import json
import os
import pickle
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.adapters.frameworks import library, samples_of
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.faults import dies_at
from tests.indexed.pairs import pair_bytes, write_pair

from tokenloom import IndexedDataset, build_catalogue, preprocess_corpus
from tokenloom.adapters import (
    document_batches,
    documents_dataset,
    export_documents,
    export_samples,
    sample_batches,
    samples_dataset,
    save_for_preprocessing,
)
from tokenloom.adapters.arrow import DocumentRows
from tokenloom.errors import ConfigError, OutputExistsError, StorageError
from tokenloom.indexed.roles import PartKind, read_roles
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.tokenizers.plain import ByteTokenizer

CONVERSATIONS = [conversation((PROMPT, [1, 2]), (ANSWER, [3])), conversation(), conversation((ANSWER, [4, 5]))]
CORPUS = [[[1, 2, 3]], [[4]], [[]], [[5, 6]]]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_documents(tmp_path: Path, dtype: type):
    parts = [write_pair(tmp_path / name, CORPUS[start:], dtype=dtype) for name, start in (("a", 0), ("b", 1))]
    build_catalogue(parts, tmp_path / "all")
    table = document_batches(tmp_path / "all").read_all()
    table.validate(full=True)
    assert table.schema.field("tokens").type == pa.list_(pa.from_numpy_dtype(dtype))
    tokens = [[1, 2, 3], [4], [], [5, 6], [4], [], [5, 6]]
    assert table.to_pydict() == {"document": list(range(7)), "tokens": tokens}


def test_tokens_are_views_of_the_mapped_file(tmp_path: Path):
    rows = DocumentRows(write_pair(tmp_path / "a", CORPUS, dtype=np.uint16))
    mapped = rows._pair.byte_source.mapped
    before = pa.total_allocated_bytes()
    batches = list(rows.batches(batch_bytes=4))
    assert [len(batch) for batch in batches] == [1, 2, 1]
    for batch in batches:
        values = batch.column("tokens").values.buffers()[1]
        assert mapped.ctypes.data <= values.address <= mapped.ctypes.data + len(mapped)
    assert pa.total_allocated_bytes() == before


def test_origins_texts_and_manifest(tmp_path: Path):
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n\n{"text": "two words"}\n')
    preprocess_corpus([tmp_path / "in.jsonl"], tmp_path / "a", ByteTokenizer(), CorpusSettings(), num_processes=1)
    table = document_batches(tmp_path / "a_text_document", tokenizer="byte").read_all()
    assert table.column("text").to_pylist() == ["one", "two words"]
    assert table.column("file").to_pylist() == [str(tmp_path / "in.jsonl")] * 2
    assert table.column("record").to_pylist() == [1, 3]
    metadata = json.loads(table.schema.metadata[b"tokenloom"])
    assert (metadata["rows"], metadata["manifest"]["tokenizer"]["kind"]) == ("documents", "byte")


def test_roles_are_parts(tmp_path: Path):
    prefix = write_conversations(tmp_path / "a", CONVERSATIONS)
    roles = read_roles(IndexedDataset(prefix))
    rows = document_batches(prefix).read_all().to_pylist()
    for number, row in enumerate(rows):
        starts = [0, *row["part_stops"]][: len(row["part_stops"])]
        found = list(zip(starts, row["part_stops"], map(PartKind, row["part_kinds"]), strict=True))
        assert found == roles.of(number)


def test_samples(tmp_path: Path, rng: np.random.Generator):
    dataset = samples_of(tmp_path, rng)
    table = sample_batches(dataset, batch_bytes=5000).read_all()
    batch = dataset.batch(range(len(dataset)))
    assert len(list(sample_batches(dataset, batch_bytes=5000))) > 1
    assert table.schema.field("input_ids").type == pa.list_(pa.int32(), batch["tokens"].shape[1])
    assert table.column("sample").to_pylist() == list(range(len(dataset)))
    for name in table.schema.names[1:]:
        column = np.stack(table.column(name).to_numpy())
        assert np.array_equal(column, batch["tokens" if name == "input_ids" else name])
    assert "shifted already" in table.schema.metadata[b"tokenloom"].decode()


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


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "new/folder/rows.pq"])
def test_a_file_of_documents(tmp_path: Path, prefix: str, name: str):
    report = export_documents(prefix, tmp_path / name)
    assert (report.paths, report.num_rows, report.num_tokens) == ((str(tmp_path / name),), 100, 4950)
    assert report.num_bytes == (tmp_path / name).stat().st_size
    table, expected = read(report.paths), document_batches(prefix).read_all()
    assert table.equals(expected)
    assert table.schema.metadata == expected.schema.metadata


SMALL_PARTS = {"part_bytes": 3000, "row_group_bytes": 1024}


@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_a_folder_of_documents(tmp_path: Path, prefix: str, file_format: str):
    report = export_documents(prefix, tmp_path / "out", file_format=file_format, compression=None, **SMALL_PARTS)
    assert names(tmp_path / "out") == [f"part-{number:05}.{file_format}" for number in range(len(report.paths))]
    assert len(report.paths) > 3
    assert read(report.paths).equals(document_batches(prefix).read_all())


def test_a_folder_of_samples(tmp_path: Path, rng: np.random.Generator):
    dataset = samples_of(tmp_path, rng)
    report = export_samples(dataset, tmp_path / "out", num_samples=30, part_bytes=4000, row_group_bytes=1024)
    assert len(report.paths) > 1
    assert (report.num_rows, report.num_tokens) == (30, 30 * 16)
    assert read(report.paths).equals(sample_batches(dataset, num_samples=30).read_all())


def test_an_output_is_replaced_only_with_overwrite(tmp_path: Path, prefix: str):
    for output in (tmp_path / "a.parquet", tmp_path / "out"):
        first = export_documents(prefix, output)
        with pytest.raises(OutputExistsError, match="exists"):
            export_documents(prefix, output)
        again = export_documents(write_pair(tmp_path / "b", [[[1]]]), output, overwrite=True)
        assert (first.num_rows, read(again.paths).num_rows) == (100, 1)
    assert [name for name in names(tmp_path) if name.startswith(".") and not name.endswith(".lock")] == []


@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_failure_keeps_the_old_output(tmp_path: Path, rng: np.random.Generator, name: str):
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
        ({"part_bytes": 3}, "`part_bytes`: must be 1024 or more, got 3"),
        ({"row_group_bytes": 0}, "`row_group_bytes`: must be 1024 or more, got 0"),
        ({"file_format": "csv"}, "`file_format`: must be 'parquet' or 'arrow', got 'csv'"),
        ({"compression": "nope"}, "`compression`: parquet does not support 'nope'"),
        ({"output": "s3://bucket/out"}, "`output`: must be a local path, got 's3://bucket/out'"),
    ],
)
def test_wrong_settings(tmp_path: Path, prefix: str, settings: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        export_documents(prefix, **{"output": tmp_path / "out", **settings})
    assert not (tmp_path / "out").exists()


@pytest.fixture
def pairs(tmp_path: Path) -> list[str]:
    return [write_pair(tmp_path / name, [[[number] * 300] for _ in range(9)]) for number, name in enumerate("ab")]


def export(prefix: str, output: Path) -> None:
    export_documents(prefix, output, overwrite=True, **SMALL_PARTS)


def left_beside(output: Path) -> list[str]:
    """Returns other names in the output's folder; without file locks, hidden files of a killed export stay."""
    known = (".lock", ".tmp") if "flock" in os.environ.get("TOKENLOOM_MISSING", "") else (".lock",)
    return [path.name for path in output.parent.iterdir() if path != output and path.suffix not in known]


def first_tokens(output: Path) -> list[int]:
    """Returns the first token of each document."""
    if not output.exists():  # killed between two renames; the next export restores the folder
        output = output.with_name(f".{output.name}.export.old")
    paths = sorted(output.iterdir()) if output.is_dir() else [output]
    return [row[0] for path in paths for row in pq.read_table(path)["tokens"].to_pylist()]


@pytest.mark.parametrize("step", [pytest.param(4, id="some"), pytest.param(1, marks=pytest.mark.slow, id="every")])
@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_death_at_any_call_leaves_old_or_new(tmp_path, pairs, name, step):
    output = tmp_path / "exports" / name
    for number in count(0, step):
        export(pairs[0], output)
        died = dies_at(output.parent, number, lambda: export(pairs[1], output), every=step == 1)
        assert first_tokens(output) in ([0] * 9, [1] * 9), number
        if not died:
            break
        export(pairs[1], output)
        assert (first_tokens(output), left_beside(output)) == ([1] * 9, []), number
    assert number > 3


@pytest.fixture(scope="module")
def datasets() -> Any:
    return library("datasets")  # not at the top: the import takes seconds


TEXTS = ["one", "two words", "", "four"]


def preprocess(source: str | Path, output: Path) -> tuple[bytes, bytes]:
    preprocess_corpus([source], output, ByteTokenizer(), CorpusSettings(), num_processes=1)
    return pair_bytes(f"{output}_text_document")


def as_lines(datasets: Any, folder: Path) -> tuple[bytes, bytes]:
    datasets.Dataset.from_dict({"text": TEXTS}).to_json(folder / "lines.jsonl")
    return preprocess(folder / "lines.jsonl", folder / "lines")


@pytest.mark.slow
def test_documents_of_datasets(datasets: Any, tmp_path: Path):
    prefix = write_pair(tmp_path / "a", [[list(range(number))] for number in range(5)], dtype=np.uint16)
    view = documents_dataset(prefix, tokenizer="null:1000")
    assert view[3] == {"document": 3, "tokens": [0, 1, 2], "text": "0 1 2"}
    assert view.features["tokens"].feature.dtype == "uint16"
    assert view.filter(lambda row: len(row["tokens"]) > 2)["document"][:] == [3, 4]
    assert not view.data.column("tokens").chunk(0).values.buffers()[1].is_mutable


@pytest.mark.slow
def test_samples_of_datasets(datasets: Any, tmp_path: Path, rng: np.random.Generator):
    dataset = samples_of(tmp_path, rng)
    view = samples_dataset(dataset)
    batch = dataset.batch(range(len(dataset)))
    assert (len(view), view[5]["sample"], view[0]["input_ids"].dtype) == (len(dataset), 5, np.int32)
    chosen = [7, 3, 3]
    for rows in (view[chosen], pickle.loads(pickle.dumps(view))[chosen]):
        assert np.array_equal(rows["input_ids"], batch["tokens"][chosen])
        assert np.array_equal(rows["labels"], batch["labels"][chosen])
    shuffled = view.shuffle(seed=1)
    assert np.array_equal(shuffled[0]["input_ids"], batch["tokens"][shuffled[0]["sample"]])
    assert len(samples_dataset(dataset, num_samples=3)) == 3


@pytest.mark.slow
def test_a_dataset_in_memory_is_preprocessed(datasets: Any, tmp_path: Path):
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    folder = save_for_preprocessing(dataset, tmp_path / "saved")
    assert preprocess(folder, tmp_path / "a") == as_lines(datasets, tmp_path)
    with pytest.raises(OutputExistsError, match="does not contain this dataset"):
        save_for_preprocessing(datasets.Dataset.from_dict({"text": ["other"]}), tmp_path / "saved")


@pytest.mark.slow
def test_a_dataset_with_several_splits(datasets: Any, tmp_path: Path):
    splits = datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": TEXTS}) for name in ("train", "test")})
    with pytest.raises(ConfigError, match=r"must be a `datasets\.Dataset`, got DatasetDict\nhint: pass one split"):
        save_for_preprocessing(splits, tmp_path / "saved")
    splits.save_to_disk(tmp_path / "all")
    with pytest.raises(ConfigError, match="has several splits: train, test"):
        preprocess(tmp_path / "all", tmp_path / "a")
    assert preprocess(tmp_path / "all" / "test", tmp_path / "b") == as_lines(datasets, tmp_path)
