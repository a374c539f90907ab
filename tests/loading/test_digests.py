"""Digests of samples, of the batches that loaders yield, and their checks at checkpoints in one process."""

import hashlib
import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.loading.reading import (
    FakeRun,
    Lying,
    OnceLying,
    conversations_of,
    dataset_of,
    loader_of,
    megatron_dataset_of,
    write_run,
)
from tests.reference import sample_digest as twin
from tests.support import StandInTokenizer, make_dataset

from tokenloom import MegatronPretrainingSampler, build_dataloader
from tokenloom.errors import ConfigError, DivergenceError
from tokenloom.loading.check_reading import BatchRange, DigestedBatches, check_reading
from tokenloom.loading.sample_digests import (
    RangeDigest,
    ReadingDigest,
    check_same_batches,
    digest_batches,
    digest_of_positions,
    digest_of_samples,
    digests_of_batch,
)
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.run import Run

TOKENS = np.arange(12, dtype=np.int64).reshape(4, 3)
RUN = "35cbb0f6a6ad1ea6"


def digest(positions, tokens):
    found = ReadingDigest()
    found.add(positions, tokens)
    return found


def test_a_digest_is_that_of_the_twin_and_of_earlier_versions():
    found = digest([5, 6, 9, 2], TOKENS)
    assert (found.low, found.high) == twin.digest_samples([5, 6, 9, 2], TOKENS.tolist())
    assert found.num_samples == 4
    assert found.hexdigest() == f"{found.high:016x}{found.low:016x}"
    assert pickle.loads(pickle.dumps(found)) == found
    assert ReadingDigest.from_hex(found.hexdigest(), num_samples=4) == found
    assert digest([0, 1], np.array([[1, 2, 3], [4, 5, 6]])).hexdigest() == "fa4b3a33e00d22322050e71edcad412b"


@given(st.permutations(range(4)), st.integers(0, 4))
def test_the_digest_does_not_depend_on_order_and_batches(order, cut):
    rows = np.array(order)
    parts = digest(rows[:cut], TOKENS[rows[:cut]]) + digest(rows[cut:].tolist(), torch.from_numpy(TOKENS[rows[cut:]]))
    assert parts == digest(range(4), TOKENS)


def test_repeated_samples_and_any_lengths_count_and_padding_does_not():
    assert digest([1, 1], TOKENS[:2]) != digest([1], TOKENS[:1])
    assert digest([0, 0, 0], TOKENS[[0, 0, 0]]) != digest([0], TOKENS[:1])
    assert digest([3, None, 7, None], TOKENS) == digest([3, 7], TOKENS[[0, 2]])
    assert digest([None], TOKENS[:1]) == ReadingDigest()
    vectors = [TOKENS[0], torch.arange(7), np.zeros(0, np.int32)]
    expected = digest([4], TOKENS[:1]) + digest([5], np.arange(7)[np.newaxis]) + digest([6], np.zeros((1, 0), np.int8))
    assert digest([4, 5, 6], vectors) == expected
    batch = [{"tokens": vector} for vector in vectors]
    assert digests_of_batch(batch, 3)[0].tolist() == digests_of_batch({"tokens": TOKENS}, 4)[0].tolist()


@pytest.mark.parametrize("tokens", [TOKENS[:3], TOKENS * 1.5, TOKENS[0], [TOKENS[0]]])
def test_invalid_tokens_are_refused(tokens):
    with pytest.raises(ConfigError, match=r"`tokens`: must be integers \[4 samples, length\], got"):
        digest(range(4), tokens)
    with pytest.raises(ConfigError, match="`positions`: must be 0 or more, got"):
        digest([3, -1], TOKENS[:2])


