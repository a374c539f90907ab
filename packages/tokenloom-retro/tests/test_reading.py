"""Samples with neighbors: files of blocks and arrays, chunk databases, projects, and whether they belong together."""

import json
import os
import pickle
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from retro_projects import CHUNK_LENGTH, chunks_of, split_datasets, write_chunks, write_neighbors, write_project
from tests.support import EOD, StandInTokenizer, equal_samples, random_documents, write_corpus

from tokenloom.errors import ConfigError, DataMismatchWarning, DatasetFormatError, StorageError, TokenizerError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.testing.dataset_checks import check_dataset
from tokenloom_retro.assembled import RetroSettings, get_retro_datasets
from tokenloom_retro.block_files import Block, BlockPathMap, planned_blocks
from tokenloom_retro.chunk_database import DBDataset
from tokenloom_retro.dataset import RetroDataset
from tokenloom_retro.gpt_chunks import GPTChunkDataset
from tokenloom_retro.hdf5 import open_array
from tokenloom_retro.neighbor_match import check_neighbor_folder
from tokenloom_retro.neighbor_table import NeighborTable
from tokenloom_retro.project import RetroProject


def make_files(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()
    return os.fspath(folder)


def test_a_range_is_cut_into_blocks():
    bounds = [(0, 10, "q/000-010.hdf5"), (10, 20, "q/010-020.hdf5"), (20, 25, "q/020-025.hdf5")]
    assert planned_blocks("q", 25, 10) == [Block(*bound) for bound in bounds]
    assert planned_blocks("q", 0, 10) == []


def test_a_folder_is_read(tmp_path):
    folder = make_files(tmp_path / "q", "000-100.hdf5", "100-150.hdf5", "notes.txt", ".100-150.hdf5.tmp", ".x.hdf5")
    blocks = BlockPathMap.from_dir(folder, 100)
    assert (str(blocks), len(blocks), blocks.max_idx) == ("2 paths", 2, 150)
    assert (blocks[99], blocks[149]) == (f"{folder}/000-100.hdf5", f"{folder}/100-150.hdf5")
    assert blocks.block_path_map == {0: f"{folder}/000-100.hdf5", 100: f"{folder}/100-150.hdf5"}
    blocks.check(150)
    with pytest.raises(StorageError, match="no block has item 200: no block starts at item 200"):
        blocks[200]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["000-100", "200-250"], "expected a block that starts at 100 (a block is missing), found `200-250.hdf5`"),
        (["000-150", "100-200"], "expected blocks of 100 items, found `000-150.hdf5`"),
        (["000-100", "050-200"], "expected a block that starts at 100 (blocks overlap), found `050-200.hdf5`"),
        (["000-100", "100-150"], "expected blocks with 200 items in total, found 150 items"),
    ],
)
def test_missing_or_overlapping_blocks_are_errors(tmp_path, names, problem):
    folder = make_files(tmp_path / "q", *(f"{name}.hdf5" for name in names))
    with pytest.raises(StorageError, match=f"^{re.escape(f'`{folder}`: {problem}')}\n"):
        BlockPathMap.from_dir(folder, 100).check(200)


ARRAY = np.arange(20, dtype=np.int64).reshape(4, 5)


@pytest.fixture
def path(tmp_path):
    path = os.fspath(tmp_path / "rows.hdf5")
    with h5py.File(path, "w") as file:
        file.create_dataset("rows", data=ARRAY)
    return path


def test_contiguous_arrays_are_views_of_the_file(path):
    array = open_array(path, "rows", shape=(None, 5))
    assert array.tolist() == ARRAY.tolist()
    assert not array.flags.writeable
    assert not array.flags.owndata
    with open(path, "r+b") as stream:  # shows that no copy was made
        stream.seek(stream.read().index(ARRAY.tobytes()))
        stream.write(np.int64(77).tobytes())
    assert array[0, 0] == 77


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("other", (None, 5), "expected an array `other`, found `rows`"),
        ("rows", (None, 4), r"expected `rows` to be integers[n, 4], found int64[4, 5]"),
        ("rows", (None,), r"expected `rows` to be integers[n], found int64[4, 5]"),
    ],
)
def test_another_array_is_an_error(path, name, shape, problem):
    with pytest.raises(StorageError, match=f"^{re.escape(f'`{path}`: {problem}')}\nhint: "):
        open_array(path, name, shape=shape)


