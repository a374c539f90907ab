"""Whether a project is what was made: bytes that change, data that change, blocks that come out otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import EOD, LetterEmbedder, LetterTokenizer, project_of
from tests.retro.whole import SETTINGS, build, project

from tokenloom.errors import ConfigError
from tokenloom.retro.build import RetroBuildSettings
from tokenloom.retro.project import RetroProject
from tokenloom.retro.verify import damaged_files, verify_retro


class ShiftedEmbedder(LetterEmbedder):
    """Says that it is the same, and is not."""

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


def test_what_was_made_is_what_comes_out_again(made: RetroProject):
    assert damaged_files(made) == []
    assert verify(made) == []
    assert verify(made, fraction=0.01) == []


def test_a_byte_that_changed_anywhere_is_found(made: RetroProject, rng: np.random.Generator):
    paths = [path for path in Path(made.folder).rglob("*") if path.suffix in (".hdf5", ".faissindex")]
    assert len(paths) > 10
    for path in paths:
        data = path.read_bytes()
        place = int(rng.integers(len(data)))
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        [problem] = damaged_files(made)
        assert problem.startswith(f"`{path}`: expected bytes with the checksum ")
        path.write_bytes(data)
    assert damaged_files(made) == []


def test_files_that_are_shorter_or_gone_and_manifests_that_are_none(made: RetroProject):
    individual = Path(made.individual_folder("books"))
    short, gone = sorted(individual.glob("*.hdf5"))[:2]
    size = short.stat().st_size
    short.write_bytes(short.read_bytes()[:-1])
    gone.unlink()
    (Path(made.database_folder) / "manifest.json").write_text("{")
    problems = verify(made)
    assert f"`{short}`: expected {size:,} bytes, found {size - 1:,}" in problems
    assert any(each.startswith(f"`{gone}`: expected a file of ") for each in problems)
    assert any("is no manifest" in each for each in problems)
    assert len(problems) == 3


def test_an_output_that_is_missing_is_named_and_what_needs_it_is_not_asked(made: RetroProject):
    manifest = Path(made.database_folder) / "manifest.json"
    manifest.unlink()
    assert verify(made) == [f"`{manifest}`: expected the manifest of database, found none"]


def test_an_embedder_that_gives_other_vectors_under_the_same_name(made: RetroProject):
    problems = verify(made, embedder=ShiftedEmbedder())
    assert any(each.endswith("chunks 0 to 9 come out otherwise when they are made again") for each in problems)
    assert any("`" + made.index_folder("faiss-par-add", "Flat") in each for each in problems)
    assert not any(made.database_folder in each for each in problems)  # which has no vectors


def test_settings_and_data_that_are_others_now_are_told(made: RetroProject):
    problems = verify(made, replace(SETTINGS, num_neighbors=1))
    assert len(problems) == 2
    assert all(each.endswith("would be made of other things now: num_neighbors was 2, and is 1") for each in problems)
    project_of(Path(made.folder) / "new", books=[[1, 2, EOD]] * 30)
    for end in (".bin", ".idx"):
        Path(f"{made.folder}/new/data/books{end}").replace(f"{made.data_prefix('books')}{end}")
    [problem] = verify(made)
    beginning = (
        f"`{made.individual_folder('books')}/manifest.json`: chunks of books would be made of other things now: "
    )
    assert problem.startswith(f"{beginning}data was ")


def test_a_fraction_of_nothing_is_refused(made: RetroProject):
    with pytest.raises(ConfigError, match="expected a fraction above 0 and at most 1, found 0"):
        verify(made, fraction=0)
