"""Loaders that are killed and resumed: correct ones pass, and every kind of fault is found and described."""

from __future__ import annotations

import json

import numpy as np
import pytest
import resume_loaders as loaders
import torch
from tests.run.folders import make_run, write_data
from tests.support import make_dataset, write_corpus
from torch.utils.data import DataLoader

from tokenloom.errors import ConfigError, ConformanceError
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom_check import ResumeSettings, check_resume, record_batch, record_checkpoint

SAME = [(1, 1), (2, 2)]
KINDS = ["read again", "resumed", "resumed twice", "state kept", "loaded twice"]
AT_3 = {"kill_at": [3]}
ALONE = {"world_sizes": [(1, 1)]}


def check(make, *, state_of=None, samples="auto", **settings):
    tried = ResumeSettings(**{"seed": 5, "num_batches": 8, "world_sizes": SAME, **settings})
    return check_resume(make, tried, state_of=state_of, samples=samples, in_process=True)


def problem(make, **settings):
    with pytest.raises(ConformanceError) as caught:
        check(make, **settings)
    return " ".join(str(caught.value).split())


def test_thread_loaders_over_a_dataset_pass(tmp_path, rng):
    lengths = rng.integers(1, 30, size=60)
    corpus = write_corpus(tmp_path / "text", [[*rng.integers(10, 90, size=length), 9] for length in lengths])
    gpt = make_dataset(corpus, num_samples=60, sequence_length=8)

    def with_state(rank, world_size, state):
        loader = ThreadLoader(gpt, MegatronPretrainingSampler(60, 0, 2, rank, world_size), num_threads=2)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def with_samples(rank, world_size, consumed):
        return ThreadLoader(gpt, MegatronPretrainingSampler(60, consumed, 2, rank, world_size))

    assert check(with_state, world_sizes=[(2, 2)], kill_at=[3]).ok
    assert check(with_samples, world_sizes=[(2, 3)], kill_at=[3], order="strict").ok


def test_thread_loaders_over_a_run_pass_on_other_ranks(tmp_path):
    write_data(tmp_path)
    dataset = make_run(tmp_path).dataset()

    def make(rank, world_size, state):
        loader = ThreadLoader(dataset, MegatronPretrainingSampler(len(dataset), 0, 2, rank, world_size), read_ahead=3)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    assert check(make, world_sizes=[(2, 3)], kill_at=[0, 3], order="strict").ok


def test_torch_loaders_pass_by_the_samples_consumed():
    data = torch.utils.data.TensorDataset(torch.arange(60).reshape(30, 2), torch.arange(30))

    def make(rank, world_size, consumed):
        taken = [range(first + 2 * rank, first + 2 * rank + 2) for first in range(consumed, 30, 2 * world_size)]
        return DataLoader(data, batch_sampler=[[*map(int, row)] for row in taken if row.stop <= 30])

    assert check(make, world_sizes=[(2, 2), (3, 2)], num_batches=5).ok


def test_a_state_may_come_from_a_function():
    def make(rank, world_size, state):
        return iter(loaders.counting(rank, world_size, state))

    assert check(make, state_of=loaders.position_of, samples=loaders.numbers_of).ok


@pytest.mark.parametrize("make", [loaders.counting, loaders.by_count])
def test_correct_loaders_pass(make):
    report = check(make, world_sizes=[(1, 2), (2, 3), (2, 1)], seed=None, num_batches=12)
    assert report.ok
    assert {case.kind for case in report.cases} == set(KINDS)
    assert {case.kills for case in report.cases if case.kind == "resumed"} >= {(0,), (11,)}


def test_epochs_are_windows_too():
    report = check(loaders.short, epochs=2, num_batches=16, world_sizes=[(1, 1)])
    assert [case.kills for case in report.cases if case.kind == "between epochs"] == [(10,)]
    assert (10,) in [case.kills for case in report.cases if case.kind == "resumed"]


READ_AHEAD = (
    "of 32 samples, 8 missing resumed at batch 5 instead of 3: the state counts batches that were not returned yet, "
    "such as prefetched ones first missing: batch 3, rank 0 of the uninterrupted reading"
)
COPY = "the state changed while the loader continued: `state_dict` must return a copy"
RAISED = "rank 1 raised OSError: no such bucket, in resume_loaders.py:"


