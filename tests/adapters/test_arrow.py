"""Documents and samples as record batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.adapters.frameworks import samples_of
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.indexed.pairs import write_pair

from tokenloom import IndexedDataset, build_catalogue, preprocess_corpus
from tokenloom.adapters import document_batches, sample_batches
from tokenloom.adapters.arrow import DocumentRows
from tokenloom.indexed.roles import PartKind, read_roles
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.tokenizers.plain import ByteTokenizer

CONVERSATIONS = [conversation((PROMPT, [1, 2]), (ANSWER, [3])), conversation(), conversation((ANSWER, [4, 5]))]
CORPUS = [[[1, 2, 3]], [[4]], [[]], [[5, 6]]]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_the_columns_of_documents(tmp_path: Path, dtype: type):
    table = document_batches(write_pair(tmp_path / "a", CORPUS, dtype=dtype)).read_all()
    table.validate(full=True)
    assert table.schema.field("tokens").type == pa.list_(pa.from_numpy_dtype(dtype))
    assert table.to_pydict() == {"document": [0, 1, 2, 3], "tokens": [[1, 2, 3], [4], [], [5, 6]]}


def test_the_tokens_are_the_mapped_file(tmp_path: Path):
    rows = DocumentRows(write_pair(tmp_path / "a", CORPUS, dtype=np.uint16))
    mapped = rows._pair.byte_source.mapped
    before = pa.total_allocated_bytes()
    batches = list(rows.batches(batch_bytes=4))
    assert [len(batch) for batch in batches] == [1, 2, 1]
    for batch in batches:
        values = batch.column("tokens").values.buffers()[1]
        assert mapped.ctypes.data <= values.address <= mapped.ctypes.data + len(mapped)
    assert pa.total_allocated_bytes() == before


def test_a_catalogue_gives_the_documents_of_all_its_parts(tmp_path: Path):
    parts = [write_pair(tmp_path / name, CORPUS[start:]) for name, start in (("a", 0), ("b", 1))]
    build_catalogue(parts, tmp_path / "all")
    tokens = document_batches(tmp_path / "all").read_all().column("tokens").to_pylist()
    assert tokens == [[1, 2, 3], [4], [], [5, 6], [4], [], [5, 6]]


def test_origins_texts_and_manifest_come_along(tmp_path: Path):
    lines = [{"text": "one"}, {"text": "two words"}]
    (tmp_path / "in.jsonl").write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    preprocess_corpus([tmp_path / "in.jsonl"], tmp_path / "a", ByteTokenizer(), CorpusSettings(), num_processes=1)
    prefix = tmp_path / "a_text_document"
    table = document_batches(prefix, tokenizer="byte").read_all()
    assert table.column("text").to_pylist() == ["one", "two words"]
    assert table.column("file").to_pylist() == [str(tmp_path / "in.jsonl")] * 2
    assert table.column("record").to_pylist() == [1, 3]
    said = json.loads(table.schema.metadata[b"tokenloom"])
    assert said["rows"] == "documents"
    assert said["manifest"]["tokenizer"]["kind"] == "byte"


def test_roles_are_parts(tmp_path: Path):
    prefix = write_conversations(tmp_path / "a", CONVERSATIONS)
    roles = read_roles(IndexedDataset(prefix))
    rows = document_batches(prefix).read_all().to_pylist()
    for number, row in enumerate(rows):
        starts = [0, *row["part_stops"]][: len(row["part_stops"])]
        found = list(zip(starts, row["part_stops"], map(PartKind, row["part_kinds"]), strict=True))
        assert found == roles.of(number)


def test_samples_are_those_of_batch(tmp_path: Path, rng: np.random.Generator):
    dataset = samples_of(tmp_path, rng)
    table = sample_batches(dataset, batch_bytes=5000).read_all()
    batch = dataset.batch(range(len(dataset)))
    assert len(list(sample_batches(dataset, batch_bytes=5000))) > 1
    assert table.schema.names == ["sample", "input_ids", "labels", "loss_mask", "position_ids"]
    assert table.schema.field("input_ids").type == pa.list_(pa.int32(), batch["tokens"].shape[1])
    assert table.column("sample").to_pylist() == list(range(len(dataset)))
    for ours, theirs in {"tokens": "input_ids", "labels": "labels", "loss_mask": "loss_mask"}.items():
        assert np.array_equal(np.stack(table.column(theirs).to_numpy()), batch[ours])
    assert "shifted already" in table.schema.metadata[b"tokenloom"].decode()