def test_a_truncated_file_is_an_error_wherever_it_ends(path, rng):
    whole = Path(path).read_bytes()
    with h5py.File(path) as file:
        last = file["rows"].id.get_offset() + ARRAY.nbytes
    for size in {0, 1, 8, 100, last - 1, *rng.integers(0, last, size=20).tolist()}:
        Path(path).write_bytes(whole[:size])
        with pytest.raises(StorageError, match=re.escape(f"`{path}`")):
            open_array(path, "rows", shape=(None, 5))


BOOKS = [[1, 2, 3, 4, 5, EOD], [6, 7], [EOD], [], [20, 21, 22, 23, 24, 25, 26, 27, 28, EOD]]
WEB = [[30, 31, 32, 33, EOD], [34, EOD]]


@pytest.fixture
def pairs(tmp_path):
    return [IndexedDataset(write_corpus(tmp_path / name, data)) for name, data in (("books", BOOKS), ("web", WEB))]


def with_rows(pairs, rows, **changes):
    settings = {"chunk_length": CHUNK_LENGTH, "eod_token_id": EOD}
    return DBDataset("db", pairs, np.array(rows, dtype=np.uint32).reshape(-1, 5), **(settings | changes))


@given(data=st.data())
def test_gathered_chunks_match_documents(tmp_path_factory, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    folder, length = tmp_path_factory.mktemp("gathered"), data.draw(st.integers(1, 9))
    corpora = [random_documents(rng, count=6, longest=20, vocab_size=30) for _ in range(2)]
    pairs = [IndexedDataset(write_corpus(folder / str(i), documents)) for i, documents in enumerate(corpora)]
    rows = [row for i, documents in enumerate(corpora) for row in chunks_of(documents, dataset=i, chunk_length=length)]
    database = with_rows(pairs, rows, chunk_length=length)
    ids = rng.integers(-1, len(rows), size=(3, 5)) if rows else np.full((3, 5), -1)
    found, after = database.gather(ids), database.following(ids, 3)
    for place in np.ndindex(ids.shape):
        number = int(ids[place])
        row = rows[number] if number >= 0 else (0, 0, 0, 0, 0)
        tokens = corpora[row[0]][row[1]][row[2] : row[3]].tolist() if number >= 0 else []
        assert found[place].tolist() == tokens + [EOD] * (length - len(tokens))
        expected = [number + i for i in range(3) if number >= 0 and row[:2] in [r[:2] for r in rows[number + i :][:1]]]
        assert after[place].tolist() == expected + [-1] * (3 - len(expected))
    database.check()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ((2, 0, 0, 4, 4), "chunk 1 of `db` is in dataset 2, but there are 2 datasets"),
        ((0, 0, 0, 5, 5), "chunk 1 of `db` must have 1 to 4 tokens, got 5"),
        ((0, 1, 0, 3, 3), "`db` has chunks outside of `{books}`: tokens [0, 3) of sequence 1 "),
        ((1, 2**32 - 1, 0, 3, 3), "`db` has chunks outside of `{web}`: sequence 4294967295 "),
    ],
)
def test_chunks_of_other_data_are_errors(pairs, row, problem):
    database = with_rows(pairs, [(0, 0, 0, 4, 4), row])
    problem = problem.format(books=pairs[0].path_prefix, web=pairs[1].path_prefix)
    for read in (lambda: database[1], lambda: database.gather([0, 1]), database.check):
        with pytest.raises(DatasetFormatError, match=f"^{re.escape(problem)}"):
            read()


