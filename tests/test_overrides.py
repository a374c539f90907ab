"""Every path to samples calls an overridden method or raises: all return the samples of `dataset[k]`."""

import functools
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

from tests.datasets.kinds import KINDS, make_chat, make_gpt, make_multimodal, make_varlen
from tests.support import make_config
from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.conversations import VarlenDataset
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.mock import MockMultimodalDataset
from tokenloom.errors import ConfigError
from tokenloom.inspect.shown import shown_sample
from tokenloom.loading.loader import build_dataloader, collate
from tokenloom.loading.sample_digests import digest_of_samples
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.schedulers import wrap_data_iterator, wrap_dataset

POSITIONS = [3, 0, 2, 1]


# --- every way to override --------------------------------------------------------------------------------------------


def changed(sample):
    sample["loss_mask"] = sample["loss_mask"] + 7
    sample["extra"] = np.array([5, 6])
    return sample


def by_item(base):
    class Mine(base):
        def __getitem__(self, idx):
            return changed(super().__getitem__(idx))

    return Mine


def by_item_over_sample(base):
    class Mine(base):
        def __getitem__(self, idx):
            return {name: torch.as_tensor(array) for name, array in changed(self.sample(idx)).items()}

    return Mine


def by_sample(base):
    class Mine(base):
        def sample(self, idx):
            return changed(super().sample(idx))

    return Mine


def by_mixin(base):
    class Mixin:
        def __getitem__(self, idx):
            return changed(super().__getitem__(idx))

    return type("Mine", (Mixin, base), {})


def by_a_grandchild(base):
    class Child(by_item(base)):
        def __getitem__(self, idx):
            return {**super().__getitem__(idx), "more": np.array([1])}

        def batch(self, positions, **given):
            raise AssertionError("the batches of a class that another one has changed since")

        def __getitems__(self, positions):
            return [self[position] for position in positions]

    class Mine(Child):
        def __getitem__(self, idx):
            return super().__getitem__(idx) | {"more": np.array([2])}

    return Mine


def by_a_decorator(base):
    def decorated(method):
        @functools.wraps(method)
        def wrapper(self, idx):
            return changed(method(self, idx))

        return wrapper

    class Mine(base):
        __getitem__ = decorated(base.__getitem__)

    assert Mine.__getitem__.__module__.startswith("tokenloom.")
    return Mine


WAYS = [by_item, by_item_over_sample, by_sample, by_mixin, by_a_grandchild, by_a_decorator]


# --- every path to samples: each returns the samples at POSITIONS, in order -------------------------------------------


def rows_of(batch):
    if isinstance(batch, list):
        return batch
    return [{name: values[row] for name, values in batch.items()} for row in range(len(POSITIONS))]


def first_batch(loader):
    return rows_of(next(iter(loader)))


def each(samples):
    return samples


def of_blend(path):
    def follow(dataset):
        blend = BlendedDataset([dataset, dataset], [4, 4], None, make_config(None))
        where = {(int(blend.dataset_index[k]), int(blend.dataset_sample_index[k])): k for k in range(8)}
        positions = [where[number % 2, k] for number, k in enumerate(POSITIONS)]
        found = path(blend, positions)
        for number, sample in enumerate(found):
            assert int(sample["dataset_id"]) == number % 2
        return [{name: value for name, value in sample.items() if name != "dataset_id"} for sample in found]

    return follow


PATHS = {
    "sample": lambda dataset: [dataset.sample(k) for k in POSITIONS],
    "batch": lambda dataset: rows_of(dataset.batch(POSITIONS)),
    "items": lambda dataset: list(dataset.__getitems__(POSITIONS)),
    "data loader": lambda dataset: first_batch(DataLoader(dataset, batch_sampler=[POSITIONS], collate_fn=each)),
    "subset": lambda dataset: first_batch(DataLoader(Subset(dataset, POSITIONS), batch_size=4, collate_fn=each)),
    "concatenated": lambda dataset: first_batch(
        DataLoader(ConcatDataset([dataset, dataset]), batch_sampler=[POSITIONS], collate_fn=each)
    ),
    "our loader": lambda dataset: first_batch(build_dataloader(dataset, [POSITIONS])),
    "threads": lambda dataset: first_batch(ThreadLoader(dataset, [POSITIONS])),
    "ring": lambda dataset: first_batch(ThreadLoader(dataset, [POSITIONS], reuse_after=1)),
    "narrow": lambda dataset: first_batch(ThreadLoader(dataset, [POSITIONS], integer_dtype="int32")),
    "given arrays": lambda dataset: rows_of(dataset.batch(POSITIONS, out=dataset.allocate_batch(4))),
    "blend": of_blend(lambda blend, positions: [blend[k] for k in positions]),
    "blend, sample": of_blend(lambda blend, positions: [blend.sample(k) for k in positions]),
    "blend, batch": of_blend(lambda blend, positions: rows_of(blend.batch(positions))),
    "blend, items": of_blend(lambda blend, positions: list(blend.__getitems__(positions))),
    "blend, given arrays": of_blend(
        lambda blend, positions: rows_of(blend.batch(positions, out=blend.allocate_batch(4)))
    ),
    "blend, threads": of_blend(lambda blend, positions: first_batch(ThreadLoader(blend, [positions]))),
    "blend, subset": of_blend(
        lambda blend, positions: first_batch(DataLoader(Subset(blend, positions), batch_size=4, collate_fn=each))
    ),
}
MAY_REFUSE = {"ring", "narrow", "given arrays", "blend, given arrays"}


