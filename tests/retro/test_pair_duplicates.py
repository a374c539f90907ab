"""Near duplicates of pairs: literal reports, what does not count, the files of them, and approximate candidates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import EOD, letters, maker
from tests.support import write_corpus, write_sentences

from tokenloom.errors import InputError
from tokenloom.retro.neighbor_order import order_by_neighbors
from tokenloom.retro.pair_duplicates import (
    NearDuplicates,
    describe_near_duplicates,
    find_near_duplicates,
    read_near_duplicates,
    write_parquet,
)
from tokenloom.retro.pair_index import open_pair_index
from tokenloom.retro.pair_vectors import PairVectors, open_pair_vectors

CORPUS = ["abcdmmmm", "zzzz", "ponmabcd", "ijklijkl", "ab"]
BENCHMARK = ["efgh", "abcdabcd"]


def vectors_of(folder: Path, name: str, texts: list[str]) -> PairVectors:
    return open_pair_vectors(write_corpus(folder / name, map(letters, texts)), maker())


def report(corpus: PairVectors, benchmark: PairVectors | None = None, **options) -> NearDuplicates:
    index = open_pair_index(corpus, num_queries=len(corpus if benchmark is None else benchmark))
    found = find_near_duplicates(corpus, benchmark, index, threshold=0.99, **options)
    least_tokens = options.get("least_tokens", 1)
    return describe_near_duplicates(found, corpus, benchmark, threshold=0.99, index="exact", least_tokens=least_tokens)


def places(found: NearDuplicates) -> list[tuple[int, int, int, int]]:
    return [(each.first.document, each.first.start, each.second.document, each.second.start) for each in found.chunks]


def test_chunks_of_a_benchmark_are_found_in_a_corpus(tmp_path: Path):
    corpus, benchmark = vectors_of(tmp_path, "corpus", CORPUS), vectors_of(tmp_path, "benchmark", BENCHMARK)
    found = report(corpus, benchmark)
    assert places(found) == [(1, 0, 0, 0), (1, 0, 2, 4), (1, 4, 0, 0), (1, 4, 2, 4)]
    assert {each.first.text for each in found.chunks} == {each.second.text for each in found.chunks} == {"abcd"}
    assert (found.num_chunks, found.num_found, found.num_pairs, found.num_document_pairs) == (3, 2, 4, 2)
    assert (found.corpus, found.benchmark) == (corpus.prefix, benchmark.prefix)
    assert [(each.first, each.second, each.first_share, each.second_share) for each in found.documents] == [
        (1, 0, 1.0, 0.5),
        (1, 2, 1.0, 0.5),
    ]


def test_empty_documents_are_counted_and_found_nowhere(tmp_path: Path):
    documents = [[], [letters("abcdmmmm")], [], [], [letters("ponmabcd")]]
    corpus = open_pair_vectors(write_sentences(tmp_path / "corpus", documents), maker())
    found = report(corpus)
    assert places(found) == [(1, 0, 4, 4)]
    assert [(each.first, each.second) for each in found.documents] == [(1, 4)]
    index = open_pair_index(corpus, num_queries=2, of_documents=True)
    order = order_by_neighbors(corpus.documents, index).order
    assert corpus.numbers.with_empty_ones(order).tolist() == [1, 4, 0, 2, 3]


def test_pairs_inside_a_document_or_of_short_chunks_do_not_count(tmp_path: Path):
    corpus = vectors_of(tmp_path, "corpus", [*CORPUS, "ab"])
    found = report(corpus)
    assert places(found) == [(0, 0, 2, 4), (4, 0, 5, 0)]
    assert (found.num_pairs, found.num_inside_documents, found.num_short) == (2, 1, 0)
    longer = report(corpus, least_tokens=3)
    assert places(longer) == [(0, 0, 2, 4)]
    assert (longer.num_pairs, longer.num_inside_documents, longer.num_short) == (1, 1, 1)


def test_blocks_of_queries_change_nothing(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch):
    documents = [[*rng.integers(1, 4, rng.integers(1, 25)).tolist(), EOD] for _ in range(30)]
    corpus = open_pair_vectors(write_corpus(tmp_path / "corpus", documents), maker())
    benchmark = open_pair_vectors(write_corpus(tmp_path / "benchmark", documents[:9]), maker())
    whole = [report(corpus), report(corpus, benchmark)]
    monkeypatch.setattr("tokenloom.retro.pair_duplicates._QUERIES_AT_ONCE", 7)
    assert [report(corpus), report(corpus, benchmark)] == whole
    assert whole[1].num_found == whole[1].num_chunks > 7


def test_files_hold_what_was_found(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    corpus, benchmark = vectors_of(tmp_path, "corpus", CORPUS), vectors_of(tmp_path, "benchmark", BENCHMARK)
    index = open_pair_index(corpus, num_queries=3)
    pairs = find_near_duplicates(corpus, benchmark, index, threshold=0.99)
    found = describe_near_duplicates(pairs, corpus, benchmark, threshold=0.99, index="exact", most=1)
    assert (len(found.chunks), len(found.documents), found.num_pairs) == (1, 1, 4)
    (tmp_path / "found.json").write_bytes(found.to_json())
    assert read_near_duplicates(str(tmp_path / "found.json")) == found
    write_parquet(str(tmp_path / "pairs.parquet"), pairs.pairs, corpus, benchmark)
    rows = parquet.read_table(tmp_path / "pairs.parquet").to_pylist()
    assert [
        (row["first_document"], row["first_start"], row["second_document"], row["second_start"]) for row in rows
    ] == [
        (1, 0, 0, 0),
        (1, 0, 2, 4),
        (1, 4, 0, 0),
        (1, 4, 2, 4),
    ]
    assert {row["first_text"] for row in rows} == {"abcd"}


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2}', '{"version": 1, "corpus": 3}', "[]"])
def test_another_file_is_refused(tmp_path: Path, text: str):
    (tmp_path / "found.json").write_text(text)
    with pytest.raises(InputError, match=r"`.*found.json` holds no near duplicates"):
        read_near_duplicates(str(tmp_path / "found.json"))


def test_nothing_is_near_nothing(tmp_path: Path):
    empty, corpus = vectors_of(tmp_path, "empty", ["zz"]), vectors_of(tmp_path, "corpus", CORPUS)
    for found in (report(empty), report(empty, corpus), report(corpus, empty)):
        assert (found.num_pairs, found.chunks, found.documents) == (0, (), ()), found
