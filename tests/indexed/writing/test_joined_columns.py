import os
import re

import numpy as np
import pytest
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.origins import add_hashes, add_origins, files_of, hashes_beside, origins_beside, random_runs, runs_of
from tests.indexed.pairs import write_pair
from tests.indexed.writing.pairs import part

from tokenloom import IndexedDataset, IndexedDatasetBuilder, build_catalogue, merge_datasets, write_concatenated
from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom.indexed.columns import add_column, open_column, remove_column
from tokenloom.indexed.origins import Origins, read_origins
from tokenloom.indexed.verify import verify_dataset

WAYS = ["merge", "catalogue"]


@pytest.fixture
def pairs(tmp_path):
    return [write_recorded(tmp_path / "a", [[[1, 2]], [], [[3]]]), write_recorded(tmp_path / "b", [[[4], [5, 6]]])]


def join(prefixes, output, way):
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
        f"columns ['hashes', 'origins'] of `{pairs[0]}` are dropped; use `merge_datasets` to keep them"
    ]


def test_what_is_kept_of_parts_is_as_with_lists(tmp_path, rng, monkeypatch):
    monkeypatch.setattr("tokenloom.indexed.writing.concatenate._ROWS_AT_ONCE", 50)
    monkeypatch.setattr("tokenloom.indexed.writing.concatenate._BLOCK_ROWS", 70)
    parts, origins, hashes, weights, qualities = [], [], [], [], []
    for name in "abc":
        count = int(rng.integers(1, 400))
        corpus = [[[1] * size for size in rng.integers(0, 9, rng.integers(0, 3))] for _ in range(count)]
        prefix = write_pair(tmp_path / name, corpus)
        ends = np.cumsum([0, *(sum(map(len, document)) for document in corpus)])
        weight = rng.random((int(ends[-1]), 2), dtype=np.float32)
        add_column(prefix, "weight", [weight], dtype=np.float32)
        rows = np.cumsum([0, *map(len, corpus)])
        quality = rng.integers(0, 99, int(rows[-1]))
        add_column(prefix, "quality", [quality], dtype=np.int16, kind="sequence")
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
        weights += [each for number in chosen for each in weight[ends[number] : ends[number + 1]].tolist()]
        qualities += [each for number in chosen for each in quality[rows[number] : rows[number + 1]].tolist()]
    write_concatenated(parts, f"{tmp_path}/all")
    assert origins_beside(f"{tmp_path}/all") == origins
    assert hashes_beside(f"{tmp_path}/all") == hashes
    joined = IndexedDataset(f"{tmp_path}/all")
    assert open_column(joined, "weight").data.tolist() == weights
    assert open_column(joined, "quality").data.tolist() == qualities
    assert verify_dataset(joined.path_prefix).ok


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`{b}` has no column `w`, but `{a}` has"),
        ({"dtype": "float32"}, "column `w` is uint8[] per token of tokens, padding 0 in `{a}`, and float32[]"),
        (
            {"of": "label"},
            "column `w` is uint8[] per token of tokens, padding 0 in `{a}`, and uint8[] per token of label",
        ),
    ],
)
def test_a_column_per_token_is_never_dropped_silently(tmp_path, pairs, way, options, message):
    for prefix, changes in zip(pairs, ({}, options), strict=True):
        if changes or prefix == pairs[0]:
            rows = np.zeros(IndexedDataset(prefix).num_tokens)
            add_column(prefix, "w", [rows], **{"dtype": "uint8", **changes})
    expected = re.escape(message.format(a=pairs[0], b=pairs[1]))
    with pytest.raises(ConfigError, match=expected):
        join(pairs, f"{tmp_path}/all", way)
    assert not os.path.exists(f"{tmp_path}/all.idx")


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
    remove_column(pairs[0], "origins")
    join_all(pairs, output, overwrite=True)
    assert read_origins(output) is None
