"""Datasets for train, valid and test, built from a configuration."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest
from tests.support import make_config, write_corpus

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder, describe_settings
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.mock import MockGPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, ShortDatasetWarning


def build(config, sizes=(None, None, None), *, cls=GPTDataset, here=True):
    return BlendedMegatronDatasetBuilder(cls, sizes, lambda: here, config).build()


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", [[i] * 10 for i in range(20)])


def documents_in(dataset):
    return sorted(set(dataset.document_index.tolist()))


def test_a_split_divides_the_documents(prefix):
    train, valid, test = build(make_config(prefix, split="70,20,10"))
    assert documents_in(train) == list(range(14))
    assert documents_in(valid) == list(range(14, 18))
    assert documents_in(test) == [18, 19]
    assert [dataset.index_split for dataset in (train, valid, test)] == list(Split)
    assert train.dataset is valid.dataset


def test_sizes_are_met_by_more_epochs(prefix):
    train, valid, test = build(make_config(prefix, split="70,20,10"), (100, 30, None))
    assert [len(dataset) >= size for dataset, size in ((train, 100), (valid, 30))] == [True, True]
    assert (train.num_samples, valid.num_samples, test.num_samples) == (100, 30, None)
    assert len(test) == 4


def test_a_split_without_weight_is_none(prefix):
    train, valid, test = build(make_config(prefix, split="1,0,0"), (5, 5, 5))
    assert len(train) == 49
    assert valid is None
    assert test is None


def test_a_split_too_small_for_a_document_holds_nothing(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1] * 10] * 3)
    config = make_config(prefix, split="99,1,0")
    with pytest.warns(ShortDatasetWarning) as caught:
        train, valid, test = build(config)
    assert [str(warning.message) for warning in caught] == [
        f"`{prefix}` (valid) has 0 tokens, too few for one sample of 5 tokens"
    ]
    assert (len(train), len(valid), test) == (7, 0, None)
    with pytest.raises(ConfigError) as refused:
        build(config, (None, 8, None))
    assert str(refused.value) == (
        f"`{prefix}` (valid): the documents of the split have no tokens, but 8 samples are requested\n"
        "hint: raise the weight of this split, or request 0 samples from it"
    )


@pytest.mark.parametrize("num_threads", [1, 3])
def test_all_datasets_without_samples_are_one_warning(tmp_path, num_threads):
    prefixes = [write_corpus(tmp_path / f"corpus{number}", [[1] * 3]) for number in range(6)]
    config = make_config(None, blend=(prefixes, None), split="1", num_dataset_builder_threads=num_threads)
    for _ in range(2):  # built, and from the cache
        with pytest.warns(ShortDatasetWarning) as caught, pytest.raises(ConfigError):
            build(config)
        (warning,) = caught
        first = "; ".join(
            f"`{prefix}` (train) has 3 tokens, too few for one sample of 5 tokens" for prefix in prefixes[:4]
        )
        text = str(warning.message)
        assert text.startswith("6 datasets have no samples: ")
        assert text.endswith("; and 2 more")
        assert num_threads > 1 or text == f"6 datasets have no samples: {first}; and 2 more"
        assert warning.filename == __file__


def test_each_split_may_have_its_own_data(tmp_path, prefix):
    other = write_corpus(tmp_path / "other", [[7] * 30])
    train, valid, test = build(make_config(None, blend_per_split=[([prefix], None), None, ([other], [3.0])]))
    assert documents_in(train) == list(range(20))
    assert valid is None
    assert test.dataset_path == other
    assert test.index_split is Split.test
    assert len(test) == 7


@pytest.mark.parametrize(
    ("weights", "size", "length"), [(None, None, 9), (None, 1000, 1009), ([1.0], 12, 12), ([0.5, 0.5], 12, 12)]
)
def test_full_validation_keeps_a_size_that_is_given(tmp_path, weights, size, length):
    prefixes = [write_corpus(tmp_path / f"{i}", [[i] * 10 for i in range(20)]) for i in range(len(weights or "a"))]
    config = make_config(None, blend=(prefixes, weights), split="70,20,10", full_validation=True)
    assert len(build(config, (5, size, 5))[1]) == length


def test_several_full_validation_sets_have_no_size(prefix):
    blends = [None, ([prefix, f"{prefix}_2"], None), None]
    config = make_config(None, blend_per_split=blends, multiple_validation_sets=True, full_validation=True)
    with pytest.raises(ConfigError, match=r"^the size for valid: must be None with `full_validation`, got 5\n"):
        build(config, (5, 5, None))


def test_without_data_it_is_made_up():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        datasets = build(make_config(None), (8, 8, 8), cls=MockGPTDataset)
    assert [type(dataset) for dataset in datasets] == [MockGPTDataset] * 3
    assert [len(dataset.indices) for dataset in datasets] == [33333, 33334, 33333]


def test_on_a_rank_that_needs_none_nothing_is_built(tmp_path):
    assert build(make_config(f"{tmp_path}/absent"), here=False) == [None, None, None]


def test_counts_recorded_before_are_checked(prefix):
    assert len(build(make_config(prefix, sequences_per_dataset={prefix: [20, 21]}))[0]) == 49
    with pytest.raises(ConfigError) as caught:
        build(make_config(prefix, sequences_per_dataset={"other": [20, 21]}))
    assert str(caught.value) == (
        f"`sequences_per_dataset`: no entry `{prefix}`\nhint: add an entry for each dataset of the blend"
    )
    with pytest.raises(ValueError, match="the data changed after they were recorded"):
        build(make_config(prefix, sequences_per_dataset={prefix: [19, 20]}))


@pytest.mark.parametrize(
    "changes",
    [
        {"blend": (["a", "b"], [1.0, 2.0]), "split": "1"},
        {"blend": (["a"], [1.0]), "split": "1"},
        {"blend_per_split": [(["a", "b"], [1.0, 2.0]), None, None]},
    ],
)
def test_weights_without_a_size_are_refused(changes):
    with pytest.raises(ConfigError) as caught:
        build(make_config(None, **changes))
    assert str(caught.value) == (
        "the size for train: must be a number for a blend with weights, got None\n"
        "hint: pass the number of samples to blend, or remove the weights"
    )


@dataclass
class OwnConfig(GPTDatasetConfig):
    """A user's configuration, with a setting that is in no cache key."""

    colour: str = "red"


def test_settings_of_ours_count_and_those_of_a_user_that_decide_no_samples_do_not():
    config = make_config(None, kind=OwnConfig, blend=(["/data/books"], None), split="1,0,0", sequence_length=7)
    found = describe_settings(GPTDataset, [5, None, None], config)
    assert (found["sequence_length"], found["blend"], found["sizes"]) == ("7", '[ "books" ]', "[5, None, None]")
    assert not {"colour", "mmap_bin_files"} & set(found)
