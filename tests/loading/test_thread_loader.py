"""Batches that threads read ahead, in a ring of reused arrays or not, errors, and states of a run."""

import itertools
import json
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loading.batches import CHANGES, assert_equal_batches, stacked
from tests.loading.reading import FakeRun
from tests.support import flat, make_dataset, wait_until

from tokenloom import ThreadLoader
from tokenloom.errors import ConfigError
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.samplers import (
    HybridCPMegatronPretrainingSampler,
    MegatronPretrainingRandomSampler,
    MegatronPretrainingSampler,
)
from tokenloom.loading.state import consumed_of_state, in_order, loader_state


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tokenloom-loader")]


class Slow:
    """A dataset with slow batches: that of `fails_at` fails, and the first waits until `waits_for` are in progress."""

    def __init__(self, dataset, fails_at=None, *, waits_for=1, fills_batches=False):
        self.dataset = dataset
        self.fills_batches = fills_batches
        self.fails_at = fails_at
        self.waits_for = waits_for
        self.most_under_way = self.under_way = 0
        self.lock = threading.Lock()

    def allocate_batch(self, count, **settings):
        return self.dataset.allocate_batch(count, **settings)

    def batch(self, positions, **out):
        with self.lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        wait_until(lambda: self.most_under_way >= self.waits_for)
        time.sleep(0.02 / (1 + positions[0]))
        with self.lock:
            self.under_way -= 1
        if self.fails_at in positions:
            raise ValueError("broken data")
        return self.dataset.batch(positions, **out)


@pytest.fixture
def dataset(prefix):
    return make_dataset(prefix, num_samples=40)


@pytest.mark.parametrize(
    ("change", "num_threads", "read_ahead"),
    [("plain", 1, 1), ("masks", 1, 4), ("resets", 3, 5), ("document masking", 3, 5), ("positional reads", 2, 2)],
)
def test_batches_are_the_samples_in_order(prefix, change, num_threads, read_ahead):
    dataset = make_dataset(prefix, num_samples=40, **CHANGES[change])
    sampler = MegatronPretrainingSampler(len(dataset), 3, 4, 1, 2)
    loader = ThreadLoader(dataset, sampler, num_threads=num_threads, read_ahead=read_ahead)
    assert len(loader) == len(sampler)
    for _ in range(2):
        assert_equal_batches(loader, stacked(dataset, sampler))
    assert loader.wait.num_batches == 2 * len(sampler)
    assert loader.wait.total_seconds >= loader.wait.longest_seconds >= loader.wait.last_seconds >= 0


def test_threads_work_at_once_in_order_until_the_loop_is_left(dataset):
    slow = Slow(dataset, waits_for=2)
    sampler = MegatronPretrainingSampler(32, 0, 2, 0, 1)
    loader = ThreadLoader(slow, sampler, num_threads=4, read_ahead=4)
    assert_equal_batches(loader, stacked(dataset, sampler))
    assert 1 < slow.most_under_way <= 4
    for batch in ThreadLoader(dataset, MegatronPretrainingSampler(40, 0, 2, 0, 1), num_threads=3):
        assert batch["tokens"].shape[0] == 2
        break
    assert loader_threads() == []


@pytest.mark.parametrize(("read_ahead", "in_a_row"), [(3, 1), (8, 4)])
def test_at_most_read_ahead_batches_are_read_ahead(dataset, read_ahead, in_a_row):
    asked = []

    class Noting:
        def batch(self, positions):
            asked.append(positions)
            return dataset.batch(positions)

    batches = iter(ThreadLoader(Noting(), [[k] for k in range(40)], read_ahead=read_ahead))
    for num_handed_out in range(1, 13):
        next(batches)
        expected = num_handed_out // in_a_row * in_a_row + read_ahead
        wait_until(lambda: len(asked) >= expected)  # noqa: B023
        assert len(asked) == expected
    batches.close()
    assert len(asked) == 12 + read_ahead


