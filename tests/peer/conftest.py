"""Set-up and comparisons that modules of this folder share."""

import warnings
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def quiet():
    """Both sides warn of ambiguous pad ids and short data sets; other tests cover that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def process_group():
    """The peer caches blends, and builds masked datasets, only in an initialised process group."""
    import torch

    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    yield
    torch.distributed.destroy_process_group()


def rounds(num_fast, num_all):
    """Returns a fixture `rng`: a generator per round, all from the seed of the run; later rounds are slow."""
    slow = (pytest.param(number, marks=pytest.mark.slow) for number in range(num_fast, num_all))
    return pytest.fixture(params=[*range(num_fast), *slow], name="rng")(_rng)


def _rng(request, seed):
    return np.random.default_rng([seed, request.param])


def folder_bytes(folder):
    """Returns the files of a cache that both sides write; ours also records the identity of the data."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if not path.name.endswith("-identity.json")}


def times(*folders):
    return {path: path.stat().st_mtime_ns for folder in folders for path in Path(folder).iterdir()}


def assert_same(ours, peers):
    """Checks that two samples are equal, with dtypes and shapes."""
    assert list(ours) == list(peers)
    for name in peers:
        assert type(ours[name]) is type(peers[name]), name
        assert ours[name].dtype == peers[name].dtype, name
        assert ours[name].shape == peers[name].shape, name
        assert bool((ours[name] == peers[name]).all()), name
