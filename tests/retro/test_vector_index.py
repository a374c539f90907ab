"""Vector indices: what is found, which bits are the same, and files that are not what they should be."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tokenloom import ConfigError, StorageError
from tokenloom.retro import faiss_library
from tokenloom.retro.vector_index import VectorIndex

WITH_CODES = ["Flat", "IVF16,Flat", "IVF16,PQ4x4", "OPQ4_16,IVF16_HNSW8,PQ4x4", "PCA16,IVF16,SQ8", "PQ4x4", "PCA8,Flat"]
WITHOUT_CODES = ["HNSW8", "PCA16,HNSW8", "IVF16,PQ4x4fs", "PQ4x4fs", "IVF16,Flat,RFlat"]
STRINGS = [*WITH_CODES, *WITHOUT_CODES]

faiss = faiss_library.library()


@pytest.fixture(scope="module")
def vectors():
    """Vectors in clusters, of which some are equal; as many as make several pieces."""
    rng = np.random.default_rng(7)
    centres = rng.standard_normal((40, 32))
    found = (centres[rng.integers(0, 40, 3000)] + 0.3 * rng.standard_normal((3000, 32))).astype(np.float32)
    found[100:150] = found[:50]
    return found


@pytest.fixture(scope="module")
def trained(vectors):
    """Empty indices by string."""
    return {string: VectorIndex.train(string, vectors[:300]) for string in STRINGS}


def filled(index, vectors, *, cut=2500):
    return index.assemble(index.encode(part) for part in (vectors[:cut], vectors[cut:]))


def saved(index, path):
    index.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("string", ["Flat", "IVF16,Flat", "HNSW8"])
def test_the_nearest_vector_of_one_is_itself(string, trained, vectors):
    index = filled(trained[string], vectors)
    index.set_effort(**{"HNSW8": {"ef_search": 500}, "IVF16,Flat": {"nprobe": 16}}.get(string, {}))
    found = index.search(vectors[200:], 3)
    is_itself = found.ids[:, 0] == np.arange(200, 3000)
    assert is_itself.mean() > 0.98 if string == "HNSW8" else is_itself.all()  # a graph may lose a vector
    assert np.allclose(found.distances[is_itself, 0], 0, atol=1e-4)
    assert (len(index), index.dimension) == (3000, 32)
    assert repr(index) == f"VectorIndex({string!r}, dimension=32, num_vectors=3000)"


@pytest.mark.parametrize("string", STRINGS)
def test_codes_make_the_index_that_vectors_make(string, trained, vectors, tmp_path):
    with faiss_library.threads(1):
        theirs = faiss.clone_index(trained[string]._index)
        for start in range(0, 2048, 1024):
            theirs.add(vectors[start : start + 1024])
    ours = filled(trained[string], vectors[:2048], cut=1024)
    assert saved(ours, tmp_path / "index") == faiss.serialize_index(theirs).tobytes()
    assert len(trained[string]) == 0


@pytest.mark.parametrize("string", STRINGS)
def test_the_same_blocks_give_the_same_bits_on_any_number_of_threads(string, trained, vectors, tmp_path):
    index = trained[string]
    codes = [index.encode(vectors, num_threads=threads) for threads in (1, 3)]
    assert codes[0].tobytes() == codes[1].tobytes()
    assert codes[0].shape == (3000, index.code_bytes)
    assert saved(index.assemble([codes[0]]), tmp_path / "a") == saved(index.assemble([codes[1]]), tmp_path / "b")
    full = index.assemble([codes[0]])
    found = [full.search(vectors[:2500], 10, num_threads=threads) for threads in (1, 3)]
    assert found[0].ids.tobytes() == found[1].ids.tobytes()
    assert found[0].distances.tobytes() == found[1].distances.tobytes()


@pytest.mark.parametrize("string", STRINGS)
def test_training_on_one_thread_is_repeatable(string, trained, vectors, tmp_path):
    again = VectorIndex.train(string, vectors[:300])
    assert saved(again, tmp_path / "a") == saved(trained[string], tmp_path / "b")


@pytest.mark.parametrize("string", STRINGS)
def test_a_file_holds_all_of_it(string, trained, vectors, tmp_path):
    index = filled(trained[string], vectors)
    index.save(tmp_path / "index")
    opened = VectorIndex.open(tmp_path / "index", string=string, dimension=32, num_vectors=3000)
    found, expected = opened.search(vectors[:100], 5), index.search(vectors[:100], 5)
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.distances, expected.distances)
    assert faiss.read_index(os.fspath(tmp_path / "index")).ntotal == 3000


@pytest.mark.parametrize("string", ["Flat", "IVF16,Flat", "HNSW8"])
def test_where_there_are_no_more_vectors_there_is_none(string, trained, vectors):
    for count in (0, 2):
        found = filled(trained[string], vectors[:count]).search(vectors[:1], 4)
        assert (found.ids[0] >= 0).sum() <= count
        assert np.array_equal(np.isinf(found.distances), found.ids == -1)
    assert trained[string].search(vectors[:0], 4).ids.shape == (0, 4)


def test_an_empty_block_adds_nothing(trained, vectors):
    for string in ("IVF16,Flat", "HNSW8"):
        index = trained[string]
        assert len(index.assemble([index.encode(vectors[:0])])) == 0


def test_more_lists_find_more(trained, vectors):
    index = filled(trained["IVF16,Flat"], vectors)
    exact = filled(trained["Flat"], vectors).search(vectors[:500], 10).ids
    shares = []
    for nprobe in (1, 4, 99999):
        index.set_effort(nprobe=nprobe)
        shares.append((index.search(vectors[:500], 10).ids[:, :, None] == exact[:, None]).any(axis=2).mean())
    assert shares[0] < shares[1] <= shares[2]
    assert shares[2] > 0.99  # equal vectors may stand in another order


def test_settings_that_an_index_does_not_have_are_refused(trained):
    for string, setting, name in (("Flat", "nprobe", "nprobe"), ("IVF16,Flat", "ef_search", "efSearch")):
        with pytest.raises(ConfigError, match=f"the index '{string}' has no `{name}`"):
            trained[string].set_effort(**{setting: 4})
    with pytest.raises(ConfigError, match="expected nprobe of at least 1, found 0"):
        trained["IVF16,Flat"].set_effort(nprobe=0)


@pytest.mark.parametrize(("string", "least"), [("IVF16,Flat", 16), ("OPQ4,IVF16,PQ4x4", 256), ("IVF16,PQ4x4", 16)])
def test_fewer_vectors_than_the_index_trains_on(string, least, vectors):
    with pytest.raises(ConfigError) as caught:
        VectorIndex.train(string, vectors[: least - 1])
    expected = f"expected at least {least} vectors to train the index {string!r} on, found {least - 1}"
    assert caught.value.message == expected
    with pytest.raises(ConfigError, match="found 0"):
        VectorIndex.train(string, vectors[:0])


def test_training_says_nothing_on_stderr(vectors, capfd):
    VectorIndex.train("IVF16,PQ4x4", vectors[:100])
    assert capfd.readouterr() == ("", "")


def test_an_index_that_cannot_be_searched_is_refused(vectors):
    with pytest.raises(
        ConfigError, match=r"'Residual16,PQ4x4' cannot be trained on 600 vectors and searched: not impl"
    ):
        VectorIndex.train("Residual16,PQ4x4", vectors[:600])


WRONG_VECTORS = {
    "expected float32 of shape [num_vectors, 32], found float64 of shape [2, 32]": np.zeros((2, 32)),
    "expected float32 of shape [num_vectors, 32], found shape [2, 31]": np.zeros((2, 31), dtype=np.float32),
    "expected finite numbers, found nan in vector 0 of 2": np.full((2, 32), np.nan, dtype=np.float32),
}


@pytest.mark.parametrize("message", WRONG_VECTORS)
def test_vectors_that_no_index_takes_are_refused(message, trained):
    found = WRONG_VECTORS[message]
    for use in (trained["Flat"].encode, trained["HNSW8"].encode, lambda rows: trained["Flat"].search(rows, 1)):
        with pytest.raises(ConfigError) as caught:
            use(found)
        assert message in str(caught.value)


def test_a_sample_of_another_shape_is_refused(vectors):
    with pytest.raises(
        ConfigError, match=r"expected vectors of shape \[num_vectors, dimension\] to train on, found list"
    ):
        VectorIndex.train("Flat", [[1.0]])
    with pytest.raises(ConfigError, match=r"to train on, found float32 of shape \[96000\]"):
        VectorIndex.train("Flat", vectors.reshape(-1))


def test_codes_of_another_index_are_refused(trained, vectors):
    codes = trained["Flat"].encode(vectors[:5])
    with pytest.raises(
        ConfigError, match=r"block 1: expected codes of shape \[num_vectors, 129\], found uint8 of shape"
    ):
        trained["IVF16,Flat"].assemble([trained["IVF16,Flat"].encode(vectors[:5]), codes])


def test_no_neighbor_at_all_is_no_question(trained, vectors):
    with pytest.raises(ConfigError, match="expected k of at least 1, found 0"):
        trained["Flat"].search(vectors[:1], 0)


@pytest.fixture(scope="module")
def index_file(trained, vectors, tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "added.faissindex"
    filled(trained["IVF16,Flat"], vectors[:100], cut=50).save(path)
    return path


WRONG_FILES = {
    "expected an index of vectors of 64, found one of 32": {"dimension": 64},
    "expected an index made from 'IVF32,Flat', which is IndexIVFFlat": {"string": "IVF32,Flat"},
    "expected an index made from 'HNSW8', which is IndexHNSWFlat": {"string": "HNSW8"},
    "expected an index of 101 vectors, found 100": {"num_vectors": 101},
    "expected an index of 0 vectors, found 100": {"num_vectors": 0},
}


@pytest.mark.parametrize("message", WRONG_FILES)
def test_a_file_of_another_index_is_refused(message, index_file):
    settings = {"string": "IVF16,Flat", "dimension": 32, "num_vectors": 100}
    assert len(VectorIndex.open(index_file, **settings)) == 100
    with pytest.raises(StorageError) as caught:
        VectorIndex.open(index_file, **(settings | WRONG_FILES[message]))
    assert message in caught.value.message
    assert os.fspath(index_file) in caught.value.message


def test_a_truncated_file_is_refused(index_file, tmp_path):
    data = index_file.read_bytes()
    for kept in [*range(60), *range(60, len(data), 997), len(data) - 1]:
        (tmp_path / "cut").write_bytes(data[:kept])
        with pytest.raises(StorageError, match="is no whole index of `faiss`") as caught:
            VectorIndex.open(tmp_path / "cut", string="IVF16,Flat", dimension=32)
        assert "/project/" not in caught.value.message


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "text").write_text("no index " * 500)
    with pytest.raises(StorageError, match=r"`.*text` is no whole index of `faiss`: Index type .* not recognized"):
        VectorIndex.open(tmp_path / "text", string="Flat", dimension=32)
    with pytest.raises(StorageError, match=r"cannot open `.*nowhere`: No such file or directory"):
        VectorIndex.open(tmp_path / "nowhere", string="Flat", dimension=32)


def test_a_file_that_cannot_be_written_leaves_what_was_there(trained, vectors, tmp_path, monkeypatch):
    (tmp_path / "index").write_bytes(b"before")

    def fail(index, path):
        raise RuntimeError(
            "Error in void faiss::f() at /project/io.cpp:1: Error: 'ret' failed: No space left on device"
        )

    monkeypatch.setattr(faiss, "write_index", fail)
    with pytest.raises(StorageError, match=r"cannot write `.*index`: No space left on device$"):
        trained["Flat"].save(tmp_path / "index")
    assert os.listdir(tmp_path) == ["index"]
    assert (tmp_path / "index").read_bytes() == b"before"


def test_a_folder_that_is_not_there_is_said(trained, tmp_path):
    with pytest.raises(StorageError, match=r"cannot create `.*absent/index`"):
        trained["Flat"].save(tmp_path / "absent" / "index")
