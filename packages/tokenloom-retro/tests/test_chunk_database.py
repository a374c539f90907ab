"""Chunks of a database: their tokens, the chunks that follow them, and errors for databases of other data."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from retro_projects import CHUNK_LENGTH, chunks_of
from tests.support import EOD, random_documents, write_corpus

from tokenloom.errors import DatasetFormatError, TokenizerError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom_retro.chunk_database import DBDataset

BOOKS = [[1, 2, 3, 4, 5, EOD], [6, 7], [EOD], [], [20, 21, 22, 23, 24, 25, 26, 27, 28, EOD]]
WEB = [[30, 31, 32, 33, EOD], [34, EOD]]
ROWS = [*chunks_of(BOOKS), *chunks_of(WEB, dataset=1)]


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


def test_tokens_outside_of_the_vocabulary_are_errors(pairs):
    database = with_rows(pairs, ROWS, vocab_size=33)
    assert database.gather([3]).tolist() == [[20, 21, 22, 23]]
    for read in (lambda: database.gather([0, 6, 3]), database.check):
        with pytest.raises(TokenizerError, match=r"^chunk 6 of `db`, in `.*web`: token 33 out of range: the tokenizer"):
            read()