def test_chunks_without_neighbors_and_neighbors_outside_the_database_are_errors(tmp_path):
    neighbors = np.array([[3, 1, 2], [0, -1, -1], [5, 6, 7], [-1, -1, -1], [7, 0, 4]], dtype=np.int64)
    for name, wrong in (("a", 8), ("b", 2**40), ("c", -2)):
        neighbors[3] = [2, wrong, 1]
        folder = tmp_path / name
        write_neighbors(folder, neighbors, block_size=2)
        table = NeighborTable(BlockPathMap.from_dir(str(folder), 2), num_neighbors=2, num_database_chunks=8)
        table.rows([0, 1, 2, 4])
        for number in (5, -1):
            with pytest.raises(DatasetFormatError, match=f"chunk {number} out of range: 5 chunks have neighbors\n"):
                table.rows([0, number])
        message = f"`{folder}/00002-00004.hdf5`: neighbors [2, {wrong}] of chunk 3 out of range"
        with pytest.raises(DatasetFormatError, match=f"^{re.escape(message)}: the database has 8 chunks\n"):
            table.rows([0, 3])


CORPORA = {"books": [[1, 2, 3, 4, 5, EOD], [6, 7]], "web/crawl": [[8, EOD], [EOD], [], [10, 11, 12, 13, EOD]]}


@pytest.fixture
def project(tmp_path):
    return RetroProject(write_project(tmp_path / "project", CORPORA, train_share=0.5))


def open_database(project, kind="train"):
    return project.database(kind, chunk_length=CHUNK_LENGTH, eod_token_id=EOD)


def test_databases_hold_the_chunks_of_their_documents(project):
    train, valid = open_database(project), open_database(project, "valid")
    assert train.chunks.tolist() == [[0, 0, 0, 4, 4], [0, 0, 4, 5, 1], [1, 0, 0, 1, 1]]
    assert valid.chunks.tolist() == [[0, 1, 0, 2, 2], [1, 3, 0, 4, 4]]
    assert len(open_database(project, "sampled")) == 0
    assert valid[1]["text"].tolist() == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        ("{}", "must be a non-empty list of datasets, got {}"),
        ('[{"ratio": 1.0, "prefix": "a", "n_docs": "3"}]', "expected `[0].n_docs` to be an integer, found '3'"),
    ],
)
def test_a_damaged_list_of_datasets_is_an_error(project, text, problem):
    Path(project.infos_path).write_text(text)
    with pytest.raises(DatasetFormatError, match=f"^{re.escape(f'`{project.infos_path}`: {problem}')}"):
        _ = project.infos


def test_replaced_data_and_an_incomplete_database_are_errors(project):
    write_chunks(project.merged_path("train"), chunks_of(CORPORA["books"]), num_written=2)
    with pytest.raises(StorageError, match=r"train.hdf5`: only 2 of 3 chunks were written"):
        open_database(project)
    write_corpus(project.data_prefix("books"), [[1, 2, 3]])
    with pytest.raises(DatasetFormatError, match=r"data/books`: expected 2 documents, found 1\nhint: the data changed"):
        open_database(RetroProject(project.folder))


FOUR_BOOKS = [[1, 2, 3, 4, 5, EOD], [6, 7, EOD], [EOD], [20, 21, 22, 23, 24, 25, 26, 27, 28, EOD]]


