"""The reference's order behind a `run.toml`: samples and index files of the builder, a lock, and no changes."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.run.data import write_source
from tests.run.folders import MEGATRON_LENGTHS, MEGATRON_SOURCES, MEGATRON_STAGE, make_megatron, opened
from tests.support import make_config

from tokenloom import BlendedMegatronDatasetBuilder, GPTDataset
from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.state import consumed_of_state, loader_state
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.lock import MEGATRON_ORDER
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run
from tokenloom.run.sources import check_sources


def built(folder: Path, blend, *, size=300, cache=None, **settings):
    """Returns what the builder makes of (weight, name) or of one name."""
    names = blend if isinstance(blend, list) else [(None, blend)]
    weights = [weight for weight, _ in names]
    prefixes = [str(folder / name) for _, name in names]
    settings |= {"random_seed": 1234, "sequence_length": 16, "path_to_cache": cache and str(cache)}
    blends = [(prefixes, None if weights == [None] else weights), None, None]
    config = make_config(None, blend_per_split=blends, **settings)
    return BlendedMegatronDatasetBuilder(GPTDataset, [size, None, None], lambda: True, config).build()[0]


def assert_same(found, expected):
    assert type(found) is type(expected)
    assert len(found) == len(expected)
    ours, theirs = (dataset.batch(range(len(dataset))) for dataset in (found, expected))
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype
        np.testing.assert_array_equal(array, theirs[name])
    for k in (0, len(found) - 1):
        assert all(np.array_equal(value, expected[k][name]) for name, value in found[k].items())


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_samples_and_index_files_are_those_of_the_builder(tmp_path):
    path = make_megatron(tmp_path)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    dataset = opened(path, path_to_cache=ours).dataset()
    assert_same(dataset, built(tmp_path, [(0.7, "web"), (0.3, "code")], cache=theirs))
    assert len(files(ours)) > 6
    assert files(ours) == files(theirs)
    assert_same(opened(path, path_to_cache=ours).dataset(), dataset)


def test_a_lock_has_exact_weights_of_any_size(tmp_path):
    path = make_megatron(tmp_path, stage=MEGATRON_STAGE.replace("0.7, code = 0.3", "1, code = 0.123456789012345678901"))
    weights = [weight for _, weight in opened(path).lock.segments[0].weights]
    assert sorted(weights) == [123456789012345678901, 10**21]


def test_weights_count_as_they_are_written(tmp_path):
    stage = MEGATRON_STAGE.replace("web = 0.7, code = 0.3", "news = 0.6, web = 0.3, code = 0.1")
    path = make_megatron(tmp_path, sources='news = "news"\n' + MEGATRON_SOURCES, stage=stage)
    expected = built(tmp_path, [(0.6, "news"), (0.3, "web"), (0.1, "code")], cache=tmp_path / "theirs")
    assert_same(opened(path, path_to_cache=tmp_path / "ours").dataset(), expected)


def test_one_pair_is_its_dataset_and_tokens_become_samples(tmp_path):
    stage = "sequence_length = 16\ntokens = 4815\nweights = { web = 3 }\n"
    path = make_megatron(tmp_path, sources='web = "web"\n', stage=stage)
    run = opened(path, path_to_cache=tmp_path / "ours")
    assert run.num_samples == 300
    assert_same(run.dataset(), built(tmp_path, "web", cache=tmp_path / "theirs"))


def test_pairs_of_a_source_divide_its_weight_by_their_tokens(tmp_path):
    write_source(tmp_path / "empty")
    sources = 'web = "web"\nrest = ["code", "news", "empty"]\n'
    path = make_megatron(tmp_path, sources=sources, stage=MEGATRON_STAGE.replace("0.7, code = 0.3", "1, rest = 2"))
    code, news = sum(MEGATRON_LENGTHS["code"]), sum(MEGATRON_LENGTHS["news"])
    weights = [(1.0, "web"), (2 * code / (code + news), "code"), (2 * news / (code + news), "news")]
    expected = built(tmp_path, weights, cache=tmp_path / "theirs")
    assert_same(opened(path, path_to_cache=tmp_path / "ours").dataset(), expected)


def test_the_lock_holds_its_data_and_changes_before_consumption_are_said(tmp_path):
    path = make_megatron(tmp_path)
    lock = lock_run(path).lock
    assert lock.order == MEGATRON_ORDER
    [segment] = lock.segments
    assert (segment.start, segment.num_samples, segment.sequence_length) == (0, 300, 16)
    assert segment.weights == ((0, 7), (1, 3))
    assert check_sources(lock, full=False) == []
    assert Run.open(path).lock == lock
    make_megatron(tmp_path, seed=5)
    with pytest.raises(ConfigError, match="position 0 may already be consumed: a sample with `seed` 1234 would become"):
        lock_run(path)
    assert lock_run(path, consumed=0).moved.position == 0
    write_source(tmp_path / "code", *range(6, 96, 3))
    with pytest.raises(DatasetFormatError, match=r"code\.idx` changed after it was locked"):
        opened(path, path_to_cache=tmp_path / "cache").dataset()
    assert not (tmp_path / "cache").exists()
    assert check_sources(lock_run(path, consumed=0, write=False).old, full=False)


def loader_of(dataset, *, rank=0, ranks=1):
    return ThreadLoader(dataset, MegatronPretrainingSampler(len(dataset), 0, 4, rank, ranks))


def test_a_loader_goes_on_from_its_state_on_other_ranks(tmp_path):
    path = make_megatron(tmp_path)
    dataset = opened(path, path_to_cache=tmp_path / "cache").dataset()
    loader = loader_of(dataset)
    batches = iter(loader)
    for _ in range(6):
        next(batches)
    state = loader.state_dict()
    assert (state["position"], state["run"]) == (24, Run.open(path).identity)
    assert state["digest"] == Run.open(path).digest(24) == Run.open(path).digest(300)
    assert state == {**loader_state(dataset, 24), "read": state["read"]}

    again = opened(path, path_to_cache=tmp_path / "cache").dataset()
    ranks = [loader_of(again, rank=rank, ranks=2) for rank in range(2)]
    for each in ranks:
        each.load_state_dict(state)
    first, second = (next(iter(each)) for each in ranks)
    expected = dataset.batch(range(24, 32))
    np.testing.assert_array_equal(np.concatenate([first["tokens"], second["tokens"]]), expected["tokens"])


def test_a_state_beyond_the_end_is_refused_and_a_pickled_dataset_knows_its_order(tmp_path):
    dataset = opened(make_megatron(tmp_path), path_to_cache=tmp_path / "cache").dataset()
    end = len(dataset)
    state = loader_state(dataset, end)
    assert consumed_of_state(dataset, state) == end
    with pytest.raises(ConfigError, match=rf"position {end + 1} out of range: the run has {end} samples"):
        consumed_of_state(dataset, state | {"position": end + 1})
    with pytest.raises(ConfigError, match="position 1000 out of range"):
        Run.open(tmp_path / "run.toml").digest(1000)
    again = pickle.loads(pickle.dumps(dataset))
    assert loader_state(again, 5) == loader_state(dataset, 5)


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        ({"stage": MEGATRON_STAGE.replace("300", "301")}, "a stage of samples 300", "a stage of samples 301"),
        ({"stage": MEGATRON_STAGE.replace("0.7", "0.6")}, "('web', 7)", "('web', 2)"),
        ({"seed": 5}, "`seed` 1234", "`seed` 5"),
    ],
)
def test_a_change_after_consumption_is_refused(tmp_path, change, before, after):
    path = make_megatron(tmp_path)
    state = loader_state(opened(path, path_to_cache=tmp_path / "cache").dataset(), 24)
    lock_run(path, consumed=24)
    make_megatron(tmp_path, **change)
    written = (tmp_path / "run.lock").read_bytes()
    with pytest.raises(ConfigError, match="any change reshuffles all of") as caught:
        lock_run(path)
    assert "is before position 24" in caught.value.message
    assert before in caught.value.message
    assert after in caught.value.message
    assert (tmp_path / "run.lock").read_bytes() == written
    lock_run(path, consumed=0, drop=("consumed",))
    words = "state is of another run" if "seed" in change else "any change reshuffles all"
    with pytest.raises(ConfigError, match=words):
        consumed_of_state(opened(path, path_to_cache=tmp_path / "cache").dataset(), state)


def test_a_change_that_changes_nothing(tmp_path):
    path = make_megatron(tmp_path)
    state = loader_state(opened(path, path_to_cache=tmp_path / "cache").dataset(), 24)
    lock_run(path, consumed=24)
    make_megatron(tmp_path, stage="# a comment\n" + MEGATRON_STAGE.replace("0.7, code = 0.3", "7, code = 3"))
    assert lock_run(path).moved is None
    again = opened(path, path_to_cache=tmp_path / "cache").dataset()
    assert consumed_of_state(again, state) == 24


@pytest.mark.parametrize("ask", [Run.holdout, Run.plan, lambda run: run.place(0), lambda run: run.timeline])
def test_what_a_computed_order_alone_can_do_is_refused(tmp_path, ask):
    run = opened(make_megatron(tmp_path))
    with pytest.raises(ConfigError, match=r"the order of this run is stored, not computed"):
        ask(run)
