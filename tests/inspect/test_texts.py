"""Ids and texts searched in all documents of a run, and records read again from input files."""

import gzip
import json
import os

import numpy as np
import pytest
from tests.corpus.jobs import preprocess
from tests.corpus.records import BYTES
from tests.indexed.columns import put_hashes
from tests.inputs.corpora import json_lines, write_parquet
from tests.inspect.greedy import Greedy
from tests.run.folders import STAGE, write_toml
from tests.support import write_corpus

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import OriginFile
from tokenloom.inputs.records import Texts
from tokenloom.inspect.texts import (
    Match,
    find_ids,
    find_text,
    find_whole_texts,
    input_problem,
    places_of_ids,
    read_records,
    span_tokens,
)
from tokenloom.preprocess.selection import hash_documents
from tokenloom.run.audit.source_origins import SourceOrigins
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run


def lock_of(folder, web, code, more=None):
    write_corpus(folder / "web0", web)
    write_corpus(folder / "web1", more or [[1]])
    write_corpus(folder / "code", code, dtype=np.int32)
    (folder / "run.toml").write_text(
        'order = 1\nseed = 1\n[sources]\nweb = "web*"\ncode = "code"\n[[stages]]\nsequence_length = 2\nsamples = 9\n'
        "weights = { web = 1, code = 1 }\n"
    )
    return lock_run(folder / "run.toml").lock


def matches(found: list[Match]) -> list[tuple[int, int, int, int]]:
    return [(match.source, match.document, match.start, match.length) for match in found]


def test_ids_stand_within_one_document(tmp_path):
    lock = lock_of(tmp_path, [[5, 1, 2], [3, 1, 2, 3, 1, 2, 3], []], [[1, 2, 70000, 3]], [[9, 1, 2, 3, 9]])
    assert matches(find_ids(lock, [1, 2, 3])) == [(0, 1, 1, 3), (0, 1, 4, 3), (0, 3, 1, 3)]  # not over its end
    assert matches(find_ids(lock, [2])) == [(0, 0, 2, 1), (0, 1, 2, 1), (0, 1, 5, 1), (0, 3, 2, 1), (1, 0, 1, 1)]
    assert matches(find_ids(lock, [70000])) == [(1, 0, 2, 1)]  # which 16 bits do not hold
    assert matches(find_ids(lock, [4])) == []


def test_a_text_is_found_whatever_stands_around_it(tmp_path):
    tokenizer = Greedy()
    text = "the cats sat on the mat"
    around = ["{}", "in {}", "{}ing", "ha{}. ha", "the {} the", "breathe cats sat on the matter {}", "中{}é"]
    documents = [tokenizer.tokenize(each.format(text)) for each in around]
    documents += [tokenizer.tokenize("the cat sat on the mat"), tokenizer.tokenize("nothing")]
    lock = lock_of(tmp_path, documents, [[0] * 9])
    found = find_text(lock, text, tokenizer)
    assert [match.document for match in found] == [0, 1, 2, 3, 4, 5, 5, 6]
    for match in found:
        tokens = documents[match.document][match.start : match.start + match.length]
        assert text in tokenizer.detokenize(tokens)
        assert text not in tokenizer.detokenize(tokens[1:])
        assert text not in tokenizer.detokenize(tokens[:-1])


def places(pair, ids, **settings):
    found = places_of_ids(pair, ids, **settings)
    return [place for each in found for place in zip(each.rows.tolist(), each.starts.tolist(), strict=True)]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("at_once", [1, 3, 7, 1000])
