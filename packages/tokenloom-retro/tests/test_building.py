"""Builds: chunk tables, databases, indices, outputs with a manifest, projects that are resumed and verified."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from retro_building import (
    EOD,
    SETTINGS,
    LetterEmbedder,
    LetterTokenizer,
    build,
    copy_of,
    letters,
    maker,
    outputs_of,
    project,
    project_of,
)
from tests.reference.chunk_table import chunk_rows
from tests.support import write_sentences

from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.preprocess.processes import local_runner
from tokenloom.storage.atomic import PendingFile
from tokenloom_retro.assembled import RetroSettings, get_retro_datasets
from tokenloom_retro.build import retro_samples
from tokenloom_retro.chunk_table import chunk_block, chunk_spans, documents_in, num_train_chunks
from tokenloom_retro.database_build import build_database
from tokenloom_retro.dataset import RetroDataset
from tokenloom_retro.embedders import ChunkMaker
from tokenloom_retro.hdf5 import open_array
from tokenloom_retro.index_build import build_index, filled_path
from tokenloom_retro.neighbor_table import NAME
from tokenloom_retro.output import MANIFEST, NewOutput, Output, OutputManifest, crc32_of
from tokenloom_retro.project import RetroProject
from tokenloom_retro.settings import RetroBuildSettings
from tokenloom_retro.vector_index import VectorIndex
from tokenloom_retro.verify import damaged_files, verify_retro

ONE = replace(SETTINGS, data=((1.0, "books"),), split="100,0,0", sizes=(2, None, None), num_index_chunks=0)


def spans_of(lengths, ends, chunk_length, **more):
    return chunk_spans(np.array(lengths, dtype=np.int64), np.array(ends, dtype=bool), chunk_length, **more)


@given(st.lists(st.lists(st.integers(0, 9), max_size=20), max_size=20), st.integers(1, 25))
def test_chunks_match_the_slow_reference(documents, chunk_length):
    ends = [bool(tokens) and tokens[-1] == EOD for tokens in documents]
    found = spans_of([len(tokens) for tokens in documents], ends, chunk_length)
    assert [tuple(row) for row in found.tolist()] == chunk_rows(documents, EOD, chunk_length)


def test_a_chunk_without_tokens_for_the_embedder_is_invalid():
    spans = spans_of([4, 2, 3], [False, False, False], 2, first_document=5)
    block = chunk_block(spans, np.array([7, 0, 0, 3, 1]), range(5, 8))
    assert block.chunks_valid.tolist() == [[5, 0, 2, 7], [7, 0, 2, 3], [7, 2, 3, 1]]
    assert block.chunks_invalid.tolist() == [[5, 2, 4, 0], [6, 0, 2, 0]]
    assert block.doc_offsets.tolist() == [[5, 1], [6, 1], [7, 3]]
    assert [array.dtype for array in (block.chunks_valid, block.doc_offsets)] == [np.uint32, np.uint64]
    assert [num_train_chunks(block.chunks_valid, number) for number in (0, 6, 7, 8, 99)] == [0, 1, 1, 3, 3]


def test_documents_of_several_sequences_are_errors(tmp_path: Path):
    pair = IndexedDataset(write_sentences(tmp_path / "data", [[[1]], [], [[2], [3], [4]], []]))
    lengths, ends = documents_in(pair, 0, 1, eod=EOD)
    assert (lengths.tolist(), ends.tolist()) == ([1], [False])
    with pytest.raises(ConfigError, match="document 2 must have one sequence, got 3"):
        documents_in(pair, 1, 4, eod=EOD)


def tables(path: Path | str) -> dict[str, list[list[int]]]:
    with h5py.File(path) as file:
        return {name: file[name][()].tolist() for name in file}


@pytest.mark.slow
def test_chunks_of_two_data_sets(tmp_path: Path):
    books = [letters("abcdefghi"), letters("zzzzab"), letters("", ends=True), letters("hello", ends=False)]
    project = project_of(tmp_path, books=books, web=[letters("web"), [], letters("zz"), letters("abcd")])
    data = ((2.0, "books"), (1.0, "web"))
    settings = replace(SETTINGS, data=data, split="75,25,0", num_index_chunks=4, document_block_size=3)
    manifest = build_database(project, maker(), settings)
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


STRINGS = ["Flat", "IVF16,Flat", "OPQ4_16,IVF16_HNSW8,PQ4x4", "HNSW8"]


@pytest.fixture(scope="module")
def vectors():
    """Vectors in clusters, some of them equal."""
    rng = np.random.default_rng(7)
    centres = rng.standard_normal((40, 32))
    found = (centres[rng.integers(0, 40, 3000)] + 0.3 * rng.standard_normal((3000, 32))).astype(np.float32)
    found[100:150] = found[:50]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("string", STRINGS)
def test_the_same_blocks_give_the_same_bits_on_any_number_of_threads(string, vectors, tmp_path):
    index = VectorIndex.train(string, vectors[:300])
    codes = [index.encode(vectors, num_threads=threads) for threads in (1, 3)]
    assert codes[0].tobytes() == codes[1].tobytes()
    assert codes[0].shape == (3000, index.code_bytes)
    for number in range(2):
        with PendingFile(tmp_path / str(number)) as file:
            index.assemble([codes[number]]).write(file)
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
    full = VectorIndex.open(tmp_path / "0", string=string, dimension=32, num_vectors=3000)
    found = [full.search(vectors[:2500], 10, num_threads=threads) for threads in (1, 3)]
    assert found[0].ids.tobytes() == found[1].ids.tobytes()
    assert found[0].distances.tobytes() == found[1].distances.tobytes()


class Forbidden(LetterEmbedder):
    def embed(self, texts, /):
        raise AssertionError


@pytest.mark.slow
def test_an_index_holds_the_vectors_of_all_chunks_in_order(tmp_path: Path):
    project = project_of(tmp_path, books=map(letters, ["abcdefghi", "zzzzab", "hello"]))
    settings = replace(ONE, sizes=(None, None, None), num_index_chunks=3, block_size=4, document_block_size=2)
    database = build_database(project, maker(), settings, num_processes=1)
    manifest = build_index(project, maker(), settings, database, num_processes=1)
    texts = ["abcd", "efgh", "i", "ab", "hell", "o"]
    index = VectorIndex.open(filled_path(project, "Flat"), string="Flat", dimension=16, num_vectors=len(texts))
    found = index.search(LetterEmbedder().embed(texts), 1)
    assert found.ids[:, 0].tolist() == list(range(6))
    assert manifest.counts == {"vectors": 6}
    assert len(manifest.blocks) == 2
    names = ["added.json", "added_1.000_1.000.faissindex", "empty.json", "empty_1.000.faissindex"]
    assert sorted(os.listdir(project.index_folder("faiss-par-add", "Flat"))) == names
    again = ChunkMaker(maker().tokenizer, Forbidden(), 0, 4)
    assert build_index(project, again, settings, database, num_processes=1) == manifest


def output_at(folder: Path, of: object) -> Output:
    return Output(folder=os.fspath(folder), task="texts", identity={"of": of}, pattern="*.txt")


def publish(folder: Path, *texts: str, of: object = None, overwrite: bool = False) -> OutputManifest:
    """Publishes files 0.txt, 1.txt and so on with these texts."""
    with NewOutput(output_at(folder, of or [1, 2])) as output:
        for number, text in enumerate(texts):
            output.file(f"{number}.txt").write(text.encode())
        return output.publish({"n": len(texts)}, overwrite=overwrite)


def files_of(folder: Path) -> dict[str, str]:
    found = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    return {name: text for name, text in found.items() if name != MANIFEST}


def test_content_of_a_manifest(tmp_path: Path):
    manifest = publish(tmp_path, "one", "")
    assert json.loads((tmp_path / MANIFEST).read_text()) == {
        "version": 1,
        "task": "texts",
        "identity": {"of": [1, 2]},
        "counts": {"n": 2},
        "files": [
            {"name": "0.txt", "num_bytes": 3, "crc32": "7a6c86f1"},
            {"name": "1.txt", "num_bytes": 0, "crc32": "00000000"},
        ],
        "blocks": [],
    }
    assert OutputManifest.read(os.fspath(tmp_path / MANIFEST)) == manifest
    assert files_of(tmp_path) == {"0.txt": "one", "1.txt": ""}
    assert crc32_of(os.fspath(tmp_path / "0.txt")) == 0x7A6C86F1
    assert output_at(tmp_path, (1, 2)).finished() == manifest


def test_existing_output_is_replaced_only_with_overwrite(tmp_path: Path):
    publish(tmp_path, "a", "b", "c")
    with pytest.raises(OutputExistsError, match=r"`.*0\.txt` exists, and was made with other settings"):
        publish(tmp_path, "new", of="else")
    assert files_of(tmp_path) == {"0.txt": "a", "1.txt": "b", "2.txt": "c"}
    publish(tmp_path, "new", of="else", overwrite=True)
    assert files_of(tmp_path) == {"0.txt": "new"}
    assert sorted(os.listdir(tmp_path)) == ["0.txt", MANIFEST]


def datasets_of(made: RetroProject, settings: RetroBuildSettings = SETTINGS) -> list[RetroDataset | None]:
    samples = retro_samples(made, settings, LetterTokenizer())
    config = RetroSettings(
        retro_project_dir=made.folder, retro_chunk_length=4, retro_block_size=settings.block_size, retro_num_neighbors=2
    )
    return list(get_retro_datasets(config, samples, settings.sequence_length, EOD))


def test_neighbors_are_the_nearest_chunks_of_other_documents(tmp_path: Path, rng: np.random.Generator):
    made = project(tmp_path, rng)
    build(made)
    train, valid, test = datasets_of(made)
    assert test is None
    assert len(valid) >= 3
    database = made.database("train", chunk_length=4, eod_token_id=EOD)
    chunks = maker()
    vectors = chunks.embed(chunks.texts(database.gather(np.arange(len(database)))))
    documents = database.documents_of(np.arange(len(database))).tolist()
    for position in range(20):
        sample = train[position]
        own = [[int(sample["dataset_id"]), document] for document in sample["document_ids"].tolist()]
        others = [number for number in range(len(database)) if documents[number] not in own]
        for text, near in zip(sample["text"][:8].reshape(2, 1, 4), sample["neighbor_chunks"][:, :, 0], strict=True):
            found = near.tolist()
            if not chunks.texts(text)[0]:
                assert found == [-1, -1]
                continue
            distances = ((vectors - chunks.embed(chunks.texts(text))) ** 2).sum(axis=1)
            assert not set(found) - set(others)
            np.testing.assert_allclose(distances[found], np.sort(distances[others])[:2], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_builds_are_equal_and_resumed(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # for processes, which import the embedder
    corpora = project(tmp_path / "one", rng)
    other = copy_of(corpora, tmp_path / "two")
    build(corpora)
    # Databases are made by several processes in tests of their own.
    for task, num_processes in (("db-build", 1), ("index-build", 2), ("query-neighbors", 2)):
        build(other, tasks=[task], runner=local_runner(most_processes=2, num_processes=num_processes, num_workers=1))
    assert len(outputs_of(corpora)) > 5
    assert outputs_of(other) == outputs_of(corpora)
    times = {path: os.stat(path).st_mtime_ns for path in Path(corpora.folder).rglob("*.hdf5")}
    build(corpora)
    assert times == {path: os.stat(path).st_mtime_ns for path in Path(corpora.folder).rglob("*.hdf5")}
    assert not list(tmp_path.rglob("*.job"))


class ShiftedEmbedder(LetterEmbedder):
    """Returns other vectors under the same name."""

    def embed(self, texts, /):
        return super().embed(texts) + np.float32(1)


def verify(made: RetroProject, settings: RetroBuildSettings = SETTINGS, **options) -> list[str]:
    who = {"tokenizer": LetterTokenizer(), "embedder": LetterEmbedder(), "fraction": 1.0}
    return verify_retro(made.folder, settings, **(who | options))


@pytest.fixture
def made(tmp_path: Path, rng: np.random.Generator) -> RetroProject:
    found = project(tmp_path, rng)
    build(found)
    return found


@pytest.mark.slow
def test_a_changed_byte_is_found_anywhere(made: RetroProject, rng: np.random.Generator):
    assert verify(made) == verify(made, fraction=0.01) == []
    paths = [path for path in Path(made.folder).rglob("*") if path.suffix in (".hdf5", ".faissindex")]
    assert len(paths) > 10
    for path in paths:
        data = path.read_bytes()
        place = int(rng.integers(len(data)))
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        [problem] = damaged_files(made)
        assert problem.startswith(f"`{path}`: expected checksum ")
        path.write_bytes(data)


@pytest.mark.slow
def test_a_changed_embedder_of_the_same_name_is_found(made: RetroProject):
    problems = verify(made, embedder=ShiftedEmbedder())
    assert any(each.endswith("chunks 0 to 9 differ when recomputed") for each in problems)
    assert any("`" + made.index_folder("faiss-par-add", "Flat") in each for each in problems)
    assert not any(made.database_folder in each for each in problems)  # has no vectors


def neighbors_of(made: RetroProject) -> list[list[int]]:
    paths = sorted(Path(made.query_folder).glob("train_*/*.hdf5"))
    return [row for path in paths for row in open_array(str(path), NAME, shape=(None, None)).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("documents", [["zzzzzzz"] * 20, ["abcdefghijklmnopqrstuvwxy" * 3]])
def test_empty_chunks_and_single_documents_have_no_neighbors(tmp_path: Path, documents: list[str]):
    made = project_of(tmp_path, books=map(letters, documents))
    build(made, ONE)
    assert neighbors_of(made) == [[-1, -1]] * 4


@pytest.mark.slow
def test_replaced_data_are_noticed_and_rebuilt(tmp_path: Path, rng: np.random.Generator):
    made, fresh = project(tmp_path / "old", rng), project(tmp_path / "new", rng)
    build(made)
    copy_of(fresh, tmp_path / "old")
    for tasks in (["db-build"], ["index-build"], ["query-neighbors"]):
        with pytest.raises(OutputExistsError, match="was made with other settings or data"):
            build(made, tasks=tasks)
    build(made, overwrite=True)
    build(fresh)
    assert outputs_of(made) == outputs_of(fresh)