def test_ranges_are_parsed_and_added():
    one, other = (
        RangeDigest(run=RUN, start=start, stop=start + 2, digest=digest([start, start + 1], TOKENS[start : start + 2]))
        for start in (0, 2)
    )
    assert str(other) == f"1:{RUN}:2-4:{other.digest.hexdigest()}"
    assert RangeDigest.parse(str(other)) == other
    assert one + other == RangeDigest(run=RUN, start=0, stop=4, digest=digest(range(4), TOKENS))
    with pytest.raises(ConfigError, match=f"the positions of digest {one} do not start where those of {other} stop"):
        _ = other + one


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"1:{RUN}:1-2:{'0' * 31}", "is not a digest such as 1:RUN:START-STOP:0000"),
        (f"1:{RUN}:1-2:{'0' * 32}\n", "is not a digest"),
        (f"2:{RUN}:1-2:{'0' * 32}", "digest version: expected 1, found 2"),
        (f"1:{RUN}:3-2:{'0' * 32}", "is not a digest"),
    ],
)
def test_invalid_ranges_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        RangeDigest.parse(text)


class Arrays:
    def __init__(self, **arrays):
        self.arrays = arrays

    def __len__(self):
        return len(next(iter(self.arrays.values())))

    def batch(self, positions):
        return {name: array[list(positions)] for name, array in self.arrays.items()}


ROWS = np.arange(6, dtype="<i8").reshape(3, 2)


def test_the_digest_is_that_of_names_dtypes_shapes_and_contiguous_bytes():
    expected = hashlib.sha256()
    for position in (2, 0):
        expected.update(f"{position}\0tokens\0<i8\0(1, 2)\0".encode() + ROWS[position].tobytes())
    assert digest_of_samples(Arrays(tokens=ROWS), [2, 0]) == expected.hexdigest()
    apart = Arrays(tokens=np.repeat(ROWS, 2, axis=1)[:, ::2], mask=np.broadcast_to(ROWS[0], (3, 2)))
    together = Arrays(tokens=ROWS, mask=np.tile(ROWS[0], (3, 1)))
    assert digest_of_samples(apart, range(3)) == digest_of_samples(together, range(3))


@pytest.mark.parametrize(
    "other",
    [
        Arrays(labels=ROWS),
        Arrays(tokens=ROWS.astype("<u8")),
        Arrays(tokens=ROWS.reshape(3, 1, 2)),
        Arrays(tokens=np.add(ROWS, [0, 1])),
        Arrays(tokens=ROWS, labels=ROWS),
        Arrays(tokens=ROWS[::-1]),
    ],
)
def test_any_difference_changes_the_digest(other):
    assert digest_of_samples(other, [0, 1]) != digest_of_samples(Arrays(tokens=ROWS), [0, 1])


def test_a_single_process_only_reads_the_samples():
    check_same_batches(Arrays(tokens=ROWS))
    check_same_batches(None)

    class Broken(Arrays):
        def batch(self, positions):
            raise IndexError("no such sample")

    with pytest.raises(IndexError, match="no such sample"):
        check_same_batches(Broken(tokens=ROWS))


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
    assert len(list(itertools.islice(batches, num_batches))) == num_batches
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


