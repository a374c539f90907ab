"""Pairs appended to what a builder writes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from tests.indexed.pairs import Corpus, pair_bytes, read_pair, write_pair
from tests.indexed.writing.pairs import Pair

from tokenloom import IndexedDataset
from tokenloom.errors import (
    DatasetFormatError,
)


def test_add_index_appends_documents_as_they_are(tmp_path):
    first: Corpus = [[[1, 2], [3]], []]
    second: Corpus = [[], [[4]], [[], [5, 6]]]
    prefixes = [write_pair(tmp_path / name, corpus) for name, corpus in (("a", first), ("b", second))]
    pair = Pair(tmp_path, np.int32)
    pair.builder.add_item([7])
    pair.builder.add_index(prefixes[0])
    pair.builder.add_document([8, 9], [2])
    pair.builder.add_index(f"{prefixes[1]}.idx")
    pair.builder.add_item([10])
    pair.builder.end_document()
    pair.finish()
    expected = [[[7], *first[0]], first[1], [[8, 9]], *second, [[10]]]
    assert read_pair(pair.prefix) == expected
    assert pair_bytes(pair.prefix) == pair_bytes(write_pair(tmp_path / "whole", expected))


def test_add_index_appends_modes(tmp_path):
    corpus: Corpus = [[[1], [2]], [[3], [4], [5]]]
    prefix = write_pair(tmp_path / "a", corpus, multimodal=True)
    pair = Pair(tmp_path, np.int32, multimodal=True)
    pair.builder.add_index(prefix)
    pair.builder.add_index(prefix)
    pair.finish()
    assert IndexedDataset(pair.prefix, multimodal=True).sequence_modes.tolist() == [0, 1, 0, 1, 2] * 2


@pytest.mark.parametrize(
    ("offset", "layout", "value", "message"),
    [
        (34, "<i", 1, "expected pointer 4 (the end of the sequence before), found 8 for sequence 1"),
        (34, "<i", -2, "expected a length from 0 on, found -2 for sequence 0"),
        (54, "<q", 4, "expected pointer 8 (the end of the sequence before), found 4 for sequence 1"),
        (78, "<q", 4, "expected document boundaries that do not fall, found 3 for boundary 2 after 4"),
        (9, "<Q", 2, "expected version 1, found 2"),
    ],
)
def test_add_index_refuses_a_damaged_pair_and_adds_nothing(tmp_path, source, offset, layout, value, message):
    with open(f"{source}.idx", "r+b") as stream:
        stream.seek(offset)
        stream.write(struct.pack(layout, value))
    pair = Pair(tmp_path, np.int32)
    with pytest.raises(DatasetFormatError) as caught:
        pair.builder.add_index(source)
    assert caught.value.message == f"`{source}.idx`: {message}"
    assert (pair.builder.num_sequences, pair.builder.num_documents) == (0, 0)
    assert pair.tokens() == []


def test_add_index_refuses_another_dtype(pair, source):
    with pytest.raises(DatasetFormatError, match=r"source.idx`: expected tokens of dtype uint16, found int32"):
        pair.builder.add_index(source)
