"""Samples for grain and JAX."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapters.frameworks import NUM_SAMPLES, samples_of, tokens_of
from tests.adapters.libraries import library
from tests.cli.runs import write_run

from tokenloom import load, lock_run
from tokenloom.adapters import SampleSource


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
