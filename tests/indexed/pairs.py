import os
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from tokenloom import IndexedDataset, IndexedDatasetBuilder

Corpus = list[list[list[int]]]
"""Documents of sequences of tokens."""

FIRST: Corpus = [[[1, 2], [3]], []]
SECOND: Corpus = [[[4]], [[], [5, 6]]]
"""What `write_two_pairs` writes."""

INTEGERS = [np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16]


def write_pair(prefix, corpus, *, dtype=np.int32, multimodal=False):
    """Writes the corpus; in a multimodal pair the mode of a sequence is its number in its document."""
    with IndexedDatasetBuilder(f"{os.fspath(prefix)}.bin", dtype=dtype, multimodal=multimodal) as builder:
        for document in corpus:
            for mode, sequence in enumerate(document):
                builder.add_item(np.array(sequence, dtype=dtype), mode)
            builder.end_document()
        builder.finalize(f"{os.fspath(prefix)}.idx")
    return os.fspath(prefix)


def write_two_pairs(folder):
    folder.mkdir(exist_ok=True)
    return [write_pair(folder / "a", FIRST), write_pair(folder / "b", SECOND)]


def read_pair(prefix, *, mmap=True):
    dataset = IndexedDataset(prefix, mmap=mmap)
    bounds = dataset.document_indices.tolist()
    return [[dataset[row].tolist() for row in range(start, stop)] for start, stop in pairwise(bounds)]


def pair_bytes(prefix):
    return Path(f"{os.fspath(prefix)}.bin").read_bytes(), Path(f"{os.fspath(prefix)}.idx").read_bytes()


def tokens_of(dtype):
    bounds = np.iinfo(dtype)
    return st.integers(int(bounds.min), int(bounds.max))


@st.composite
def corpora(draw, dtype=np.int32):
    """Draws small corpora, with empty documents and empty sequences among them."""
    sequence = st.lists(tokens_of(dtype), max_size=6)
    return draw(st.lists(st.lists(sequence, max_size=4), max_size=6))
