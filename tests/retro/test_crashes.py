"""Builds that are killed, find the disk full, or meet each other."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import LetterEmbedder
from tests.retro.whole import SETTINGS, assert_whole, build, copy_of, outputs_of, project

from tokenloom.errors import ConfigError, OutputExistsError, TokenloomError
from tokenloom.retro.block_job import local_blocks
from tokenloom.retro.hdf5 import write_arrays

ROOT = Path(__file__).parents[2]
RUN = local_blocks(num_processes=1, num_workers=1)


class Meddler(LetterEmbedder):
    """Lets something else happen when it is first asked for vectors."""

    def __init__(self, happens) -> None:
        self._happens = happens

    def embed(self, texts, /):
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        return super().embed(texts)


def test_builds_that_end_at_any_call_go_on_to_the_same_bytes(tmp_path: Path, seed: int):
    command = [sys.executable, "-m", "tests.retro.kill_builds", str(tmp_path), str(seed), "6"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) >= 1  # the first of all dies, since half of all calls come after it


def test_two_builds_at_once_make_it_once(tmp_path: Path, rng: np.random.Generator):
    alone = project(tmp_path / "alone", rng)
    expected = build(alone, runner=RUN)
    shared = copy_of(alone, tmp_path / "shared")
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: build(shared, runner=RUN), range(3)))
    assert outputs_of(shared) == outputs_of(alone)
    assert_whole(shared)
    for each in found:
        assert each["index-build"] == expected["index-build"]
        assert each["query-neighbors train"].blocks == expected["query-neighbors train"].blocks
    assert not list(tmp_path.rglob("*.job*"))


def test_a_build_with_other_settings_is_refused_while_one_runs(tmp_path: Path, rng: np.random.Generator):
    made, refused = project(tmp_path, rng), []

    def other(**changes: object) -> None:
        with pytest.raises((ConfigError, OutputExistsError)) as caught:
            build(made, replace(SETTINGS, **changes), runner=RUN)
        refused.append(caught.value.message)

    def meddle() -> None:
        other(chunk_length=2)
        other(block_size=5)
        other(num_index_chunks=9)

    build(made, runner=RUN, embedder=Meddler(meddle))
    assert not list(Path(made.database_folder).rglob("*.job"))
    assert "exists, and was made with other settings" in refused[0]
    assert "another process works on another job in" in refused[1]
    assert "block_size was 16, and is 5" in refused[1]
    assert "exists, and was made with other settings" in refused[2]
    fresh = copy_of(made, tmp_path / "fresh")
    build(fresh, runner=RUN)
    assert outputs_of(made) == outputs_of(fresh)


def test_data_that_are_replaced_while_a_build_runs_are_noticed_by_the_next(tmp_path: Path, rng: np.random.Generator):
    made, other = project(tmp_path / "made", rng), project(tmp_path / "other", rng)
    with suppress(TokenloomError):  # or it ends, with what it had mapped
        build(made, runner=RUN, embedder=Meddler(lambda: copy_of(other, tmp_path / "made")))
    with pytest.raises(OutputExistsError, match="of other data"):
        build(made, runner=RUN)
    build(made, runner=RUN, overwrite=True, restart=True)
    build(other, runner=RUN)
    assert outputs_of(made) == outputs_of(other)


def test_what_something_else_made_is_not_replaced_unasked(tmp_path: Path, rng: np.random.Generator):
    made = project(tmp_path / "theirs", rng)
    build(made, runner=RUN)
    for path in Path(made.folder).rglob("*.json"):
        if path.name in ("manifest.json", "empty.json", "added.json"):
            path.unlink()  # which the reference does not write
    before = outputs_of(made)
    with pytest.raises(OutputExistsError, match="or by something else"):
        build(made, runner=RUN)
    assert outputs_of(made) == before  # and no block was made in vain
    write_arrays(f"{made.individual_folder('books')}/00-30.hdf5", {"chunks_valid": np.zeros((1, 4), np.uint32)})
    build(made, runner=RUN, overwrite=True)
    fresh = copy_of(made, tmp_path / "ours")
    build(fresh, runner=RUN)
    assert outputs_of(made) == outputs_of(fresh)
    assert_whole(made)
