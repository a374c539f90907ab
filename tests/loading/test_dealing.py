"""Batches without a sampler."""

from __future__ import annotations

import pytest
from tests.support import make_dataset

from tokenloom import ConfigError, ThreadLoader
from tokenloom.distributed.ranks import Ranks
from tokenloom.loading import dealing


def positions(dataset, **settings):
    return list(dealing.batches_of(dataset, None, **{**NOTHING, **settings}))


NOTHING = {"batch_size": None, "data_parallel_rank": None, "data_parallel_size": None}


def test_positions_come_in_order(prefix):
    dataset = make_dataset(prefix, num_samples=40)
    assert positions(range(10), batch_size=4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert positions(range(10), batch_size=2, data_parallel_rank=1, data_parallel_size=2) == [[2, 3], [6, 7]]
    loader = ThreadLoader(dataset, batch_size=8)
    assert [batch["tokens"].shape for batch in loader] == [(8, 4)] * (len(dataset) // 8)


def test_a_state_resumes(prefix):
    dataset = make_dataset(prefix, num_samples=40)
    batches = iter(ThreadLoader(dataset, batch_size=4))
    next(batches)
    loader = ThreadLoader(dataset, batch_size=4)
    batches = ThreadLoader(dataset, batch_size=4)
    whole = list(batches)
    taken = iter(batches)
    next(taken)
    loader.load_state_dict(batches.state_dict())
    assert next(iter(loader))["tokens"].tolist() == whole[1]["tokens"].tolist()


def test_a_sampler_that_is_given_is_taken():
    batches = [[1, 2], [3]]
    assert dealing.batches_of(range(9), batches, **NOTHING) is batches


def test_ranks_must_be_said_where_there_are_several(monkeypatch):
    monkeypatch.setattr(dealing, "current_ranks", lambda: Ranks(rank=1, world_size=4, host="here"))
    with pytest.raises(ConfigError) as caught:
        positions(range(10), batch_size=2)
    assert caught.value.message == (
        "expected `data_parallel_rank` and `data_parallel_size` beside `batch_size`, found neither, and 4 ranks of "
        "`torch.distributed`, all of which would read the same samples"
    )
    assert positions(range(10), batch_size=2, data_parallel_rank=1, data_parallel_size=4) == [[2, 3]]
    monkeypatch.setattr(dealing, "current_ranks", lambda: Ranks(rank=0, world_size=1, host="here"))
    assert len(positions(range(10), batch_size=2)) == 5


@pytest.mark.parametrize(
    ("dataset", "sampler", "settings", "message"),
    [
        ("corpus", None, {}, "expected a dataset, found the text 'corpus'\nhint: open it with `tokenloom.load`"),
        (None, None, {}, "expected a dataset, found None\nhint: what is built is None for a split without data, and"),
        (
            7,
            None,
            {},
            "expected a dataset, which has `__getitem__`, found int\nhint: make one with",
        ),
        (range(9), None, {}, "expected `batch_size` or a sampler, found neither\nhint: such as `batch_size=8`"),
        (
            range(9),
            8,
            {},
            "expected a sampler, which yields the positions of one batch after the other, found 8\nhint:",
        ),
        (range(9), "random", {}, "expected a sampler, which yields the positions of one batch after the other, found"),
        (range(9), [[1]], {"batch_size": 8}, "a sampler and `batch_size` exclude each other, found both\nhint: the"),
        (range(9), None, {"batch_size": "8"}, "expected an integer as batch_size, found '8'"),
        (range(9), None, {"batch_size": 10}, "expected at least one batch of 10 samples, found 9 samples\nhint: use"),
        (
            range(9),
            None,
            {"batch_size": 3, "data_parallel_rank": 0, "data_parallel_size": 4},
            "expected at least one batch of 3 samples for each of 4 ranks, found 9 samples",
        ),
        (
            range(9),
            None,
            {"batch_size": 3, "data_parallel_rank": 0},
            "expected `data_parallel_rank` and `data_parallel_size`, found no `data_parallel_size`",
        ),
    ],
)
def test_what_is_wrong_is_said(dataset, sampler, settings, message):
    with pytest.raises(ConfigError) as caught:
        dealing.batches_of(dataset, sampler, **{**NOTHING, **settings})
    assert str(caught.value).startswith(message)


def test_a_sampler_of_single_positions_is_refused(prefix):
    dataset = make_dataset(prefix, num_samples=40)
    with pytest.raises(
        ConfigError, match=r"expected a list of positions from the sampler, found 0\nhint: a sampler of"
    ):
        next(iter(ThreadLoader(dataset, range(4))))