@pytest.mark.parametrize(("num_bytes", "expected"), [(100, 16), (1 << 20, 8), (1 << 23, 4)])
def test_more_small_batches_are_read_ahead(num_bytes, expected):
    asked = []

    class Sized:
        def batch(self, positions):
            asked.append(positions)
            return {"tokens": np.zeros((1, num_bytes), dtype=np.uint8)}

    batches = iter(ThreadLoader(Sized(), [[k] for k in range(60)], digest=False))
    for _ in range(12):
        next(batches)
    wait_until(lambda: len(asked) >= 12 // (expected // 2) * (expected // 2) + expected)
    assert 12 + expected // 2 <= len(asked) <= 12 + expected
    batches.close()


@pytest.mark.parametrize(("num_threads", "read_ahead", "reuse_after"), [(1, 1, None), (1, 8, None), (2, 4, 4)])
def test_an_error_is_raised_at_the_failed_batch_with_its_positions(dataset, num_threads, read_ahead, reuse_after):
    sampler = MegatronPretrainingSampler(40, 0, 2, 0, 1)
    slow = Slow(dataset, fails_at=7, fills_batches=reuse_after is not None)
    settings = {"num_threads": num_threads, "read_ahead": read_ahead, "reuse_after": reuse_after, "pin_memory": False}
    seen = []
    with pytest.raises(ValueError, match="broken data") as caught:
        seen.extend(ThreadLoader(slow, sampler, **settings))
    assert_equal_batches(seen, list(stacked(dataset, sampler))[:3])
    assert caught.value.__notes__ == ["in batch 3 of the sampler, at positions [6, 7]"]
    assert loader_threads() == []


@pytest.mark.parametrize(("stop", "is_random"), [(0, False), (1, False), (5, False), (10, False), (8, True)])
def test_a_state_resumes_after_the_last_yielded_batch(dataset, stop, is_random):
    def make():
        sampler = MegatronPretrainingSampler(40, 0, 4, 0, 1)
        if is_random:
            sampler = MegatronPretrainingRandomSampler(dataset, 40, 0, 4, 0, 1, True)
        return ThreadLoader(dataset, sampler, read_ahead=8 if is_random else 3)

    whole = list(make())
    first = make()
    batches = iter(first)
    head = [next(batches) for _ in range(stop)]  # all of the random epoch is read ahead
    state = first.state_dict()
    batches.close()
    assert loader_threads() == []
    second = make()
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert_equal_batches([*head, *second], whole)
    if not is_random:
        assert_equal_batches(second, whole)  # the next pass starts at the first batch


def test_the_state_of_one_rank_is_that_of_all_but_not_of_another_sampler(dataset):
    loaders = [ThreadLoader(dataset, MegatronPretrainingSampler(40, 0, 4, rank, 2)) for rank in range(2)]
    whole = [list(loader) for loader in loaders]
    batches = iter(loaders[0])
    next(batches), next(batches)
    state = loaders[0].state_dict()
    batches.close()
    for rank, loader in enumerate(loaders):
        loader.load_state_dict(state)
        assert_equal_batches(loader, whole[rank][2:])
    state = ThreadLoader(dataset, MegatronPretrainingSampler(40, 0, 4, 0, 1)).state_dict()
    other = ThreadLoader(dataset, MegatronPretrainingSampler(40, 8, 4, 0, 1))
    with pytest.raises(ConfigError, match=r"sampler of the state: expected .*'consumed_samples': 0.*, found .*: 8"):
        other.load_state_dict(state)
    with pytest.raises(ConfigError, match=r"{'num_yielded': 3} is not a ThreadLoader state of version 1"):
        other.load_state_dict({"num_yielded": 3})


def run_loader(run, consumed=0, micro=4, rank=0, ranks=1, drop_last=False, **options):
    sampler = MegatronPretrainingSampler(len(run), consumed, micro, rank, ranks, drop_last)
    return ThreadLoader(run, sampler, **options)


def positions_of(loader, num_batches=None):
    return [batch["position"].tolist() for batch in itertools.islice(loader, num_batches)]


def test_the_state_over_a_run_is_a_position_and_a_loaded_one_for_the_next_iteration():
    run = FakeRun(100)
    loader = run_loader(run, consumed=3, micro=4, rank=1, ranks=2)
    assert loader.state_dict() == loader_state(run, 3)
    batches = iter(loader)
    next(batches)
    next(batches)
    assert loader.state_dict() == loader_state(run, 3 + 16)
    batches.close()
    assert loader.state_dict() == loader_state(run, 3 + 16)
    assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()
    next(iter(loader))  # another iteration starts at the same position
    assert loader.state_dict() == loader_state(run, 3 + 8)
    run = FakeRun(40)
    loader = run_loader(run, read_ahead=2)
    batches = iter(loader)
    next(batches)
    state = loader_state(run, 21)
    loader.load_state_dict(state)
    assert next(batches)["position"].tolist() == [4, 5, 6, 7]
    assert loader.state_dict() == state
    assert positions_of(loader, 1) == [[21, 22, 23, 24]]
    batches.close()
    assert loader.state_dict() == loader_state(run, 25)


def test_a_state_at_the_end_leaves_nothing():
    run = FakeRun(10)
    loader = run_loader(run)
    assert flat(positions_of(loader)) == list(range(10))  # the last chunk is incomplete
    assert loader.state_dict() == loader_state(run, 10)
    resumed = run_loader(run)
    resumed.load_state_dict(loader.state_dict())
    assert (len(resumed), positions_of(resumed), resumed.state_dict()) == (0, [], loader.state_dict())
    longer = run_loader(FakeRun(12))
    longer.load_state_dict(loader.state_dict())
    assert positions_of(longer) == [[10, 11]]


@st.composite
def topologies(draw, total):
    """Draws number of ranks, a function that makes the loader of a rank, and number of batches to read."""
    ranks, micro = draw(st.one_of(st.integers(1, 4), st.integers(1, 64))), draw(st.integers(1, 4))
    steps = draw(st.booleans())
    size = draw(st.integers(1, 3)) * micro * ranks
    drop_last = draw(st.booleans())
    options = {"num_threads": draw(st.integers(1, 2)), "read_ahead": draw(st.integers(1, 3))}

    def make(rank):
        if steps:
            sampler = HybridCPMegatronPretrainingSampler(total, 0, micro, size, rank, ranks, drop_last)
        else:
            sampler = MegatronPretrainingSampler(total, 0, micro, rank, ranks, drop_last)
        return ThreadLoader(FakeRun(total), sampler, **options)

    return ranks, make, draw(st.integers(0, 4))


@given(total=st.integers(1, 400), data=st.data())
def test_resuming_with_other_topologies_gives_the_stream_of_one_run(total, data):
    state = loader_state(FakeRun(total), 0)
    seen = []
    for _ in range(data.draw(st.integers(1, 3))):
        ranks, make, num_batches = data.draw(topologies(total))
        loaders = [make(rank) for rank in range(ranks)]
        for loader in loaders:
            loader.load_state_dict(state)
        batches = [positions_of(loader, num_batches) for loader in loaders]
        for step in zip(*batches, strict=True):
            seen += sorted(flat(step))
        states = [loader.state_dict() for loader in loaders]
        assert states == states[:1] * ranks
        state = json.loads(json.dumps(states[0]))
        assert seen == list(range(state["position"]))
    last = run_loader(FakeRun(total))
    last.load_state_dict(state)
    assert seen + flat(positions_of(last)) == list(range(total))


@pytest.mark.parametrize(
    ("change", "settings"),
    [("masks", {}), ("resets", {"reuse_after": 1}), ("document masking", {"integer_dtype": "int32"})],
)
def test_batches_are_the_same_arrays_without_torch(prefix, change, settings):
    dataset = make_dataset(prefix, num_samples=40, **CHANGES[change])
    loader = ThreadLoader(dataset, batch_size=4, tensors="numpy", read_ahead=2, **settings)
    assert (loader.tensors, loader.pin_memory) == ("numpy", False)
    tensors = ThreadLoader(dataset, batch_size=4, **settings)
    assert tensors.tensors == "torch"
    for arrays, expected in zip(loader, tensors, strict=True):
        assert arrays["tokens"].dtype == settings.get("integer_dtype", "int64")
        assert {type(array) for array in arrays.values()} == {np.ndarray}
        assert {name: (array.dtype, array.tolist()) for name, array in arrays.items()} == {
            name: (tensor.numpy().dtype, tensor.tolist()) for name, tensor in expected.items()
        }
    assert loader.digest == tensors.digest
    with pytest.raises(ConfigError, match="`pin_memory` has no effect with"):
        ThreadLoader(dataset, batch_size=4, tensors="numpy", pin_memory=True)


def test_batches_are_arrays_without_torch(prefix):
    script = f"""
import sys
sys.modules["torch"] = None
from tokenloom import ThreadLoader, load
dataset = load({prefix!r}, sequence_length=8, tokenizer="null:100")
loader = ThreadLoader(dataset, batch_size=4)
batch = next(iter(loader))
print(loader.tensors, type(batch["tokens"]).__name__, batch["tokens"].shape)
try:
    ThreadLoader(dataset, batch_size=4, tensors="torch")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "numpy ndarray (4, 8)",
        "`torch` is not installed",
        "hint: run `pip install 'tokenloom[torch]'`",
    ]


SAMPLER = MegatronPretrainingSampler(39, 0, 3, 0, 1)


@pytest.mark.parametrize(
    ("change", "num_threads", "read_ahead", "reuse_after"),
    [("plain", 1, 1, 1), ("masks", 1, 4, 1), ("resets", 3, 5, 2), ("document masking", 2, 2, 7)],
)
def test_a_batch_is_valid_until_reuse_after_more_batches_are_requested(
    prefix, change, num_threads, read_ahead, reuse_after
):
    dataset = make_dataset(prefix, num_samples=40, **CHANGES[change])
    loader = ThreadLoader(
        dataset, SAMPLER, num_threads=num_threads, read_ahead=read_ahead, reuse_after=reuse_after, pin_memory=False
    )
    expected = list(stacked(dataset, SAMPLER))
    for _ in range(2):
        kept = []
        for number, batch in enumerate(loader):
            kept = [*kept, (number, batch)][-reuse_after:]
            assert_equal_batches([held for _, held in kept], [expected[k] for k, _ in kept])
        assert number == len(expected) - 1


def test_the_ring_uses_no_new_memory_and_changed_batches_do_not_reach_later_ones(dataset):
    loader = ThreadLoader(dataset, SAMPLER, read_ahead=2, reuse_after=2, pin_memory=False)
    found = [tuple(tensor.data_ptr() for tensor in batch.values()) for batch in loader]
    assert found[4:] == found[:-4]
    assert len(set(found)) == 4
    expected = list(stacked(dataset, SAMPLER))
    for number, batch in enumerate(ThreadLoader(dataset, SAMPLER, reuse_after=1, pin_memory=False)):
        assert_equal_batches([batch], [expected[number]])
        for tensor in batch.values():
            tensor.fill_(5)
        batch.clear()


def test_batches_of_an_abandoned_iteration_stay_valid(dataset):
    loader = ThreadLoader(dataset, SAMPLER, read_ahead=1, reuse_after=1, pin_memory=False)
    pass_over = iter(loader)
    held = next(pass_over)
    pass_over.close()
    before = {name: tensor.clone() for name, tensor in held.items()}
    assert len(list(loader)) == 13
    assert_equal_batches([held], [before])


@pytest.mark.parametrize("setting", [{"reuse_after": 1}, {"integer_dtype": "int32"}])
def test_settings_that_need_a_dataset_to_fill_arrays_are_refused(prefix, setting):
    name = next(iter(setting))
    with pytest.raises(ConfigError, match=f"`{name}` needs a dataset that fills given arrays; Slow does not"):
        ThreadLoader(Slow(make_dataset(prefix)), [[0]], pin_memory=False, **setting)
    for wrong in ({"reuse_after": 0}, {"integer_dtype": "int16"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ThreadLoader(make_dataset(prefix), [[0]], **wrong)


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
    for consumed, message in ((-1, "consumed_samples"), (101, "the run ends at 100, before 101")):
        with pytest.raises(ConfigError, match=message):
            loader_state(RUN, consumed)


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


def test_a_dataset_that_is_not_a_run_has_no_state_of_a_run(dataset):
    with pytest.raises(ConfigError, match=r"^GPTDataset is not a run, so it has no state\nhint: save"):
        loader_state(dataset, 3)
    with pytest.raises(ConfigError, match="the state belongs to a run, but the dataset, GPTDataset, is not a run"):
        consumed_of_state(dataset, STATE)
    plain = run_loader(dataset)
    run = run_loader(FakeRun(40))
    with pytest.raises(ConfigError, match="version of the run's loader state: expected 2, found 1\nhint"):
        run.load_state_dict(plain.state_dict())
    with pytest.raises(ConfigError, match="the state belongs to a run, but the dataset, GPTDataset, is not a run"):
        plain.load_state_dict(run.state_dict())


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


class Own(list):
    def position_after(self, num_batches):
        return num_batches

    def begin_at(self, position):
        pass


NOT_IN_ORDER = " does not follow the order of positions, which a state of a run requires"


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
    for accepted in (MegatronPretrainingSampler(100, 0, 5, 0, 2), Own([[0], [1]])):
        assert in_order(accepted, RUN) is accepted


def test_a_dataset_built_for_a_run_uses_its_order():
    dataset = SimpleNamespace(run_order=None)
    with pytest.raises(ConfigError, match="SimpleNamespace is not a run"):
        loader_state(dataset, 3)
    dataset.run_order = FakeRun(10)
    state = loader_state(dataset, 3)
    assert state == loader_state(dataset.run_order, 3)
    assert consumed_of_state(dataset, state) == 3