def make(
    folder, *, prefixes=("books",), num_samples=4, queried=None, neighbors=None, block_size=3, taken=2, retrieved=2
):
    """Returns samples of two chunks, with `taken` of three neighbors, in files of `block_size` chunks."""
    project = write_project(folder / "project", dict.fromkeys(prefixes, FOUR_BOOKS))
    samples, _ = split_datasets(project, list(prefixes), [num_samples, 0, 0])["train"]
    queried = len(samples) if queried is None else queried
    database = RetroProject(project).database("train", chunk_length=CHUNK_LENGTH, eod_token_id=EOD)
    if neighbors is None:
        neighbors = np.random.default_rng(3).integers(-1, len(database), size=(2 * queried, 3))
    query = write_neighbors(folder / "query", np.asarray(neighbors, dtype=np.int64), block_size=block_size)
    return RetroDataset(
        num_queried_samples=queried,
        block_size=block_size,
        db_dataset=database,
        chunk_dataset=GPTChunkDataset(samples, 2 * CHUNK_LENGTH, CHUNK_LENGTH),
        neighbor_path_map=BlockPathMap.from_dir(query, block_size),
        num_neighbors=taken,
        num_retrieved_chunks=retrieved,
    )


def test_neighbors_include_the_following_chunk(tmp_path):
    neighbors = [[0, 1, 5], [2, 3, 5], [5, -1, 5], [-1, -1, -1]]
    dataset = make(tmp_path, num_samples=2, queried=2, neighbors=neighbors)
    first, second = dataset[0], dataset[1]
    assert first["neighbor_chunks"].tolist() == [[[0, 1], [1, -1]], [[2, -1], [3, 4]]]
    assert first["neighbor_tokens"].tolist() == [
        [[1, 2, 3, 4, 5, 9, 9, 9], [5, 9, 9, 9, 9, 9, 9, 9]],
        [[6, 7, 9, 9, 9, 9, 9, 9], [20, 21, 22, 23, 24, 25, 26, 27]],
    ]
    # Megatron would return the last chunk for a missing one, and the first chunk after the last.
    assert second["neighbor_chunks"].tolist() == [[[5, -1], [-1, -1]], [[-1, -1], [-1, -1]]]
    assert second["neighbor_tokens"].tolist() == [[[28, *[9] * 7], [9] * 8], [[9] * 8, [9] * 8]]
    assert list(first) == ["text", "neighbor_chunks", "neighbor_tokens"]
    assert [array.dtype for array in first.values()] == [np.int64] * 3
    assert first["text"].tolist() == dataset.sample_dataset[0]["text"].tolist()


@pytest.mark.parametrize(("retrieved", "taken", "block_size"), [(1, 3, 1), (2, 1, 3), (3, 3, 100)])
def test_samples_match_the_slow_reference(tmp_path, rng, retrieved, taken, block_size):
    chunks = [[1, 2, 3, 4], [5, 9, 9, 9], [6, 7, 9, 9], [20, 21, 22, 23], [24, 25, 26, 27], [28, 9, 9, 9]]
    document = [0, 0, 1, 3, 3, 3]
    neighbors = rng.integers(-1, 6, size=(8, 3))
    dataset = make(tmp_path, neighbors=neighbors, block_size=block_size, taken=taken, retrieved=retrieved)
    assert len(dataset) == 4
    for number, chunk, neighbor, after in np.ndindex(4, 2, taken, retrieved):
        nearest = int(neighbors[2 * number + chunk, neighbor])
        wanted = nearest + after
        is_there = nearest >= 0 and wanted < 6 and document[wanted] == document[nearest]
        sample, place = dataset[number], slice(after * CHUNK_LENGTH, (after + 1) * CHUNK_LENGTH)
        assert sample["neighbor_chunks"][chunk, neighbor, after] == (wanted if is_there else -1)
        expected = chunks[wanted] if is_there else [EOD] * CHUNK_LENGTH
        assert sample["neighbor_tokens"][chunk, neighbor, place].tolist() == expected