def test_every_place_is_found_once_however_data_are_cut(tmp_path, rng, at_once, mmap):
    documents = [rng.integers(0, 3, size=size).tolist() for size in rng.integers(0, 40, size=30)]
    pair = IndexedDataset(write_corpus(tmp_path / "data", documents), mmap=mmap)
    for ids in ([1], [1, 0], [2, 2, 1, 0]):
        expected = [
            (number, start)
            for number, document in enumerate(documents)
            for start in range(len(document) - len(ids) + 1)
            if document[start : start + len(ids)] == ids
        ]
        assert places(pair, ids, at_once=at_once) == expected
        for row, start in [(0, 0), (3, 1), (29, 0), (30, 0), *expected[:: 1 + len(expected) // 3]]:  # from any place on
            behind = [place for place in expected if place >= (row, start)]
            assert places(pair, ids, row=row, start=start, at_once=at_once) == behind


def test_texts_are_found_in_all_sources_and_pairs_without_hashes_told(tmp_path):
    def hash_pair(name, texts):
        put_hashes(str(tmp_path / name), hash_documents([Texts(texts=texts)], len(texts)))

    lock = lock_of(tmp_path, *([[1, 2, 3]] * count for count in (3, 2, 2)))
    with pytest.raises(ConfigError, match=r"(?s)^none of 3 pairs has document hashes.*--document-hashes"):
        find_whole_texts(lock, ["a"])
    hash_pair("web1", ["b\n", "a"])
    found, missing = find_whole_texts(lock, ["a"])
    assert (found, [os.path.basename(name) for name in missing]) == ([(0, 4)], ["web0", "code"])
    hash_pair("web0", ["a", "b", "a"])
    hash_pair("code", ["x", "a"])
    assert find_whole_texts(lock, ["a"]) == ([(0, 0), (0, 2), (0, 4), (1, 1)], [])
    assert find_whole_texts(lock, ["b", "b\n", "b"]) == ([(0, 1), (0, 3)], [])
    assert find_whole_texts(lock, ["nothing of all"]) == ([], [])


def file_of(path, *, unit="line"):
    status = path.stat()
    return OriginFile(path=str(path), num_bytes=status.st_size, version=str(status.st_mtime_ns), unit=unit)


def test_rows_of_tables_are_json(tmp_path):
    rows = [{"text": f"row {number}", "n": number - 1} for number in range(1, 51)]
    file = file_of(write_parquet(tmp_path / "a.parquet", rows, row_group_size=7), unit="row")
    assert json.loads(read_records(file, [30])[30]) == {"text": "row 30", "n": 29}


def test_files_that_changed_are_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n")
    file = file_of(path)
    assert input_problem(file) is None
    os.utime(path, ns=(0, 5))
    assert input_problem(file) == f"`{path}` was replaced or modified since it was tokenized"
    path.write_bytes(b"{}\n{}\n")
    assert input_problem(file) == f"`{path}` has 6 bytes; it had 3 when it was tokenized"
    path.unlink()
    assert input_problem(file) == f"`{path}` no longer exists"


def test_traced_spans_are_parts_of_the_records_that_they_name(tmp_path, rng):
    texts = ["".join(rng.choice(list("abcdéü "), size=rng.integers(1, 40))) for _ in range(300)]
    rows = [{"text": text} for text in texts]
    (tmp_path / "a.jsonl").write_bytes(json_lines([None, *rows[:100]]))  # a bad record first
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json_lines(rows[100:200])))
    write_parquet(tmp_path / "c.parquet", rows[200:], row_group_size=30)
    inputs = [tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.parquet")]
    preprocess(inputs, tmp_path / "web", BYTES, skip_bad_records=True)
    sources = '[sources]\nweb = "web_text_document"\n'
    stage = STAGE.replace("web = 3, code = 1", "web = 1")
    run = Run.open(write_toml(tmp_path, stage, sources=sources))
    origins = SourceOrigins(run.lock)
    table = run.trace(range(600)).with_origins(origins)
    assert origins.missing == []
    found = {}
    for number, file in enumerate(origins.files):
        assert input_problem(file) is None
        records = read_records(file, table.records[table.files == number].tolist())
        found |= {(number, record): json.loads(text)["text"].encode() for record, text in records.items()}
    assert table.files is not None
    assert len(found) == len(set(table.documents.tolist())) > 280  # the end of a pass fills no sample
    for row, tokens in enumerate(span_tokens(table)):
        text = found[int(table.files[row]), int(table.records[row])]
        start = int(table.starts[row])
        assert tokens.tolist() == list(text[start : start + int(table.lengths[row])])