@pytest.mark.parametrize(
    ("make", "settings", "texts"),
    [
        (loaders.forgets_read_ahead, AT_3, ["resumed 1:1 3 0 8 0 0", READ_AHEAD]),
        (
            loaders.repeats_a_batch,
            AT_3,
            ["resumed 1:1 3 4 4 0 0", "batch 2 instead of 3: the state is from an earlier"],
        ),
        (loaders.ignores_its_state, AT_3, ["batch 0 instead of 3: the loader ignores its state or `consumed`"]),
        (loaders.loses_its_seed, AT_3, ["is not in the uninterrupted reading: the shuffle differs"]),
        (
            loaders.counts_by_rank,
            {"world_sizes": [(2, 2), (2, 3)]} | AT_3,
            ["resumed 2:2 3 0 0 0 0", "resumed 2:3 3 0 12 0 0", "world size 2:3, killed after 3"],
        ),
        (loaders.shares_its_state, {}, ["resumed 1:1 7 0 0 0 0", COPY]),
        (loaders.keeps_the_state_it_is_given, {}, ["the first loader changed the state it resumed from: "]),
        (
            loaders.turns_batches_round,
            {"kill_at": [1]} | ALONE,
            ["of 32 samples, 16 in another order", "first reordered: batch 2, rank 0, expected in batch 4"],
        ),
        (loaders.repeats_epochs, {"epochs": 3, "num_batches": 20} | ALONE, ["in another order"]),
        (
            loaders.goes_on_beyond_the_end,
            {"num_batches": 20, "kill_at": [4]} | ALONE,
            ["of 40 samples, 4 repeated first repeated: batch 10, rank 0"],
        ),
        (loaders.shuffles_anew, {}, ["two uninterrupted readings differ: the order depends on more than"]),
        (loaders.raises, {}, ["resumed 2:2 0 error", RAISED]),
        (loaders.gives_nothing, {}, ["gives_nothing returned no samples with world size 1"]),
        (
            loaders.always_raises,
            {},
            ["always_raises failed without a kill, with world size 1: rank 0 raised OSError: no"],
        ),
        (loaders.gives_objects, {}, [": rank 0 failed: `batch['image']` must contain tensors, "]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_faults_are_found_and_described(make, settings, texts):
    found = problem(make, **settings)
    assert [text for text in texts if text not in found] == [], found


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (loaders.counting, {"kill_at": [8]}, "`kill_at` must be below 8, the number of batches, got 8"),
        (loaders.counting, {"world_sizes": []}, "`world_sizes` must not be empty"),
        (loaders.counting, {"order": "rank"}, "`order` must be strict, batch, any, got 'rank'"),
        (loaders.counting, {"kill_at": [100], "num_batches": 101}, "below 100, the number of batches, got 100"),
        (loaders.cannot_go_on, {}, "the factory must take `state` or `consumed` to resume, got `cannot"),
    ],
)
def test_settings_and_factories_are_validated(make, settings, message):
    with pytest.raises(ConfigError, match=message):
        check(make, **settings)


def test_random_points_follow_from_the_seed(rng):
    seed = int(rng.integers(2**32))
    kills = [[case.kills for case in check(loaders.counting, seed=seed).cases] for _ in range(2)]
    assert kills[0] == kills[1]
    assert np.all([number < 8 for case in kills[0] for number in case])


def test_factories_get_the_arguments_they_accept():
    given = []

    def make(**arguments):
        given.append(arguments)
        return loaders.Counting(arguments["rank"], arguments["world_size"], loaders.start_of(arguments["state"]))

    assert check(make, kill_at=[3], world_sizes=[(2, 3)]).ok
    first, resumed = given[0], next(one for one in given if one["consumed"])
    assert first == {"rank": 0, "world_size": 2, "state": None, "states": [], "consumed": 0, "num_batches": 0}
    assert resumed["consumed"] == 4 * 2 * resumed["num_batches"]
    assert resumed["state"] in resumed["states"]


def test_processes_are_killed_and_compared():
    report = check_resume(loaders.counting, ResumeSettings(num_batches=6, world_sizes=[(2, 3)], kill_at=[2], seed=1))
    assert [case.kind for case in report.cases] == KINDS
    assert report.name == f"{loaders.__file__}:counting"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "message"), [(loaders.dies, "rank 0 died"), (loaders.hangs, "rank 1 returned no batch for 5 seconds")]
)
def test_a_rank_that_dies_or_hangs_is_named(make, message):
    with pytest.raises(ConformanceError, match=message):
        check_resume(make, ResumeSettings(num_batches=3, world_sizes=[(2, 2)], kill_at=[1], seed=1), timeout=5)


def test_a_table_has_a_line_per_case():
    report = check(loaders.counting, kill_at=[3], num_batches=6, world_sizes=[(2, 3)])
    lines = str(report).splitlines()
    assert lines[1] == "5 cases, 0 failed; 6 batches, order batch, seed 5"
    assert lines[3] == "case              ranks   killed    repeated     missing     unknown   reordered"
    assert "resumed             2:3        3           0           0           0           0" in lines
    assert max(map(len, lines)) <= 80
    assert json.loads(json.dumps(report.as_json()))["ok"] is True


def test_nothing_is_recorded_unless_asked():
    record_batch(object())
    record_checkpoint()