def as_lists(samples):
    return [{name: np.asarray(value).tolist() for name, value in sample.items()} for sample in samples]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def assert_path_returns(dataset, path, expected):
    if path in MAY_REFUSE:
        with pytest.raises(ConfigError, match=r"Mine|preprocess_func"):
            PATHS[path](dataset)
    elif isinstance(dataset, VarlenDataset) and path in ("batch", "blend, batch"):
        with pytest.raises(ConfigError, match=r"in length|in names or shapes"):
            PATHS[path](dataset)
    else:
        assert as_lists(PATHS[path](dataset)) == expected, path


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        pytest.param(kind, way, id=f"{kind}, {way.__name__}")
        for kind in KINDS
        for way in (WAYS if kind == "gpt" else WAYS[:3])
    ],
)
def test_every_path_calls_the_override(tmp_path, kind, way):
    base, make = KINDS[kind]
    dataset = make(way(base), tmp_path)
    expected = as_lists([dataset[k] for k in POSITIONS])
    assert all(sample["extra"] == [5, 6] and max(sample["loss_mask"]) in (7, 8) for sample in expected)
    for path in PATHS:
        if path == "given arrays" and not isinstance(dataset, GPTDataset):
            continue
        if path in ("batch", "given arrays") and way is by_a_grandchild:  # its own method, which nothing else calls
            continue
        assert_path_returns(dataset, path, expected)
    if kind != "varlen":
        assert len({digest_of_samples(dataset, [k]) for k in range(4)}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_classes_without_overrides_keep_fast_paths(tmp_path, kind):
    base, make = KINDS[kind]
    dataset = make(type("Mine", (base,), {}), tmp_path)
    expected = as_lists([dataset[k] for k in POSITIONS])
    refused = {path for path in PATHS if path in MAY_REFUSE} if not isinstance(dataset, GPTDataset) else set()
    for path in PATHS:
        if path in refused or (kind == "varlen" and path in ("batch", "threads", "blend, batch", "blend, threads")):
            continue
        assert as_lists(PATHS[path](dataset)) == expected, path


# --- other overrides and other paths ----------------------------------------------------------------------------------


class Doubled(GPTDataset):
    def __getitem__(self, idx):
        sample = super().__getitem__(idx)
        sample["tokens"] *= 2
        return sample


class DoubledBlend(BlendedDataset):
    def __getitem__(self, idx):
        sample = super().__getitem__(idx)
        return sample | {"tokens": sample["tokens"] * 2}


def blend_of(dataset, cls=BlendedDataset):
    return cls([dataset, dataset], [4, 4], None, make_config(None))


def test_worker_processes_call_overrides(tmp_path):
    dataset = make_gpt(Doubled, tmp_path)
    for data in (dataset, blend_of(dataset)):
        pickled = pickle.loads(pickle.dumps(Subset(data, range(4))))  # as in spawned processes
        for loader in (
            DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="fork"),
            build_dataloader(data, [[0, 1]], num_workers=2, multiprocessing_context="fork"),
            DataLoader(pickled, batch_size=2),
        ):
            batch = next(iter(loader))
            assert batch["tokens"].tolist() == [data[k]["tokens"].tolist() for k in (0, 1)]
    assert torch.equal(dataset[0]["tokens"], 2 * make_gpt(GPTDataset, tmp_path)[0]["tokens"])


def test_overrides_of_blends(tmp_path):
    blend = blend_of(make_gpt(GPTDataset, tmp_path), DoubledBlend)
    expected = as_lists([blend[k] for k in POSITIONS])
    for path in ("sample", "batch", "items", "data loader", "subset", "our loader", "threads"):
        assert as_lists(PATHS[path](blend)) == expected, path
    for path in ("ring", "narrow", "given arrays"):
        with pytest.raises(ConfigError, match=r"DoubledBlend.__getitem__"):
            PATHS[path](blend)

    class Sampled(BlendedDataset):
        def sample(self, idx):
            return changed(super().sample(idx))

    with pytest.raises(ConfigError, match=r"`Sampled` overrides `sample` but not `__getitem__`"):
        blend_of(blend.datasets[0], Sampled)


