"""Blended datasets, and their order as arrays: equal to the reference's, or mixed within blocks."""

import itertools
import pickle
from typing import NamedTuple

import numpy as np
import pytest
from tests.support import equal_samples, make_config, random_documents, write_corpus

from tokenloom.blending.array_order import ArrayBlendOrder
from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, IndexCacheError
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.order import ArrayStore


class Numbers(MegatronDataset):
    """A user's class with only the required methods; each sample contains its own index."""

    @staticmethod
    def build_low_level_dataset(dataset_path, config):
        return range(int(dataset_path))

    @staticmethod
    def numel_low_level_dataset(low_level_dataset):
        return len(low_level_dataset)

    def __len__(self):
        return len(self.indices) if self.num_samples is None else self.num_samples

    def __getitem__(self, idx):
        return {"number": self.dataset[int(self.indices[idx % len(self.indices)])]}


class Point(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize("kind", [tuple, Point._make])
def test_samples_may_be_tuples(kind):
    class Shaped(Numbers):
        def __getitem__(self, idx):
            return kind([int(self.indices[idx]), 2 * int(self.indices[idx])])

    members = [Shaped(range(4), "4", np.arange(4), None, Split.train, make_config(None)) for _ in range(2)]
    mixed = BlendedDataset(members, [4, 4], None, make_config(None))
    expected = [(n, k, 2 * k) for n, k in map(mixed.locate, range(3))]
    if kind is not tuple:
        expected = [dict(zip(("dataset_id", "x", "y"), each, strict=True)) for each in expected]
    assert [mixed[k] for k in range(3)] == expected


def numbers(length, *, split=Split.train):
    return Numbers(range(length), str(length), np.arange(length), None, split, make_config(None))


def blend(lengths, weights, size, **changes):
    return BlendedDataset([numbers(length) for length in lengths], weights, size, make_config(None, **changes))


def build(config, sizes=(None, None, None), *, cls=GPTDataset):
    return BlendedMegatronDatasetBuilder(cls, sizes, lambda: True, config).build()


@pytest.fixture
def mixed(tmp_path, rng):
    prefixes = [
        write_corpus(tmp_path / name, random_documents(rng, count=40, longest=30, vocab_size=90)) for name in "abc"
    ]
    config = make_config(None, blend=(prefixes, [1.0, 5.0, 2.0]), split="1", path_to_cache=f"{tmp_path}/cache")
    return build(config, (60, None, None))[0]


def test_by_weight_up_to_the_ends():
    dataset = blend([10, 10], [1, 3], 8)
    assert (len(dataset), dataset.dataset_index.tolist()) == (8, [1, 0, 1, 1, 0, 1, 1, 1])
    assert dataset.dataset_sample_index.tolist() == [0, 0, 1, 2, 1, 3, 4, 5]
    assert dataset.locate(3) == (1, 2)
    assert dataset.locate(-1) == (1, 5)
    assert dataset[3] == {"dataset_id": 1, "number": 2}
    assert [each["number"] for each in dataset] == [0, 0, 1, 2, 1, 3, 4, 5]
    for position in (8, -9):
        with pytest.raises(IndexError, match=rf"^sample {position} out of range: the blend has 8 samples$"):
            dataset[position]


def test_a_blend_of_more_datasets_than_int16_can_count():
    dataset = BlendedDataset([numbers(1)] * 32768, [1] * 32768, 32768, make_config(None))
    assert dataset.dataset_index.dtype == np.int32
    assert dataset.locate(-1) == (32767, 0)


def test_batches_are_their_samples(mixed, rng):
    positions = rng.integers(-len(mixed), len(mixed), size=25)
    batch = mixed.batch(positions)
    assert batch["dataset_id"].dtype == np.int16
    for row, position in enumerate(positions.tolist()):
        number, sample = mixed.locate(position)
        expected = mixed.sample(position)
        assert equal_samples({name: array[row] for name, array in batch.items()}, expected)
        assert expected["dataset_id"] == number
        assert (expected["tokens"] == mixed.datasets[number].sample(sample)["tokens"]).all()
        assert (mixed[position]["tokens"].numpy() == expected["tokens"]).all()
        spans, own = mixed.spans(position), mixed.datasets[number].spans(sample)
        assert spans.documents.tolist() == own.documents.tolist()
        assert spans.starts.tolist() == own.starts.tolist()
    empty = mixed.batch([])
    assert {name: len(array) for name, array in empty.items()} == dict.fromkeys(batch, 0)


def test_a_copy_by_pickle_gives_the_same(mixed, tmp_path):
    for original in (mixed, blend([10, 10], [1, 3], 8)):
        copy = pickle.loads(pickle.dumps(original))
        assert len(copy) == len(original)
        assert [copy.locate(k) for k in range(len(copy))] == [original.locate(k) for k in range(len(original))]
    assert len(pickle.dumps(mixed)) < 100_000


@pytest.mark.parametrize("name", ["dataset_index", "dataset_sample_index"])
@pytest.mark.parametrize("damage", ["truncated", "rewritten"])
def test_a_damaged_cache_is_built_again(mixed, tmp_path, name, damage):
    (path,) = (tmp_path / "cache").glob(f"*-BlendedDataset-train-{name}.npy")
    expected, good = [mixed.locate(k) for k in range(len(mixed))], path.read_bytes()
    path.unlink()
    if damage == "truncated":
        path.write_bytes(good[:-5])
    else:
        np.save(path, np.full(len(mixed), 9999, dtype=getattr(mixed, name).dtype))
    again = BlendedDataset(mixed.datasets, mixed.weights, len(mixed), mixed.config)
    assert [again.locate(k) for k in range(len(again))] == expected
    assert path.read_bytes() == good


def test_a_damaged_row_is_no_end_of_the_dataset(mixed):
    names = ("dataset_index", "dataset_sample_index")
    damaged = {name: getattr(mixed, name).copy() for name in names}
    damaged["dataset_index"][5], damaged["dataset_index"][6], damaged["dataset_sample_index"][7] = -1, 3, 10**6
    mixed.order.opened = damaged
    for row, look in itertools.product((5, 6, 7), (lambda row: mixed[row], lambda row: mixed.batch([row]))):
        with pytest.raises(IndexCacheError, match=rf"^the indices of the blend of 3 datasets .* damaged: row {row} "):
            look(row)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], 4), "a blend needs one weight per dataset, got 0 for 0 datasets"),
        (([5, 5], [1.0], 4), "a blend needs one weight per dataset, got 1 for 2 datasets"),
        (([5, 5], [1.0, -2.0], 4), r"weight of dataset 1 \(`5`, train\): must be finite and above 0, got -2.0"),
        (([5, 5], [1.0, float("nan")], 4), r"weight of dataset 1 \(`5`, train\): must be finite and above 0, got nan"),
        (([5, 5], [1, 6], None), r"weight of .*: without `size`, must be an integer up to 5, got 6"),
        (([5, 5], [1, 1.5], None), r"weight of .*: without `size`, must be an integer up to 5, got 1.5"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        blend(*arguments)


def test_datasets_of_several_kinds_are_refused():
    class Others(Numbers):
        pass

    other = Others(range(3), "3", np.arange(3), None, Split.train, make_config(None))
    for second, problem in ((other, "class, .*Others"), (numbers(3, split=Split.valid), "split, .*'train', 'valid'")):
        with pytest.raises(ConfigError, match=f"^datasets of a blend must have the same {problem}"):
            BlendedDataset([numbers(3), second], [1, 1], 2, make_config(None))


def test_one_bad_pair_among_many_is_named(tmp_path):
    prefixes = [write_corpus(tmp_path / f"p{number}", [[1] * 10]) for number in range(60)]
    settings = {"split": "1", "path_to_cache": f"{tmp_path}/cache", "num_dataset_builder_threads": 4}
    with pytest.raises(DatasetNotFoundError, match=r"absent\.idx` and `.*absent\.bin`"):
        build(make_config(None, blend=([*prefixes, f"{tmp_path}/absent"], None), **settings))
    with open(f"{prefixes[50]}.bin", "r+b") as stream:
        stream.truncate(13)
    with pytest.raises(DatasetFormatError, match=r"^`.*p50\.bin`: expected 20 bytes .*, found 13"):
        build(make_config(None, blend=(prefixes, None), **settings))


def test_a_class_of_ones_own_is_split_sized_and_blended():
    config = make_config(None, blend=(["8", "4"], [1.0, 1.0]), split="1,1,0", extend_short_datasets=True)
    train, valid, test = build(config, (6, 2, None), cls=Numbers)
    assert test is None
    assert [train[k] for k in range(2)] == [{"dataset_id": 0, "number": 0}, {"dataset_id": 1, "number": 0}]
    assert [valid[k]["number"] for k in range(2)] == [4, 2]
    sampler = MegatronPretrainingSampler(6, 0, 3, data_parallel_rank=0, data_parallel_size=1)
    batches = [(batch["dataset_id"].tolist(), batch["number"].tolist()) for batch in build_dataloader(train, sampler)]
    assert batches == [([0, 1, 0], [0, 0, 1]), ([1, 0, 1], [1, 2, 0])]


# --- the order as arrays --------------------------------------------------------------------------------------------
def arrays(weights, size, **more):
    names, shares = [str(weight) for weight in weights], [weight / sum(weights) for weight in weights]
    store = ArrayStore(cache=None, description="", name="a blend")
    order = ArrayBlendOrder([range(size)] * len(weights), names, shares, size, split="train", store=store, **more)
    return order.arrays["dataset_index"], order.arrays["dataset_sample_index"]


def test_each_block_holds_what_it_held_at_other_places():
    numbers, samples = arrays([3, 2, 1], 1000)
    mixed_numbers, mixed_samples = arrays([3, 2, 1], 1000, mixing_block=64, seed=5)
    for start in range(0, 1000, 64):
        part = slice(start, start + 64)
        before = sorted(zip(numbers[part].tolist(), samples[part].tolist(), strict=True))
        after = sorted(zip(mixed_numbers[part].tolist(), mixed_samples[part].tolist(), strict=True))
        assert after == before
    assert (mixed_numbers != numbers).mean() > 0.3


def test_it_is_a_function_of_seed_and_block():
    first = arrays([1, 1], 256, mixing_block=64, seed=5)
    longer = arrays([1, 1], 512, mixing_block=64, seed=5)
    assert [each[:256].tolist() for each in longer] == [each.tolist() for each in first]
    assert first[0].tolist() != arrays([1, 1], 256, mixing_block=64, seed=6)[0].tolist()
    assert first[0][:16].tolist() == [1, 0, 0, 1, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 0, 1]  # must not change


def test_the_setting_has_a_cache_of_its_own_and_changes_no_dataset(tmp_path, rng):
    prefixes = [write_corpus(tmp_path / name, [rng.integers(0, 90, size=400)]) for name in ("a", "b")]
    blends = {}
    for block in (1, 32):
        changes = {"blend": (prefixes, [1.0, 1.0]), "split": "1,0,0", "path_to_cache": str(tmp_path / "cache")}
        config = make_config(None, **changes, mixing_block=block)
        blends[block] = BlendedMegatronDatasetBuilder(GPTDataset, [160, None, None], lambda: True, config).build()[0]
    assert blends[1].unique_description_hash != blends[32].unique_description_hash
    assert "mixing_block" not in blends[1].unique_description
    for facts in (
        lambda blend: [each.unique_description for each in blend.datasets],
        lambda blend: sorted(blend.batch(range(160))["tokens"].tolist()),
    ):
        assert facts(blends[1]) == facts(blends[32])
