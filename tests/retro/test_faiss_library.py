"""What is asked of `faiss`: threads, its errors in our words, what an index is made of."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tokenloom import ConfigError
from tokenloom.retro import faiss_library

faiss = faiss_library.library()

STRUCTURES = {
    "Flat": "IndexFlat(32, 128 bytes)",
    "IVF16,Flat": "IndexIVFFlat(32, 16 lists by IndexFlat(32, 128 bytes), 128 bytes)",
    "IVF16,PQ8x4": "IndexIVFPQ(32, 16 lists by IndexFlat(32, 128 bytes), 8 codes of 4 bits, 4 bytes)",
    "IVF16,SQ8": "IndexIVFScalarQuantizer(32, 16 lists by IndexFlat(32, 128 bytes), numbers of kind 0, 32 bytes)",
    "HNSW8": "IndexHNSWFlat(32, 8 links, IndexFlat(32, 128 bytes))",
    "OPQ4_16,IVF16_HNSW8,PQ4x4": (
        "IndexPreTransform(32, LinearTransform 32 to 16, IndexIVFPQ(16, 16 lists by "
        "IndexHNSWFlat(16, 8 links, IndexFlat(16, 64 bytes)), 4 codes of 4 bits, 2 bytes))"
    ),
    "IVF16,Flat,RFlat": (
        "IndexRefineFlat(32, IndexIVFFlat(32, 16 lists by IndexFlat(32, 128 bytes), 128 bytes), "
        "IndexFlat(32, 128 bytes))"
    ),
}


@pytest.mark.parametrize("string", [string for string in STRUCTURES if "OPQ" not in string])
def test_the_structure_of_a_string_outlives_training_and_files(string, rng):
    index = faiss_library.make(string, 32)
    assert faiss_library.structure(index) == STRUCTURES[string]
    faiss_library.quieten(index)
    vectors = rng.standard_normal((700, 32), dtype=np.float32)
    with faiss_library.threads(1):
        index.train(vectors)
        index.add(vectors)
    copy = faiss.deserialize_index(faiss.serialize_index(index))
    assert faiss_library.structure(copy) == STRUCTURES[string]


def test_other_strings_have_other_structures():
    strings = [*STRUCTURES, "IVF32,Flat", "IVF16,PQ4x8", "IVF16,SQ4", "HNSW16", "OPQ4_16,IVF16_HNSW16,PQ4x4", "PQ4x8"]
    strings += ["PCA16,Flat", "PCA8,Flat", "LSH", "SQ8", "SQfp16", "IVF16_HNSW8,Flat", "IVF16,Flat,Refine(SQ8)"]
    assert len({faiss_library.structure(faiss_library.make(string, 32)) for string in strings}) == len(strings)


@pytest.mark.parametrize("string", ["", "nonsense", "IVFx,Flat", "Flat,", "IVF16", "IVF-3,Flat", "IVF16,PQ7", "PQ8x40"])
def test_a_string_that_does_not_exist_is_refused(string):
    with pytest.raises(
        ConfigError, match=r"^expected a string of `faiss\.index_factory` for vectors of 32, found '"
    ) as c:
        faiss_library.make(string, 32)
    assert repr(string) in c.value.message
    assert "/project/" not in c.value.message


def test_a_string_that_does_not_fit_the_vectors_says_why():
    with pytest.raises(ConfigError, match=r"found 'PQ5': The dimension of the vector \(d\) should be a multiple of"):
        faiss_library.make("PQ5", 32)


@pytest.mark.parametrize(
    ("string", "message"),
    [
        ("IVF0,Flat", "expected lists in the index 'IVF0,Flat', found none"),
        ("IDMap,Flat", "expected an index that counts its vectors itself, found 'IDMap,Flat'"),
    ],
)
def test_indices_that_could_not_be_filled_are_refused(string, message):
    with pytest.raises(ConfigError, match=message):
        faiss_library.make(string, 32)


@pytest.mark.parametrize(
    ("string", "least"),
    [
        ("Flat", 0),
        ("IVF16,Flat", 16),
        ("IVF16,PQ8", 256),
        ("IVF999,PQ8", 999),
        ("PQ4x4", 16),
        ("IMI2x4,Flat", 16),
        ("OPQ4,IVF16,PQ4x4", 256),
    ],
)
def test_how_many_vectors_are_the_least(string, least, rng):
    index = faiss_library.make(string, 32)
    assert faiss_library.least_vectors(index) == least
    if least:
        faiss_library.quieten(index)
        vectors = rng.standard_normal((least, 32), dtype=np.float32)
        with pytest.raises(RuntimeError, match="should be at least as large as number of clusters"):
            faiss_library.make(string, 32).train(vectors[:-1])


def test_threads_are_those_of_the_thread_that_asks():
    before = faiss.omp_get_max_threads()
    found = []
    with faiss_library.threads(1):
        with faiss_library.threads(3):
            found.append(faiss.omp_get_max_threads())
            other = threading.Thread(target=lambda: found.append(faiss.omp_get_max_threads()))
            other.start()
            other.join()
        found.append(faiss.omp_get_max_threads())
    assert found[0] == 3
    assert found[2] == 1
    assert faiss.omp_get_max_threads() == before


def test_threads_are_given_back_after_an_error():
    before = faiss.omp_get_max_threads()
    with pytest.raises(KeyError), faiss_library.threads(before + 1):
        raise KeyError
    assert faiss.omp_get_max_threads() == before
