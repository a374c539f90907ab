"""Origins and hashes of pairs that are joined, cut and catalogued."""

from __future__ import annotations

import os

import numpy as np
import pytest
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.origins import add_hashes, add_origins, files_of, hashes_beside, origins_beside, random_runs, runs_of
from tests.indexed.pairs import write_pair
from tests.indexed.writing.pairs import part

from tokenloom import IndexedDatasetBuilder, build_catalogue, merge_datasets, write_concatenated
from tokenloom.errors import OutputExistsError
from tokenloom.indexed.manifests import read_manifest
from tokenloom.indexed.origins import Origins, read_origins
from tokenloom.indexed.verify import verify_dataset

WAYS = ["merge", "catalogue"]


@pytest.fixture
def pairs(tmp_path):
    """Returns two pairs of three and of one document, with manifests."""
    return [
        write_recorded(tmp_path / "a", [[[1, 2]], [], [[3]]]),
        write_recorded(tmp_path / "b", [[[4], [5, 6]]]),
    ]


def join(prefixes: list[str], output: str, way: str) -> str:
    if way == "merge":
        merge_datasets(prefixes, output)
    else:
        build_catalogue(prefixes, output)
    return output


@pytest.mark.parametrize("way", WAYS)
def test_origins_and_hashes_are_joined(tmp_path, pairs, way):
    for prefix in pairs:
        add_origins(prefix)
    hashes = [each for prefix in pairs for each in add_hashes(prefix)]
    output = join(pairs, f"{tmp_path}/all", way)
    first, second = (f"{prefix}.jsonl" for prefix in pairs)
    assert origins_beside(output) == [(first, 2), (first, 3), (first, 4), (second, 2)]
    assert hashes_beside(output) == hashes
    facts = read_manifest(output).pair
    assert facts.origins is not None
    assert facts.hashes is not None
    assert verify_dataset(output).ok


@pytest.mark.parametrize("way", WAYS)
def test_documents_of_pairs_without_origins_are_not_known(tmp_path, pairs, way):
    add_origins(pairs[1])
    add_hashes(pairs[0])
    output = join(pairs, f"{tmp_path}/all", way)
    assert origins_beside(output) == [None, None, None, (f"{pairs[1]}.jsonl", 2)]
    assert hashes_beside(output) is None
    assert verify_dataset(output).ok


def test_what_lies_beside_a_pair_that_a_builder_appends_is_left_there(tmp_path, pairs, caplog):
    add_origins(pairs[0])
    add_hashes(pairs[0])
    with IndexedDatasetBuilder(f"{tmp_path}/all.bin", dtype=np.uint16) as builder:
        builder.add_index(pairs[0])
        builder.finalize(f"{tmp_path}/all.idx")
    assert (origins_beside(f"{tmp_path}/all"), hashes_beside(f"{tmp_path}/all")) == (None, None)
    assert caplog.messages == [
        f"the ['origins', 'hashes'] of `{pairs[0]}` are not appended with it: `merge_datasets` joins them"
    ]


def test_pieces_of_a_wanted_size_have_the_origins_of_their_documents(tmp_path):
    prefix = write_pair(tmp_path / "a", [[[number] * (1 + number % 3)] for number in range(30)])
    add_origins(prefix)
    hashes = add_hashes(prefix)
    pieces = [piece.path_prefix for piece in merge_datasets([prefix], f"{tmp_path}/piece", part_bytes=40)]
    assert len(pieces) > 3
    found = [origin for piece in pieces for origin in origins_beside(piece)]
    assert found == [(f"{prefix}.jsonl", 2 + number) for number in range(30)]
    assert [each for piece in pieces for each in hashes_beside(piece)] == hashes


def test_what_is_kept_of_parts_is_as_with_lists(tmp_path, rng, monkeypatch):
    monkeypatch.setattr("tokenloom.indexed.writing.concatenate._ROWS", 50)  # read at once
    parts, origins, hashes = [], [], []
    for name in "abc":
        count = int(rng.integers(1, 400))
        prefix = write_pair(tmp_path / name, [[[1]]] * count)
        runs = np.concatenate([random_runs(rng, count, 2), runs_of([(0, 1, count)])])
        whole = Origins.from_runs(files_of("both.jsonl", f"{prefix}.jsonl"), [runs])
        cut = Origins.from_runs(whole.files, whole.pieces(range(count)))
        if name != "b":
            add_origins(prefix, cut)
        mine = add_hashes(prefix)
        documents = range(*sorted(rng.integers(0, count + 1, 2).tolist()))
        kept = (rng.random(count) < rng.random()).tolist()
        parts.append(part(prefix, documents=documents, kept=kept))
        chosen = [number for number in documents if kept[number]]
        beside = origins_beside(prefix) or [None] * count
        origins += [beside[number] for number in chosen]
        hashes += [mine[number] for number in chosen]
    write_concatenated(parts, f"{tmp_path}/all")
    assert origins_beside(f"{tmp_path}/all") == origins
    assert hashes_beside(f"{tmp_path}/all") == hashes


@pytest.mark.parametrize("join_all", [merge_datasets, build_catalogue])
def test_a_result_of_other_origins_is_another_one(tmp_path, pairs, join_all):
    output = f"{tmp_path}/all"
    join_all(pairs, output)
    notices: list[str] = []
    join_all(pairs, output, notice=notices.append)
    assert len(notices) == 1
    add_origins(pairs[0])
    with pytest.raises(OutputExistsError):
        join_all(pairs, output)
    join_all(pairs, output, overwrite=True)
    assert read_origins(output).num_known == 3
    join_all(pairs, output, notice=notices.append)
    assert len(notices) == 2
    os.unlink(f"{pairs[0]}.origins")
    join_all(pairs, output, overwrite=True)
    assert read_origins(output) is None
