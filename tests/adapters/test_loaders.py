"""Loaders of torch, torchdata and grain, which resume; the documentation's examples that need a framework."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapters.frameworks import (
    MUST_BE_THERE,
    NUM_SAMPLES,
    expected_tokens,
    in_order,
    in_turns,
    library,
    samples_of,
    tokens_of,
)
from tests.cli.runs import write_run
from tests.docs.pages import ROOT, all_pages, blocks_of, run_page
from torch.utils.data import DataLoader, IterableDataset

from tokenloom import ConfigError, load, lock_run
from tokenloom.adapters import SampleSource, iterable_dataset, stateful_dataloader
from tokenloom.loading.samplers import MegatronPretrainingRandomSampler


@pytest.fixture
def batches(tmp_path, rng):
    return iterable_dataset(samples_of(tmp_path, rng), in_order())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_yielded_in_order(batches, num_workers):
    assert isinstance(batches, IterableDataset)
    loader = DataLoader(batches, batch_size=None, num_workers=num_workers)
    assert len(batches) == len(loader) == 10
    assert tokens_of(loader) == expected_tokens(batches.dataset, batches.sampler)


def test_a_state_resumes_after_the_last_batch(batches):
    whole = tokens_of(batches)
    first = iter(batches)
    head = [next(first)["tokens"].tolist() for _ in range(3)]
    state = batches.state_dict()
    other = pickle.loads(pickle.dumps(iterable_dataset(batches.dataset, batches.sampler)))
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert [*head, *tokens_of(other)] == whole
    assert tokens_of(other) == whole  # the next epoch
    with pytest.raises(ConfigError, match="`state`: must be a state of version 1, got"):
        batches.load_state_dict({"position": 3})


def shuffled():
    return MegatronPretrainingRandomSampler(None, NUM_SAMPLES, 0, 4, 0, 1, True)


def iterable_in_loader(dataset, sampler, *, num_workers):
    stateful = library("torchdata.stateful_dataloader").StatefulDataLoader
    return stateful(iterable_dataset(dataset, sampler), batch_size=None, num_workers=num_workers)


@pytest.mark.slow
@pytest.mark.parametrize("make", [stateful_dataloader, iterable_in_loader])
@pytest.mark.parametrize(
    ("make_sampler", "stop", "num_workers"), [(in_order, 0, 0), (in_order, 9, 2), (shuffled, 3, 0), (shuffled, 3, 2)]
)
def test_torchdatas_loader_resumes(tmp_path, rng, make, make_sampler, stop, num_workers):
    stateful = library("torchdata.stateful_dataloader").StatefulDataLoader
    dataset = samples_of(tmp_path, rng)
    loader, resumed = (make(dataset, make_sampler(), num_workers=num_workers) for _ in range(2))
    assert isinstance(loader, stateful)
    batches = iter(loader)
    head = [next(batches)["tokens"].tolist() for _ in range(stop)]
    resumed.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
    assert [*head, *tokens_of(resumed)] == expected_tokens(dataset, make_sampler())


@pytest.mark.slow
def test_ranks_share_the_samples(tmp_path, rng):
    library("torchdata")
    dataset = samples_of(tmp_path, rng)
    ranks = [tokens_of(stateful_dataloader(dataset, in_order(rank, 2))) for rank in range(2)]
    assert in_turns(ranks) == expected_tokens(dataset, in_order())


@pytest.fixture(params=["dataset", "blend", "run"])
def anything(request: pytest.FixtureRequest, tmp_path: Path, rng: np.random.Generator) -> Any:
    if request.param == "run":
        path = write_run(tmp_path, manifests=True)
        lock_run(path)
        return load(path)
    for name in "ab":
        (tmp_path / name).mkdir()
    first = samples_of(tmp_path / "a", rng)
    if request.param == "dataset":
        return first
    samples_of(tmp_path / "b", rng)
    blend = {str(tmp_path / name / "corpus"): weight for name, weight in (("a", 0.3), ("b", 0.7))}
    return load(blend, sequence_length=16, tokenizer="null:1000", num_samples=50)


def test_samples_are_int32(anything: Any):
    source = SampleSource(anything)
    assert len(source) == len(anything)
    batch = anything.batch([0, 7])
    for row, position in enumerate((0, np.int64(7))):
        for name, array in source[position].items():
            assert np.array_equal(array, batch[name][row]), name
            assert array.dtype != np.int64
    assert np.array_equal(source[-1]["tokens"], source[len(source) - 1]["tokens"])
    other = pickle.loads(pickle.dumps(source))
    assert repr(other) == repr(source)
    assert np.array_equal(other[3]["tokens"], source[3]["tokens"])


def grain_library() -> Any:
    grain = library("grain.python")
    library("absl.flags").FLAGS.mark_as_parsed()  # grain's workers need it
    return grain


def grain_loader(source: SampleSource, num_workers: int) -> Any:
    grain = grain_library()
    return grain.DataLoader(
        data_source=source,
        sampler=grain.IndexSampler(NUM_SAMPLES, shard_options=grain.NoSharding(), shuffle=True, num_epochs=1, seed=5),
        operations=[grain.Batch(4, drop_remainder=True)],
        worker_count=num_workers,
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_grains_loader_resumes(tmp_path: Path, rng: np.random.Generator, num_workers: int):
    source = SampleSource(samples_of(tmp_path, rng))
    whole = tokens_of(grain_loader(source, num_workers))
    assert len(whole) == NUM_SAMPLES // 4
    iterator = iter(grain_loader(source, num_workers))
    first = tokens_of(next(iterator) for _ in range(3))
    state = iterator.get_state()
    assert repr(source) in json.loads(state)["data_source"]
    resumed = iter(grain_loader(pickle.loads(pickle.dumps(source)), num_workers))
    resumed.set_state(state)
    assert first + tokens_of(resumed) == whole


def test_grain_rejects_a_state_of_another_order(tmp_path: Path, rng: np.random.Generator):
    samples_of(tmp_path, rng)
    prefix = str(tmp_path / "corpus")
    one, same, other = (
        SampleSource(load(prefix, sequence_length=16, tokenizer="null:1000", seed=seed, num_samples=NUM_SAMPLES))
        for seed in (1, 1, 2)
    )
    state = iter(grain_loader(one, 0)).get_state()
    iter(grain_loader(same, 0)).set_state(state)
    with pytest.raises(ValueError, match=r"(?i)data.source"):
        iter(grain_loader(other, 0)).set_state(state)


NOT_HERE = {"streaming"}  # mosaicml-streaming 0.13 needs transformers 4


def needs_of(page: Path) -> set[str]:
    return {library for block in blocks_of(page) for library in block.needs}


PAGES = {str(page.relative_to(ROOT)): page for page in all_pages() if needs_of(page) and not needs_of(page) & NOT_HERE}


@pytest.mark.slow
@pytest.mark.skipif(not MUST_BE_THERE, reason="tests/docs runs the blocks that need no framework")
@pytest.mark.parametrize("name", PAGES)
def test_pages(name, tmp_path):
    for needed in needs_of(PAGES[name]):
        library(needed)
    run_page(PAGES[name], tmp_path)
