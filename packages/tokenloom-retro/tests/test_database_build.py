"""Chunk databases: literal tables, and a build that goes on, is refused, or has nothing to do."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import pytest
from retro_making import letters, maker, project_of

from tokenloom_retro.database_build import build_database
from tokenloom_retro.settings import RetroBuildSettings

pytestmark = pytest.mark.slow

BOOKS = [letters("abcdefghi"), letters("zzzzab"), letters("", ends=True), letters("hello", ends=False)]
WEB = [letters("web"), [], letters("zz"), letters("abcd")]
SETTINGS = RetroBuildSettings(
    data=((2.0, "books"), (1.0, "web")),
    sequence_length=8,
    sizes=(None, None, None),
    split="75,25,0",
    index="Flat",
    num_index_chunks=4,
    document_block_size=3,
)


def tables(path: Path | str) -> dict[str, list[list[int]]]:
    with h5py.File(path) as file:
        return {name: file[name][()].tolist() for name in file}


def test_chunks_of_two_data_sets(tmp_path: Path):
    project = project_of(tmp_path, books=BOOKS, web=WEB)
    manifest = build_database(project, maker(), SETTINGS)
    first = tables(Path(project.individual_folder("books")) / "00-03.hdf5")
    assert first == {
        "chunks_valid": [[0, 0, 4, 4], [0, 4, 8, 4], [0, 8, 9, 1], [1, 4, 6, 2]],
        "chunks_invalid": [[1, 0, 4, 0]],
        "doc_offsets": [[0, 3], [1, 4], [2, 4]],
    }
    second = tables(Path(project.individual_folder("books")) / "03-04.hdf5")
    assert second["chunks_valid"] == [[3, 0, 4, 4], [3, 4, 5, 1]]
    train = tables(project.merged_path("train"))
    assert train["chunks"] == [[0, 0, 0, 4, 4], [0, 0, 4, 8, 4], [0, 0, 8, 9, 1], [0, 1, 4, 6, 2], [1, 0, 0, 3, 3]]
    assert train["doc_offsets"] == [[0, 0, 3], [0, 1, 4], [0, 2, 4], [1, 0, 5], [1, 1, 5], [1, 2, 5]]
    assert train["n_written"] == [5]
    valid = tables(project.merged_path("valid"))
    assert valid == {"chunks": [[0, 3, 0, 4, 4], [0, 3, 4, 5, 1], [1, 3, 0, 4, 4]], "n_written": [3]}
    assert tables(project.merged_path("sampled"))["chunks"] == [*train["chunks"][:2], train["chunks"][4]]
    infos = json.loads(Path(project.infos_path).read_text())
    counts = {"n_docs": 4, "n_docs_train": 3, "n_chunks": 6, "n_chunks_train": 4, "n_chunks_invalid": 1}
    assert infos[0] == {"ratio": 2.0, "prefix": "books", **counts, "n_chunks_sampled": 2}
    chunks = {"num_chunks": 8, "num_chunks_train": 5, "num_chunks_invalid": 2, "num_chunks_sampled": 3}
    assert manifest.counts == {"num_docs": 8, **chunks}
    database = project.database("train", chunk_length=4, eod_token_id=0)
    assert database.gather([3, 4]).tolist() == [[1, 2, 0, 0], [23, 5, 2, 0]]