def test_the_digest_is_that_of_the_yielded_batches_of_any_ranks_and_sizes(run):
    expected = digest_of_positions(run, range(48))
    for size, batch in ((1, 4), (2, 3), (4, 6), (3, 16)):
        loaders = [loader_of(run, rank=rank, size=size, batch=batch) for rank in range(size)]
        for loader in loaders:
            take(loader, 48 // size // batch)
        assert sum((loader.digest for loader in loaders), ReadingDigest()) == expected
    lying = Lying(run, 6)
    loader = loader_of(lying)
    batches = take(loader, 1)
    assert loader.digest == of(run, *range(4))
    next(batches)
    assert loader.digest != of(run, *range(8))
    assert loader.digest == digest_of_positions(lying, range(8))


def test_a_loader_without_a_digest(run):
    for dataset, options, message in (
        (FakeRun(100), {}, "batches of FakeRun have no digest: a digest needs integer `tokens` and 64"),
        (run, {"digest": False}, "the loader has no digest\nhint: create the loader with `digest=True`"),
    ):
        loader = loader_of(dataset, **options)
        take(loader, 2)
        for ask in (lambda loader=loader: loader.digest, lambda loader=loader: check_reading(loader)):
            with pytest.raises(ConfigError, match=message):
                ask()
    assert "read" not in loader.state_dict()


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
        (lambda text: text.replace(":0-20:", ":0-16:"), "`read` of the state, .*, does not end at position 20 of run"),
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


def test_denied_samples_and_stages_of_different_lengths(tmp_path):
    (tmp_path / "denied.txt").write_text("web:3\nweb:4\nweb:60\n")
    write_run(tmp_path)
    plain = dataset_of(tmp_path)
    dataset = dataset_of(tmp_path, tail='[[denied]]\ndocuments = "denied.txt"\nfrom = 10\n')
    loader = loader_of(dataset)
    take(loader, 50)
    assert loader.digest == of(dataset, *range(200))
    assert loader.digest != of(plain, *range(200))
    (tmp_path / "stages").mkdir()
    path = write_run(tmp_path / "stages", tail="[[stages]]\nsequence_length = 8\nsamples = 40\nweights = { web = 1 }\n")
    dataset = Run.open(path).dataset()
    assert digest_of_positions(dataset, range(280, 340)) == of(dataset, *range(280, 340))


def test_a_check_returns_what_was_read_since_the_start(run):
    loader = loader_of(run)
    batches = iter(loader)
    assert check_reading(loader).digest == digest_of_positions(run, range(0))
    for stop, num_batches, when in ((8, 2, "never"), (32, 6, "now")):
        assert len(list(itertools.islice(batches, num_batches))) == num_batches
        found = check_reading(loader, reread=when)
        assert (found.start, found.stop) == (0, stop)
        assert found.digest == digest_of_positions(run, range(stop))
        assert loader.state_dict()["read"] == str(found)
    resumed = loader_of(run)
    resumed.load_state_dict(loader.state_dict())
    list(itertools.islice(resumed, 3))
    assert check_reading(resumed).digest == digest_of_positions(run, range(44))


@pytest.mark.parametrize(("position", "size", "num_batches"), [(0, 4, 20), (21, 4, 20), (79, 4, 20), (201, 1, 300)])
def test_a_flipped_bit_is_found(run, position, size, num_batches):
    loader = loader_of(OnceLying(run, position), batch=size)
    take(loader, num_batches)
    batch = position // size
    positions = ", ".join(map(str, range(batch * size, batch * size + size)))
    expected = rf"data-parallel rank 0: rank 0 read tokens that differ from the data at positions \[{positions}\], "
    expected += f"batch {batch} since the last check: expected digest [0-9a-f]+"
    with pytest.raises(DivergenceError, match=expected):
        check_reading(loader)


def test_data_that_change_during_the_check_are_reported(run):
    loader = loader_of(run)
    list(itertools.islice(loader, 3))
    loader.read.dataset = OnceLying(run, 5)
    with pytest.raises(DivergenceError, match="batches differed in the comparison, but not when they were read again"):
        check_reading(loader)


def test_other_loaders_are_wrapped_and_a_batch_range_has_the_batches_of_any_rank(run):
    sampler = MegatronPretrainingSampler(len(run), 0, 4, 0, 1)
    loader = build_dataloader(run, sampler)
    with pytest.raises(ConfigError, match="DataLoader has no digests of its batches\nhint: pass `Dig"):
        check_reading(loader)
    kept = DigestedBatches(loader, run, sampler)
    list(itertools.islice(kept, 6))
    assert check_reading(kept).digest == digest_of_positions(run, range(24))
    sampler = MegatronPretrainingSampler(80, 0, 4, 0, 2)
    unchecked = BatchRange(sampler=sampler, start=16, stop=32, sums=np.zeros((2, 2), dtype=np.uint64))
    assert [list(batch) for batch in unchecked.batches(1)] == [[20, 21, 22, 23], [28, 29, 30, 31]]
    assert sampler.data_parallel_rank == 0


def test_loaders_that_cannot_be_checked_are_refused(run):
    with pytest.raises(ConfigError, match='`reread`: must be "now" or "never", got'):
        check_reading(None, reread="soon")
    with pytest.raises(DivergenceError, match="no loader for data-parallel rank 1 of 2"):
        check_reading(loader_of(run, size=2))
