"""States of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.loading.fake_run import FakeRun
from tests.support import make_dataset

from tokenloom.errors import ConfigError
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.samplers import MegatronPretrainingRandomSampler, MegatronPretrainingSampler
from tokenloom.loading.state import consumed_of_state, in_order, loader_state

RUN = FakeRun(100)
STATE = loader_state(RUN, 40)


def test_a_state_is_a_position_and_a_digest():
    assert list(STATE) == ["version", "run", "position", "digest"]
    assert (STATE["version"], STATE["run"], STATE["position"]) == (2, "the run", 40)
    assert json.loads(json.dumps(STATE)) == STATE
    for consumed in (0, 1, 100, np.int64(7)):
        assert consumed_of_state(FakeRun(100), loader_state(RUN, consumed)) == consumed
    with pytest.raises(ConfigError, match="expected a state of another run, found one of the run"):
        consumed_of_state(FakeRun(100, name="another run"), STATE)  # the dataset decides


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "loader state must be a mapping, got 'None'"),
        ({}, "version of the run's loader state: expected 2, found None"),
        ({**STATE, "version": 3}, "version of the run's loader state: expected 2, found 3"),
        ({**STATE, "digest": None}, "`digest` of the loader state must be text, got None"),
        ({**STATE, "position": -1}, "`position` of the loader state"),
    ],
)
def test_invalid_states_are_refused(state, message):
    with pytest.raises(ConfigError, match=message):
        consumed_of_state(RUN, state)


def test_a_dataset_that_is_not_a_run_has_no_state(prefix):
    dataset = make_dataset(prefix)
    with pytest.raises(ConfigError, match=r"^GPTDataset is not a run, so it has no state\nhint: save"):
        loader_state(dataset, 3)
    with pytest.raises(ConfigError, match="the state belongs to a run, but the dataset, GPTDataset, is not a run"):
        consumed_of_state(dataset, STATE)


@pytest.mark.parametrize(("consumed", "message"), [(-1, "consumed_samples"), (101, "the run ends at 100, before 101")])
def test_consumed_samples_are_checked(consumed, message):
    with pytest.raises(ConfigError, match=message):
        loader_state(RUN, consumed)


def test_a_data_loader_resumes_from_a_state():
    pytest.importorskip("torch")
    loader = build_dataloader(RUN, MegatronPretrainingSampler(100, 0, 5, 0, 2))
    assert [batch["position"].tolist()[0] for _, batch in zip(range(3), loader, strict=False)] == [0, 10, 20]
    consumed = consumed_of_state(RUN, loader_state(RUN, 30))
    resumed = build_dataloader(RUN, MegatronPretrainingSampler(100, consumed, 7, 1, 3))
    assert next(iter(resumed))["position"].tolist() == list(range(37, 44))


class Backwards(MegatronPretrainingSampler):
    def __iter__(self):
        return reversed(list(super().__iter__()))


class Own:
    def __iter__(self):
        return iter([[0], [1]])

    def position_after(self, num_batches):
        return num_batches

    def begin_at(self, position):
        pass


NOT_IN_ORDER = " does not follow the order of positions, so a run has no state with it"


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (MegatronPretrainingRandomSampler(None, 100, 0, 5, 0, 2, False), "RandomSampler" + NOT_IN_ORDER),
        ([[0], [1]], "list" + NOT_IN_ORDER),
        (Backwards(100, 0, 5, 0, 2), "`Backwards.__iter__` is overridden without `position_after`, which a state"),
    ],
)
def test_samplers_that_are_not_in_order_are_refused(sampler, message):
    with pytest.raises(ConfigError, match=message):
        in_order(sampler, RUN)


@pytest.mark.parametrize("sampler", [MegatronPretrainingSampler(100, 0, 5, 0, 2), Own()])
def test_samplers_in_order_are_accepted(sampler):
    assert in_order(sampler, RUN) is sampler


def test_a_dataset_built_for_a_run_uses_its_order():
    class Built:
        run_order = None

    dataset = Built()
    with pytest.raises(ConfigError, match="Built is not a run"):
        loader_state(dataset, 3)
    dataset.run_order = FakeRun(10)
    state = loader_state(dataset, 3)
    assert state == loader_state(dataset.run_order, 3)
    assert consumed_of_state(dataset, state) == 3