def test_patches_affect_later_datasets(tmp_path, monkeypatch):
    folders = tmp_path / "earlier", tmp_path / "later"
    for folder in folders:
        folder.mkdir()
    earlier, inherited = make_gpt(GPTDataset, folders[0]), GPTDataset.__getitem__
    before = as_lists([earlier[k] for k in POSITIONS])
    monkeypatch.setattr(GPTDataset, "__getitem__", lambda self, idx: changed(inherited(self, idx)))
    for dataset in (make_gpt(GPTDataset, folders[1]), pickle.loads(pickle.dumps(earlier))):
        expected = as_lists([dataset[k] for k in POSITIONS])
        assert expected != before
        for path in PATHS:
            if path in MAY_REFUSE:
                with pytest.raises(ConfigError, match=r"`GPTDataset.__getitem__`"):
                    PATHS[path](dataset)
            else:
                assert as_lists(PATHS[path](dataset)) == expected, path
    for path in ("sample", "batch", "items", "our loader", "threads", "ring"):
        assert as_lists(PATHS[path](earlier)) == before, path


def test_an_overridden_batch_is_used(tmp_path):
    class Mine(GPTDataset):
        fills_batches = True

        def __getitem__(self, idx):
            raise AssertionError("slow path")

        def batch(self, positions, *, out=None):
            batch = super().batch(positions, out=out)
            batch["loss_mask"] *= 3
            return batch

    dataset = make_gpt(Mine, tmp_path)
    for path in ("batch", "items", "our loader", "threads", "ring", "narrow", "blend, batch"):
        assert {max(sample["loss_mask"].tolist()) for sample in PATHS[path](dataset)} == {3}, path
    with pytest.raises(ConfigError, match=r"^Mine overrides `Mine.__getitem__`, so it does not support filling given"):
        PATHS["blend, given arrays"](dataset)


@pytest.mark.parametrize("name", ["batch", "__getitems__", "fill_rows"])
def test_an_overridden_fast_path_alone_is_an_error(tmp_path, name):
    mine = type("Mine", (GPTDataset,), {name: lambda self, *given, **named: getattr(super(), name)(*given, **named)})
    text = f"^`Mine` overrides `{name}` but not `__getitem__`: .*\nhint: override `__getitem__`"
    with pytest.raises(ConfigError, match=text):
        make_gpt(mine, tmp_path)


@pytest.mark.parametrize("name", ["_build_document_index", "_get_ltor_masks_and_position_ids", "spans"])
def test_overriding_an_uncalled_method_is_an_error(tmp_path, name):
    mine = type("Mine", (GPTDataset,), {name: lambda self, *given: None})
    with pytest.raises(ConfigError, match=f"^`Mine` overrides `{name}`, which tokenloom does not call\nhint: "):
        make_gpt(mine, tmp_path)


def test_an_overridden_query(tmp_path):
    class Mine(GPTDataset):
        def _query_document_sample_shuffle_indices(self, idx):
            text, documents = super()._query_document_sample_shuffle_indices(idx)
            return text[::-1], documents

    plain, dataset = make_gpt(GPTDataset, tmp_path), make_gpt(Mine, tmp_path)
    expected = as_lists([dataset[k] for k in POSITIONS])
    for sample, k in zip(expected, POSITIONS, strict=True):
        text = plain._query_document_sample_shuffle_indices(k)[0].tolist()
        assert text == [*plain[k]["tokens"].tolist(), int(plain[k]["labels"][-1])]
        assert (sample["tokens"], sample["labels"]) == (text[:0:-1], text[-2::-1])
    for path in PATHS:
        assert as_lists(PATHS[path](dataset)) == expected, path
    assert dataset._query_document_sample_shuffle_indices(0)[1].tolist() == plain.spans(0).documents.tolist()
    shown = shown_sample(dataset, 0, None)
    assert [token.id for token in shown.tokens][:-1] == dataset[0]["tokens"].tolist()
    assert shown.notes[0].startswith("the tokens are not in the order of their documents, ")
    Mine._query_document_sample_shuffle_indices = lambda self, idx: (np.arange(6), None)
    with pytest.raises(ConfigError, match=r"`Mine._query_document_sample_shuffle_indices`: must return up to 5 tokens"):
        dataset[0]
    with pytest.raises(ConfigError, match=r"`inter_document_masking`: needs unchanged texts, but .* overrides `Mine"):
        make_gpt(Mine, tmp_path, inter_document_masking=True)[0]


