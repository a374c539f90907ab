"""Neighbors of samples: literal ones, those that there are none of, and what they must be searched again for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import EOD, LetterEmbedder, LetterTokenizer, letters, project_of
from tests.retro.whole import SETTINGS, build, copy_of, outputs_of, project

from tokenloom.errors import ConfigError, OutputExistsError, StorageError
from tokenloom.retro.block_job import differing_blocks
from tokenloom.retro.build import chunk_maker, neighbor_tasks
from tokenloom.retro.hdf5 import open_array
from tokenloom.retro.neighbor_table import NAME
from tokenloom.retro.project import RetroProject

ONE = replace(SETTINGS, data=((1.0, "books"),), split="100,0,0", sizes=(2, None, None), num_index_chunks=0)


def neighbors_of(made: RetroProject, manifest: str = "query-neighbors train") -> list[list[int]]:
    paths = sorted(Path(made.query_folder).glob(f"{manifest.split()[1]}_*/*.hdf5"))
    return [row for path in paths for row in open_array(str(path), NAME, shape=(None, None)).tolist()]


def test_each_chunk_has_the_nearest_ones_of_other_documents(tmp_path: Path):
    # Samples are of 8 tokens and one more: two documents of 5 tokens and the ends of both.
    documents = [letters("aaaaa"), letters("bbbbb"), letters("aaaab"), letters("bbbba")] * 5
    made = project_of(tmp_path, books=documents)
    manifests = build(made, ONE)
    database = made.database("train", chunk_length=4, eod_token_id=EOD)
    [task] = neighbor_tasks(made, ONE, chunk_maker(ONE, LetterTokenizer(), LetterEmbedder()), manifests["index-build"])
    owners, offsets = task.samples.documents_of(np.arange(2))
    found = neighbors_of(made)
    assert len(found) == 4
    for chunk, row in enumerate(found):
        own = owners[offsets[chunk // 2] : offsets[chunk // 2 + 1]].tolist()
        assert -1 not in row
        assert all(each not in own for each in database.documents_of(np.array(row)).tolist())
    assert manifests["query-neighbors train"].counts == {"chunks": 4}
    recorded = manifests["query-neighbors train"].blocks
    assert differing_blocks(task, recorded, fraction=1.0) == []
    assert len(differing_blocks(task, [recorded[0] ^ 1], fraction=1.0)) == 1


def test_chunks_that_say_nothing_and_documents_that_are_alone_have_no_neighbors(tmp_path: Path):
    made = project_of(tmp_path / "silent", books=[letters("zzzzzzz")] * 20)
    build(made, ONE)
    assert neighbors_of(made) == [[-1, -1]] * 4
    made = project_of(tmp_path / "alone", books=[letters("abcdefghijklmnopqrstuvwxy" * 3)])
    build(made, ONE)
    assert neighbors_of(made) == [[-1, -1]] * 4


def test_data_that_were_replaced_are_noticed_and_nothing_of_the_old_ones_stays(
    tmp_path: Path, rng: np.random.Generator
):
    made, fresh = project(tmp_path / "old", rng), project(tmp_path / "new", rng)
    build(made)
    copy_of(fresh, tmp_path / "old")
    for tasks in (["db-build"], ["index-build"], ["query-neighbors"]):
        with pytest.raises(OutputExistsError, match="was made with other settings, of other data"):
            build(made, tasks=tasks)
    build(made, overwrite=True)
    build(fresh)
    assert outputs_of(made) == outputs_of(fresh)


def test_texts_of_valid_that_were_replaced_get_other_neighbors(tmp_path: Path, rng: np.random.Generator):
    made = project(tmp_path / "old", rng)
    build(made)
    data = {}
    for name in ("books", "web"):
        path = Path(made.data_prefix(name) + ".bin")
        tokens = np.fromfile(path, dtype=np.uint16)
        data[name] = tokens.copy()
        valid = len(tokens) * 9 // 10  # some of the last documents, which are not retrieved
        tokens[valid:] = np.where(tokens[valid:] == EOD, EOD, tokens[valid:] % 25 + 1)
        tokens.tofile(path)
    build(made, overwrite=True)
    fresh = copy_of(made, tmp_path / "new")
    build(fresh)
    assert outputs_of(made) == outputs_of(fresh)


def test_an_index_that_was_replaced_by_hand_is_told(tmp_path: Path, rng: np.random.Generator):
    made = project(tmp_path, rng)
    manifests = build(made, tasks=["index-build"])
    [path] = Path(made.folder).rglob("added*.faissindex")
    path.write_bytes(path.read_bytes()[:-20])
    chunks = chunk_maker(SETTINGS, LetterTokenizer(), LetterEmbedder())
    task = neighbor_tasks(made, SETTINGS, chunks, manifests["index-build"])[0]
    with pytest.raises(StorageError, match="is no whole index of `faiss`"), task.maker(1):
        raise AssertionError
    with pytest.raises(OutputExistsError):
        build(made)
    build(made, overwrite=True)
    assert outputs_of(made) == outputs_of(_built(copy_of(made, tmp_path / "again")))


def _built(made: RetroProject) -> RetroProject:
    build(made)
    return made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nprobe": 3}, "the index 'Flat' has no `nprobe`"),
        ({"split": "100,0,0"}, "expected documents of valid for 3 samples, found none"),
        ({"sizes": (None, 0, None)}, "expected a number of samples"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    tmp_path: Path, rng: np.random.Generator, changes: dict[str, object], message: str
):
    with pytest.raises(ConfigError, match=message):
        build(project(tmp_path, rng), replace(SETTINGS, **changes))
