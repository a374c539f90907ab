"""Functions of `tokenloom.megatron.core.datasets`, equal to Megatron's bit for bit, and its class of tokenizers."""

import numpy as np
import pytest

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets import helpers, utils
from tokenloom.megatron.core.datasets import helpers_cpp as ours
from tokenloom.megatron.core.datasets import megatron_tokenizer as tokenizer_module


def filled(size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(size, -1, dtype=np.int16), np.full(size, -1, dtype=np.int64)


def test_blends_are_filled_in():
    chosen, given = filled(6)
    assert ours.build_blending_indices(chosen, given, [0.5, 0.5, 9.0], 2, 5, False) is None
    assert (chosen.tolist(), given.tolist()) == ([0, 1, 0, 1, 0, -1], [0, 0, 1, 1, 2, -1])
    chosen, given = filled(4)
    ours.build_exhaustive_blending_indices(chosen, given, [1, 0, 2], 3)
    assert (chosen.tolist(), given.tolist()) == ([2, 0, 2, -1], [0, 0, 1, -1])


def test_wrong_arguments():
    for arrays in (filled(1), (np.zeros(2, np.int32), np.zeros(1, np.int64))):
        with pytest.raises(ValueError, match="could not broadcast"):
            ours.build_blending_indices(*arrays, [1.0], 1, 2, False)
        with pytest.raises(ValueError, match="could not broadcast"):
            ours.build_exhaustive_blending_indices(*arrays, [2], 1)
    for weights in ([1.0], [0.0, 1.0], [np.nan, 1.0]):
        with pytest.raises(ConfigError, match="`weights`: must be 2 finite numbers above 0, got"):
            ours.build_blending_indices(*filled(1), weights, 2, 1, False)
    with pytest.raises(ConfigError, match=r"`sizes`: must be 1 numbers ≥ 0, got \[-1\]"):
        ours.build_exhaustive_blending_indices(*filled(1), [-1], 1)
    with pytest.raises(TypeError):
        ours.build_mapping(docs=[0, 2], sizes=[4, 4])


def test_sample_indices():
    index = ours.build_sample_idx_int32([3, 4, 1], [0, 1, 2], 3, 1, 8, True, 1)
    assert index.tolist() == [[0, 0], [1, 0], [1, 3]]
    assert index.dtype == np.int32
    assert ours.build_sample_idx_int64([3, 4, 1], [0, 1, 2], 3, 1, 8, False, 1).tolist() == [*index.tolist(), [2, 0]]
    sizes, documents = np.array([3, 4, 1], dtype=np.int32), np.array([0, 1, 2], dtype=np.int32)
    assert helpers.build_sample_idx(sizes, documents, 3, 1, 8).dtype == np.int32
    index = helpers.build_sample_idx(sizes.astype(np.int64) * 2**30, documents, 2**30, 1, 2**33, True, False)
    assert index.dtype == np.int64
    with pytest.raises(ConfigError, match=r"values of the sample index must be in \[0, 5\], got -1 to 4"):
        helpers.build_sample_idx(np.array([5, 0], np.int32), documents[:2], 2, 1, 6, drop_last_partial_sequence=False)


@pytest.fixture
def theirs():
    return pytest.importorskip("megatron.core.datasets.helpers_cpp")


@pytest.mark.peer
def test_blends_equal_megatrons(theirs, rng):
    for case in range(60):
        num_datasets, size = int(rng.integers(1, 40)), int(rng.integers(0, 300))
        weights = rng.random(num_datasets) ** 3
        if case % 3:
            weights /= weights.sum()
        expected, actual = filled(size + 2), filled(size + 2)
        theirs.build_blending_indices(*expected, weights, num_datasets, size, False)
        ours.build_blending_indices(*actual, weights, num_datasets, size, False)
        np.testing.assert_array_equal(actual, expected, err_msg=repr(weights.tolist()))
        sizes = rng.integers(1, 30, size=num_datasets)
        expected, actual = filled(int(sizes.sum())), filled(int(sizes.sum()))
        theirs.build_exhaustive_blending_indices(*expected, sizes, num_datasets)
        ours.build_exhaustive_blending_indices(*actual, sizes, num_datasets)
        np.testing.assert_array_equal(actual, expected)
    expected, actual = filled(20), filled(20)
    theirs.build_blending_indices(*(array[::2] for array in expected), [0.3, 0.7], 2, 9, False)
    ours.build_blending_indices(*(array[::2] for array in actual), [0.3, 0.7], 2, 9, False)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.peer
def test_sample_indices_equal_megatrons(theirs, rng):
    for case in range(150):
        lengths = rng.integers(0 if case % 2 else 1, 12, size=rng.integers(1, 30)).astype(np.int32)
        epochs = int(rng.integers(1, 4))
        stream = np.concatenate([rng.permutation(len(lengths)) for _ in range(epochs)]).astype(np.int32)
        more = int(rng.integers(0, 5)) if case % 4 == 0 else 0  # as float32 may round, or a caller may miscount
        arguments = (int(rng.integers(1, 20)), epochs, int(lengths.sum()) + more, bool(case % 3), case // 2 % 2)
        if epochs * arguments[2] - arguments[4] < 0:
            continue
        for name in ("build_sample_idx_int32", "build_sample_idx_int64"):
            expected, actual = (getattr(module, name)(lengths, stream, *arguments) for module in (theirs, ours))
            assert actual.dtype == expected.dtype
            np.testing.assert_array_equal(actual, expected, err_msg=repr((lengths, stream, arguments)))


@pytest.mark.peer
def test_mappings_equal_megatrons(theirs, rng):
    for _ in range(40):
        counts = rng.integers(0, 7, size=rng.integers(0, 12))
        docs = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        sizes = np.where(rng.random(docs[-1]) < 0.02, 600, rng.integers(1, 40, size=docs[-1])).astype(np.int32)
        seed, epochs, sentences = (int(rng.integers(1, stop)) for stop in (2**31 - 2, 4, 3))
        most, longest = int(rng.choice([5, 50, 2**63 - 2])), int(rng.integers(2, 99))
        short = float(rng.choice([0.0, 0.1, 0.5]))
        titles = rng.integers(0, 5, size=len(counts)).astype(np.int32)
        for name, arguments in {
            "build_mapping": (docs, sizes, epochs, most, longest, short, seed, False, sentences),
            "build_blocks_mapping": (docs, sizes, titles, epochs, most, longest, seed, False, bool(sentences - 1)),
        }.items():
            expected, actual = (getattr(module, name)(*arguments) for module in (theirs, ours))
            assert actual.dtype == expected.dtype
            np.testing.assert_array_equal(actual, expected)


def test_weights_are_divided_by_their_sum_and_some_entries_are_none():
    for weights in ([0.1, 0.2, 0.3], (1e-300, 5.0), [0.0, 2]):
        assert utils.normalize(weights) == [weight / sum(weights) for weight in weights]
    with pytest.raises(ConfigError, match="must be alternating weights and prefixes"):
        utils.get_blend_from_list(["1", "a", "x", "b"])
    assert utils.get_blend_from_list([["1", "a"], ["0.5", "b"]]) == (["a", "b"], [1.0, 0.5])


BLENDS = [None, ["a"], ["a", "b"], ["a", "b", "c"]]
BLENDS += [["30", " a ", "70", "b"], ["0", "a", "1e-3", "b"], [0.3, "a", 0.7, "b"], ["-1", "a", "2", "b"]]


@pytest.mark.peer
@pytest.mark.parametrize("blend", BLENDS, ids=repr)
def test_lists_of_blends_equal_megatrons(blend):
    theirs = pytest.importorskip("megatron.core.datasets.utils")
    assert utils.get_blend_from_list(blend) == theirs.get_blend_from_list(blend)


WRITTEN = {"tokenize": lambda self, text: [1], "vocab": {}, "inv_vocab": {}, "vocab_size": 2}


@pytest.mark.peer
def test_a_custom_tokenizer_is_described_as_in_megatron():
    theirs = pytest.importorskip("megatron.core.datasets.megatron_tokenizer")
    made = [
        type("Mine", (module.MegatronLegacyTokenizer,), WRITTEN)("a.json", "b.txt", extra=3, none=None)
        for module in (theirs, tokenizer_module)
    ]
    assert made[0].unique_identifiers == made[1].unique_identifiers
    assert made[0].unique_description == made[1].unique_description
    names = [name for name in dir(theirs.MegatronLegacyTokenizer) if not name.startswith("_")]
    assert [name for name in dir(tokenizer_module.MegatronTokenizer) if not name.startswith("_")] == names
    for name in ("cls", "sep", "pad", "eod", "bos", "eos", "mask"):
        for each in made:
            with pytest.raises(NotImplementedError, match=f"Mine has no attribute.*'{name}'"):
                getattr(each, name)


def test_missing_methods_raise():
    with pytest.raises(TypeError, match="abstract"):
        tokenizer_module.MegatronLegacyTokenizer()
    mine = type("Mine", (tokenizer_module.MegatronLegacyTokenizer,), WRITTEN)()
    with pytest.raises(NotImplementedError, match="Mine has no attribute or method 'detokenize'"):
        mine.detokenize([1])