@pytest.mark.parametrize("prefixes", [pytest.param(["books"], marks=pytest.mark.slow), ["books", "more", "again"]])
def test_all_ways_to_read_samples_agree(tmp_path, prefixes):
    dataset = make(tmp_path, prefixes=prefixes, num_samples=7)
    assert "worker processes yield the samples" in check_dataset(dataset).passed
    batch = dataset.batch(range(len(dataset)))
    for position in range(len(dataset)):
        sample = dataset.sample(position)
        assert equal_samples(sample, {name: array[position] for name, array in batch.items()})
        assert equal_samples(sample, dataset[position])
    assert list(batch) == [*(["dataset_id"] if len(prefixes) > 1 else []), "text", "neighbor_chunks", "neighbor_tokens"]
    assert dataset.batch([])["neighbor_tokens"].shape == (0, 2, 2, 2 * CHUNK_LENGTH)
    assert equal_samples(pickle.loads(pickle.dumps(dataset)).batch([5, 1]), dataset.batch([5, 1]))


def test_samples_wrap_around_and_positions_out_of_range_are_errors(tmp_path):
    dataset = make(tmp_path, num_samples=5, queried=3)
    count = len(dataset)
    assert equal_samples(dataset.batch([4, 3]), dataset.batch([1, 0]))
    assert equal_samples(dataset[-1], dataset[(count - 1) % 3])
    for number in (count, -count - 1):
        with pytest.raises(IndexError, match=f"sample index {number} out of range: the dataset has {count} samples"):
            dataset.batch([0, number])
    with pytest.raises(ConfigError, match="must not be None"):
        dataset.batch([0, None])


SIZES = (12, 4, 0)
DOCUMENTS = [[token % 90 + 10 for token in range(number, number + 9)] + [EOD] for number in range(40)]


class Prepared:
    """A project with neighbors of its train and valid samples."""

    def __init__(self, folder, **changes):
        self.folder = write_project(folder / "project", {"books": DOCUMENTS, "web": DOCUMENTS[:9]})
        self.samples = split_datasets(self.folder, ["books", "web"], SIZES, **({"split": "3,1,0"} | changes))
        num_chunks = sum(info.n_chunks_train for info in RetroProject(self.folder).infos)
        rng = np.random.default_rng(5)
        self.neighbors = {}
        for key in ("train", "valid"):
            _, count = self.samples[key]
            self.neighbors[key] = rng.integers(-1, num_chunks, size=(2 * count, 3))
            write_neighbors(Path(self.neighbor_folder(key)), self.neighbors[key], block_size=5)

    def neighbor_folder(self, key):
        return RetroProject(self.folder).neighbor_folder(key, self.samples[key][0])

    def read(self, *, samples=None, **changes):
        given = {"retro_project_dir": self.folder, "retro_chunk_length": CHUNK_LENGTH, "retro_block_size": 5}
        return get_retro_datasets(RetroSettings(**given, **changes), samples or self.samples, 2 * CHUNK_LENGTH, EOD)


def test_each_split_has_its_own_neighbors(tmp_path):
    prepared = Prepared(tmp_path)
    train, valid, test = prepared.read()
    assert (test, train.num_queried_samples) == (None, 12)
    for key, dataset in (("train", train), ("valid", valid)):
        found = dataset.batch(range(4))["neighbor_chunks"][..., 0]
        assert found.reshape(-1, 2).tolist() == prepared.neighbors[key][:8, :2].tolist()


def test_neighbors_of_another_seed_are_errors(tmp_path):
    prepared = Prepared(tmp_path)
    others = split_datasets(prepared.folder, ["books", "web"], SIZES, split="3,1,0", random_seed=8)
    with pytest.raises(ConfigError, match=r"no folder `.*` with neighbors of train\nhint: use the sizes, "):
        prepared.read(samples=others)
    names = {key: os.path.basename(prepared.neighbor_folder(key)) for key in ("train", "valid")}
    with pytest.raises(ConfigError, match="does not have the neighbors of these train samples"):
        prepared.read(samples=others, retro_neighbor_dirs=names)


def test_fewer_neighbors_than_samples_are_errors(tmp_path):
    prepared = Prepared(tmp_path)
    more = {**prepared.samples, "train": (prepared.samples["train"][0], 11)}
    with pytest.raises(StorageError, match="expected blocks with 22 items in total, found 24"):
        prepared.read(samples=more)
    train, _, _ = prepared.read(samples=more, retro_verify_neighbor_count=False)
    assert train[10]["neighbor_chunks"].shape == (2, 2, 2)


