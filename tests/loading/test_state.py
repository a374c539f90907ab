"""States of a run: what they hold, and which are refused."""

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


def refusal(call, *arguments):
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return caught.value.message, caught.value.hint


def changed(**changes):
    return {**loader_state(RUN, 40), **changes}


def without(name):
    return {key: value for key, value in loader_state(RUN, 40).items() if key != name}


def test_a_state_is_a_position_and_what_decides_it():
    state = loader_state(RUN, 40)
    assert list(state) == ["version", "run", "position", "digest"]
    assert (state["version"], state["run"], state["position"]) == (2, "the run", 40)
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize("consumed", [0, 1, 40, 100, np.int64(7)])
def test_a_state_leads_back_to_its_position(consumed):
    assert consumed_of_state(FakeRun(100), loader_state(RUN, consumed)) == consumed


def test_what_changes_later_is_no_matter():
    state = loader_state(RUN, 40)
    assert consumed_of_state(FakeRun(100, changes={40: "other weights"}), state) == 40
    assert consumed_of_state(FakeRun(40), state) == 40
    assert consumed_of_state(FakeRun(10**15), state) == 40


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (FakeRun(100, name="another run"), "expected a state of another run, found one of the run"),
        (
            FakeRun(100, changes={39: "other weights"}),
            "the order before position 40 is another one than that of the state",
        ),
        (FakeRun(39), "the run ends at 39, before 40"),
    ],
)
def test_the_dataset_refuses_states_that_are_not_its_own(dataset, message):
    assert refusal(consumed_of_state, dataset, loader_state(RUN, 40)) == (message, None)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "expected a mapping as the state of a loader, found 'None'"),
        ({}, "expected the state of a loader over a run, version 2, found version None"),
        (changed(version=3), "expected the state of a loader over a run, version 2, found version 3"),
        (without("digest"), "expected a text as `digest` of the state of a loader over a run, found None"),
        (changed(digest=None), "expected a text as `digest` of the state of a loader over a run, found None"),
        (changed(position=-1), "expected `position` of the state of a loader of at least 0, found -1"),
        (changed(position=40.0), "expected an integer as `position` of the state of a loader, found 40.0"),
    ],
)
def test_what_is_no_state_is_refused_by_name(state, message):
    assert refusal(consumed_of_state, RUN, state)[0] == message


def test_a_dataset_that_is_no_run_has_no_such_state(prefix):
    dataset = make_dataset(prefix)
    assert refusal(loader_state, dataset, 3) == (
        "expected a dataset that knows its order, such as that of a run, found GPTDataset",
        "keep the consumed samples themselves",
    )
    message, hint = refusal(consumed_of_state, dataset, loader_state(RUN, 40))
    assert message.startswith("expected a state of a loader over GPTDataset, found that of a run, {'version': 2, ")
    assert hint == "give the loader the dataset of that run"


def test_consumed_samples_are_checked():
    assert refusal(loader_state, RUN, -1)[0] == "expected consumed_samples of at least 0, found -1"
    assert refusal(loader_state, RUN, "3")[0] == "expected an integer as consumed_samples, found '3'"
    assert refusal(loader_state, RUN, 101)[0] == "the run ends at 100, before 101"


def test_a_data_loader_goes_on_from_a_state():
    pytest.importorskip("torch")
    loader = build_dataloader(RUN, MegatronPretrainingSampler(100, 0, 5, 0, 2))
    assert [batch["position"].tolist()[0] for _, batch in zip(range(3), loader, strict=False)] == [0, 10, 20]
    consumed = consumed_of_state(RUN, loader_state(RUN, 30))
    resumed = build_dataloader(RUN, MegatronPretrainingSampler(100, consumed, 7, 1, 3))
    assert next(iter(resumed))["position"].tolist() == list(range(37, 44))


# --- samplers -----------------------------------------------------------------------------------------------------


class Backwards(MegatronPretrainingSampler):
    def __iter__(self):
        return reversed(list(super().__iter__()))


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        (MegatronPretrainingRandomSampler(None, 100, 0, 5, 0, 2, False), "MegatronPretrainingRandomSampler"),
        ([[0], [1]], "list"),
    ],
)
def test_samplers_of_which_a_position_says_nothing_are_refused(sampler, name):
    assert refusal(in_order, sampler, RUN) == (
        "expected a sampler in the order of positions for a state of FakeRun, "
        f"found {name}, of which a position does not say what was read",
        "use `MegatronPretrainingSampler`, or give the sampler `position_after` and `begin_at`; a run is in a random "
        "order already",
    )


def test_a_class_that_changes_the_order_is_refused():
    assert refusal(in_order, Backwards(100, 0, 5, 0, 2), RUN) == (
        "expected a sampler in the order of positions for a state of FakeRun, "
        "found `Backwards.__iter__`, which `position_after` does not know",
        "override `position_after` and `begin_at` too",
    )


class Own:
    """A sampler of a user's, of batches of one."""

    def __init__(self):
        self.first = 0

    def __iter__(self):
        return ([position] for position in range(self.first, 100))

    def position_after(self, num_batches):
        return self.first + num_batches

    def begin_at(self, position):
        self.first = position


def test_samplers_in_order_are_taken():
    sampler = MegatronPretrainingSampler(100, 0, 5, 0, 2)
    assert in_order(sampler, RUN) is sampler
    own = Own()
    assert in_order(own, RUN) is own


def test_a_dataset_that_was_built_for_a_run_leaves_questions_to_what_knows_its_order():
    class Built:
        run_order = None

    dataset = Built()
    with pytest.raises(ConfigError, match="expected a dataset that knows its order"):
        loader_state(dataset, 3)
    dataset.run_order = FakeRun(10)
    state = loader_state(dataset, 3)
    assert state == loader_state(dataset.run_order, 3)
    assert consumed_of_state(dataset, state) == 3