def test_packing_calls_overrides(tmp_path):
    class Mine(VarlenDataset):
        def __getitem__(self, idx):
            sample = super().__getitem__(idx)
            return sample | {"loss_mask": sample["loss_mask"] + 7}

    dataset = make_chat(Mine, tmp_path, make_varlen)
    config = PackingConfig(max_seqlen_per_dp_cp_rank=64, sequence_packing_scheduler="dp_balanced")
    iterator, *_ = wrap_dataset(dataset, range(4), config)
    assert {min(pack["loss_mask"].tolist()) for pack in iterator} == {7}

    class OnlyNext:
        def __init__(self):
            self.samples = iter(build_dataloader(dataset, [[0, 1], [2, 3]]))

        def __next__(self):
            return next(self.samples)

    wrapped, *_ = wrap_data_iterator(OnlyNext(), config, 2)
    assert {min(pack["loss_mask"].tolist()) for pack in wrapped} == {7}
    with pytest.raises(ConfigError, match=r"^Mine overrides `Mine.__getitem__`"):
        dataset.ledger()
    loss = [token.loss for token in shown_sample(dataset, 0, None).tokens]
    assert loss[1:] == (dataset[0]["loss_mask"] > 0).tolist()


def test_every_path_preprocesses_samples(tmp_path):
    dataset = make_multimodal(MockMultimodalDataset, tmp_path, preprocess_func=changed)
    expected = as_lists([dataset[k] for k in POSITIONS])
    for path in PATHS:
        assert_path_returns(dataset, path, expected)


def test_getitem_may_call_fast_paths(tmp_path):
    plain = make_gpt(GPTDataset, tmp_path)
    for item in (lambda self, idx: self.sample(idx), lambda self, idx: self.__getitems__([idx])[0]):
        dataset = make_gpt(type("Mine", (GPTDataset,), {"__getitem__": item}), tmp_path)
        for path in ("sample", "batch", "items", "threads"):
            assert as_lists(PATHS[path](dataset)) == as_lists(PATHS[path](plain)), path


def test_samples_that_make_no_batch(tmp_path):
    class Mine(GPTDataset):
        def __getitem__(self, idx):
            return {"tokens": super().__getitem__(idx)["tokens"][: 1 + idx % 2]}

    dataset = make_gpt(Mine, tmp_path)
    with pytest.raises(ConfigError, match=r"^Mine: cannot batch samples that differ in names or shapes"):
        dataset.batch([0, 1])
    assert dataset.batch([0, 2])["tokens"].shape == (2, 1)
    assert dataset.batch([]) == {}


# --- collate functions ------------------------------------------------------------------------------------------------


def zeroed_in_place(batch):
    for sample in batch:
        sample["tokens"][:] = 0
    return batch


def zeroed_by_index(batch):
    for row in range(len(batch)):
        batch[row] = {**batch[row], "tokens": torch.zeros_like(batch[row]["tokens"])}
    return batch


def with_masks_written(batch):
    for sample in batch:
        sample["attention_mask"][:] = True
        sample["tokens"].zero_()
    return batch


@pytest.mark.parametrize("write", [zeroed_in_place, zeroed_by_index, with_masks_written])
@pytest.mark.parametrize("collate", [torch.utils.data.default_collate, collate], ids=["torch's", "ours"])
def test_collate_functions_may_change_samples(tmp_path, write, collate):
    dataset = make_gpt(GPTDataset, tmp_path, create_attention_mask=True)
    before = as_lists([dataset[k] for k in range(4)])
    for data in (dataset, Subset(dataset, range(4)), blend_of(dataset)):
        loader = DataLoader(data, batch_size=4, collate_fn=lambda batch: collate(write(batch)))
        batch = next(iter(loader))
        assert batch["tokens"].tolist() == [[0] * 4] * 4
        assert bool(batch["attention_mask"].all()) == (write is with_masks_written)
    assert as_lists([dataset[k] for k in range(4)]) == before


def test_a_batch_behaves_like_a_list(tmp_path):
    dataset = make_gpt(GPTDataset, tmp_path)
    expected = as_lists([dataset[k] for k in POSITIONS])

    def batch():
        return dataset.__getitems__(POSITIONS)

    assert isinstance(batch(), list)
    assert len(batch()) == 4
    assert bool(batch())
    for look in (
        list,
        lambda found: found + [],  # noqa: RUF005
        lambda found: found[:],
        lambda found: list(reversed(found))[::-1],
        lambda found: [found.pop(0), *found],
        lambda found: pickle.loads(pickle.dumps(found)),
    ):
        assert as_lists(look(batch())) == expected
    touched = batch()
    touched[0]["tokens"][:] = 0
    assert touched.tensors["tokens"][0].tolist() == [0] * 4
    assert as_lists(pickle.loads(pickle.dumps(touched)))[1:] == expected[1:]
    del touched[1:]
    assert touched.tensors["tokens"].shape == (1, 4)
    extended = batch()
    extended.append({"tokens": 1})
    assert len(extended) == 5
    assert random_split(dataset, [0.5, 0.5])[0].__getitems__([0])[0].keys() == expected[0].keys()