def test_a_tokenizer_with_fewer_ids_is_an_error(tmp_path):
    prepared = Prepared(tmp_path, tokenizer=StandInTokenizer(vocab_size=40))
    with pytest.raises(TokenizerError, match=r"out of range: the tokenizer has 40 ids\nhint: use the tokenizer that"):
        prepared.read()


SAME_DOCUMENTS = [[1, 2, 3, 4, 5, 6, EOD]] * 40
SPLIT = "8,2,0"


@pytest.fixture
def folder(tmp_path):
    return write_project(tmp_path / "project", {"books": SAME_DOCUMENTS, "web": SAME_DOCUMENTS})


def samples(folder, key="train", *, prefixes=("books", "web"), sizes=(20, 5, 0), **changes):
    settings = {"split": SPLIT, "split_preprocessing": SPLIT} | changes
    return split_datasets(folder, list(prefixes), sizes, **settings)[key][0]


def made_for(folder, dataset, key="train"):
    os.makedirs(path := RetroProject(folder).neighbor_folder(key, dataset), exist_ok=True)
    return path


def write_config(folder, path, **changes):
    gpt = {"seed": 7, "seq_length": 2 * CHUNK_LENGTH, "split": SPLIT, "train_samples": 20, "chunk_length": CHUNK_LENGTH}
    made_with = {f"retro_gpt_{name}": value for name, value in gpt.items()}
    made_with["retro_neighbor_dirs"] = {"train": os.path.basename(path)}
    Path(folder, "config.json").write_text(json.dumps(made_with | changes))


def check(folder, path, dataset, key="train"):
    check_neighbor_folder(RetroProject(folder), path, key, dataset, num_samples=20, chunk_length=CHUNK_LENGTH)


def test_a_split_with_other_documents_is_an_error(folder):
    path = made_for(folder, samples(folder, "valid"), "valid")
    dataset = samples(folder, "valid", split="9,1,0")
    expected = r"expected documents \[0.8, 1\) of the data, found \[0.9, 1\): `split` differs"
    with pytest.raises(ConfigError, match=rf"does not have the neighbors of these valid samples: {expected}\nhint: "):
        check(folder, path, dataset, "valid")
    check(folder, made_for(folder, dataset, "valid"), dataset, "valid")


@pytest.mark.parametrize("changes", [{"sizes": (21, 5, 0)}, {"prefixes": ("web", "books")}], ids=str)
def test_neighbors_of_other_samples_are_errors(folder, changes):
    path, dataset = made_for(folder, samples(folder, **changes)), samples(folder)
    with pytest.raises(ConfigError, match=rf"expected `train_{dataset.unique_description_hash}`, found `train_"):
        check(folder, path, dataset)
    with pytest.warns(DataMismatchWarning, match="does not have the neighbors of these train samples"):
        check(folder, path, samples(folder, allow_data_mismatch=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"retro_gpt_seed": 8}, "`retro_gpt_seed` was 8, but `random_seed` is 7"),
        ({"retro_neighbor_dirs": {"train": "train_x"}}, "the recorded neighbor folder of train is `train_x`"),
    ],
)
def test_a_moved_project_is_recognised_by_its_settings(folder, tmp_path, changes, problem):
    path = made_for(folder, samples(folder))
    write_config(folder, path)
    moved = os.fspath(tmp_path / "moved")
    shutil.move(folder, moved)
    path = os.path.join(moved, "query", os.path.basename(path))
    dataset = samples(moved)
    assert dataset.unique_description_hash not in path
    check(moved, path, dataset)
    write_config(moved, path, **changes)
    with pytest.raises(ConfigError, match=f"config.json`, {problem}\nhint: "):
        check(moved, path, dataset)
