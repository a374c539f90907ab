"""Digests of the batches that loaders yield."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from tests.loading.fake_run import FakeRun
from tests.loading.reading import Lying, conversations_of, dataset_of, loader_of, megatron_dataset_of, write_run
from tests.support import StandInTokenizer, make_dataset

from tokenloom import MegatronPretrainingSampler, build_dataloader
from tokenloom.errors import ConfigError
from tokenloom.loading.check_reading import DigestedBatches
from tokenloom.loading.digest import RangeDigest, ReadingDigest, digest_batches, digest_of_positions
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.run import Run


@pytest.fixture
def run(tmp_path):
    return dataset_of(tmp_path)


def of(dataset, *positions):
    total = ReadingDigest()
    for position in positions:
        total.add([position], dataset.sample(position)["tokens"][np.newaxis])
    return total


def take(loader, num_batches):
    batches = iter(loader)
    for _ in range(num_batches):
        next(batches)
    return batches


SETTINGS = {
    "plain": {},
    "int32": {"integer_dtype": np.int32},
    "a ring": {"reuse_after": 1},
    "threads": {"num_threads": 3, "read_ahead": 6},
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_digest_covers_yielded_batches_only(run, settings):
    loader = loader_of(run, **SETTINGS[settings])
    assert loader.digest == ReadingDigest()
    batches = take(loader, 3)
    assert loader.digest == of(run, *range(12))
    next(batches)
    assert loader.digest == of(run, *range(16))
    assert len(list(batches)) == 71
    assert loader.digest == digest_of_positions(run, range(300))


def test_the_digest_does_not_depend_on_ranks_and_batch_sizes(run):
    expected = digest_of_positions(run, range(48))
    for size, batch in ((1, 4), (2, 3), (4, 6), (3, 16)):
        loaders = [loader_of(run, rank=rank, size=size, batch=batch) for rank in range(size)]
        for loader in loaders:
            take(loader, 48 // size // batch)
        assert sum((loader.digest for loader in loaders), ReadingDigest()) == expected


def test_the_digest_is_that_of_the_yielded_batches(run):
    lying = Lying(run, 6)
    loader = loader_of(lying)
    batches = take(loader, 1)
    assert loader.digest == of(run, *range(4))
    next(batches)
    assert loader.digest != of(run, *range(8))
    assert loader.digest == digest_of_positions(lying, range(8))


def test_a_loader_without_a_digest(run):
    loader = loader_of(FakeRun(100))
    take(loader, 2)
    with pytest.raises(ConfigError, match=r"batches of FakeRun have no digest: they need integer `tokens` and 64-bit"):
        _ = loader.digest
    loader = loader_of(run, digest=False)
    take(loader, 2)
    assert "read" not in loader.state_dict()
    with pytest.raises(ConfigError, match="the loader has no digest\nhint: create it with `digest=True`"):
        _ = loader.digest


def test_a_resumed_loader_continues_the_digest(run):
    first = loader_of(run)
    take(first, 5)
    state = json.loads(json.dumps(first.state_dict()))
    assert RangeDigest.parse(state["read"]).digest == of(run, *range(20))
    assert state["read"].startswith(f"1:{state['run'][:16]}:0-20:")
    second = loader_of(run, batch=10)
    second.load_state_dict(state)
    assert second.state_dict() == state
    take(second, 2)
    assert second.digest == of(run, *range(20, 40))
    whole = RangeDigest(run=state["run"][:16], start=0, stop=40, digest=of(run, *range(40)))
    assert RangeDigest.parse(second.state_dict()["read"]) == whole
    del state["read"]  # a state without a digest starts a new one
    second.load_state_dict(state)
    assert "read" not in second.state_dict()
    take(second, 1)
    assert RangeDigest.parse(second.state_dict()["read"]).start == 20


def test_each_iteration_starts_a_new_digest(run):
    loader = loader_of(run, size=2)
    take(loader, 5)
    assert "read" not in loader.state_dict()  # a single rank's digest does not cover the others
    loader = loader_of(run)
    take(loader, 5)
    take(loader, 2)
    assert loader.digest == of(run, *range(8))
    assert RangeDigest.parse(loader.state_dict()["read"]).stop == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(":0-20:", ":0-16:"), "`read` of the state: .* does not end at position 20 of run"),
        (lambda text: "1:0123456789abcdef:" + text.split(":", 2)[2], "does not end at position 20 of run"),
        (lambda _: 17, "'17' is not a digest"),
    ],
)
def test_a_foreign_digest_is_refused_and_changes_nothing(run, change, message):
    first = loader_of(run)
    take(first, 5)
    state = first.state_dict()
    loader = loader_of(run)
    with pytest.raises(ConfigError, match=message):
        loader.load_state_dict({**state, "read": change(state["read"])})
    assert loader.state_dict()["position"] == 0


@pytest.mark.parametrize("make", [dataset_of, megatron_dataset_of])
def test_positions_in_any_order_by_any_number_of_threads(make, tmp_path, rng):
    dataset = make(tmp_path)
    positions = rng.permutation(300)[:100].tolist()
    expected = of(dataset, *positions)
    assert digest_of_positions(dataset, positions) == expected
    assert digest_of_positions(dataset, np.array(positions), num_threads=3) == expected
    assert digest_of_positions(dataset, range(0)) == ReadingDigest()


@pytest.mark.parametrize("kind", ["sft", "varlen"])
def test_conversations(kind, tmp_path):
    dataset = conversations_of(tmp_path, kind)
    expected = ReadingDigest()
    for position in range(20):
        expected.add([position], [dataset[position]["tokens"]])
    assert digest_of_positions(dataset, range(20)) == expected
    sampler = MegatronPretrainingSampler(40, 0, 4, 0, 1)
    kept = DigestedBatches(build_dataloader(dataset, sampler), dataset, sampler)
    assert len(list(itertools.islice(kept, 5))) == 5
    assert kept.read.total == expected


def test_digests_of_single_batches(tmp_path):
    dataset = dataset_of(tmp_path)
    found = digest_batches(dataset, [[3, 4], [5], [], [6, None, 9]], num_threads=2).sums().reshape(-1, 2)
    sums = [of(dataset, *positions) for positions in ([3, 4], [5], [], [6, 9])]
    assert found.tolist() == [[each.low, each.high] for each in sums]
    assert digest_batches(dataset, []).num_batches == 0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tokenizer": StandInTokenizer(pad=3)},
        {"mmap_bin_files": False},
        {"reset_attention_mask": True, "eod_mask_loss": True},
        {"inter_document_masking": True},
        {"window_policy": "best_fit"},
    ],
)
def test_samples_of_all_settings(prefix, settings, tmp_path):
    dataset = make_dataset(prefix, in_memory=True, num_samples=20, **settings)
    loader = ThreadLoader(dataset, MegatronPretrainingSampler(20, 0, 5, 0, 1))
    list(loader)
    assert loader.digest == of(dataset, *range(20))


def test_denied_samples(tmp_path):
    (tmp_path / "denied.txt").write_text("web:3\nweb:4\nweb:60\n")
    write_run(tmp_path)
    plain = dataset_of(tmp_path)
    dataset = dataset_of(tmp_path, tail='[[denied]]\ndocuments = "denied.txt"\nfrom = 10\n')
    loader = loader_of(dataset)
    take(loader, 50)
    assert loader.digest == of(dataset, *range(200))
    assert loader.digest != of(plain, *range(200))


def test_stages_of_different_lengths(tmp_path):
    path = write_run(tmp_path, tail="[[stages]]\nsequence_length = 8\nsamples = 40\nweights = { web = 1 }\n")
    dataset = Run.open(path).dataset()
    assert digest_of_positions(dataset, range(280, 340)) == of(dataset, *range(280, 340))
