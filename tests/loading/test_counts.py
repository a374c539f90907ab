"""What loaders handed out, on every rank, against the ledger of the run."""

from __future__ import annotations

import pickle
import threading
from collections import Counter

import numpy as np
import pytest
from tests.run.audit.ledgers import make_kind
from tests.run.folders import HEAD, STAGE, make_run, write_pair, write_toml

from tokenloom.loading.counts import BatchCounts, SourceCounts
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run


def batch(*masks, sources=None):
    made = {"loss_mask": np.array(masks, dtype=np.float32)}
    return made if sources is None else {**made, "dataset_id": np.array(sources, dtype=np.int16)}


def test_samples_that_fill_up_a_batch_are_not_counted():
    counts = BatchCounts()
    counts.add(batch([1, 1], [0, 0], sources=[0, 0]), [7, None])
    counts.add(batch([1, 1]), np.array([3]))
    assert counts.by_source() == {0: SourceCounts(samples=2, slots=4, with_loss=4)}


def test_many_batches_from_several_threads_and_pickled():
    counts = BatchCounts()

    def add():
        for _ in range(300):
            counts.add(batch([1, 0, 1], [1, 0, 0], sources=[1, 3]))

    threads = [threading.Thread(target=add) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    expected = {1: SourceCounts(samples=900, slots=2700, with_loss=1800)}
    expected[3] = SourceCounts(samples=900, slots=2700, with_loss=900)
    assert pickle.loads(pickle.dumps(counts)).by_source() == counts.by_source() == expected


def counts_of_ranks(run: Run, ranks: int, start: int, stop: int) -> Counter:
    """Returns (source, kind of count) -> count of all ranks that read [start, stop)."""
    found = Counter()
    for rank in range(ranks):
        sampler = MegatronPretrainingSampler(stop, start, 1, rank, ranks)
        loader = ThreadLoader(run.dataset(), sampler, num_threads=2, count=True)
        for _ in loader:
            pass
        for source, counts in loader.counts().items():
            found += Counter(
                {
                    (source, "samples"): counts.samples,
                    (source, "slots"): counts.slots,
                    (source, "loss"): counts.with_loss,
                }
            )
    return found


def counts_of_ledger(run: Run, until: int) -> Counter:
    found = Counter()
    for source, (_, row) in enumerate(run.ledger(until=until).sources):
        of_row = row.counts
        found += Counter(
            {(source, "samples"): of_row.samples, (source, "slots"): of_row.slots, (source, "loss"): of_row.with_loss}
        )
    return found


@pytest.mark.parametrize("name", ["masked, denied and padding ids", "masked packs", "denied sft"])
def test_all_ranks_add_up_to_the_ledger(tmp_path, rng, name):
    run = make_kind(tmp_path, name)
    first = 6 * int(rng.integers(1, 62))
    found = counts_of_ranks(run, int(rng.integers(1, 4)), 0, first)
    assert found == counts_of_ledger(run, first)
    found += counts_of_ranks(run, 1, first, 427)
    assert found == counts_of_ledger(run, 427)


def test_samples_of_different_lengths_one_by_one(tmp_path):
    run = make_kind(tmp_path, "varlen")
    dataset, counts = run.dataset(), BatchCounts()
    for position in range(427):
        counts.add(dataset[position])
    found = {(source, "loss"): each.with_loss for source, each in counts.by_source().items()}
    found |= {(source, "slots"): each.slots for source, each in counts.by_source().items()}
    found |= {(source, "samples"): each.samples for source, each in counts.by_source().items()}
    assert Counter(found) == counts_of_ledger(run, 427)


def test_a_source_that_grows(tmp_path):
    head = HEAD + 'windows = "best_fit"\n'
    make_run(tmp_path, head=head)
    write_pair(tmp_path / "web-9", 60, first=10**6, seed=3)
    lock_run(write_toml(tmp_path, STAGE, head=head), consumed=200)
    run = Run.open(tmp_path / "run.toml")
    assert len(run.lock.segments) == 2
    assert counts_of_ranks(run, 2, 0, 600) == counts_of_ledger(run, 600)
    assert run.ledger().balance == 0


def test_what_was_read_ahead_is_not_counted(tmp_path):
    run = make_kind(tmp_path, "plain")
    loader = ThreadLoader(run.dataset(), MegatronPretrainingSampler(300, 0, 4, 0, 1), read_ahead=8, count=True)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    assert sum(each.samples for each in loader.counts().values()) == 20
