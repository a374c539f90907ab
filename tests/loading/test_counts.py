"""Samples that loaders yield on all ranks, compared with the ledger of the run."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.run.audit.ledgers import make_kind
from tests.run.folders import HEAD, STAGE, make_run, write_pair, write_toml

from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run


def count(found: Counter, source: int, mask: np.ndarray) -> None:
    found += Counter({(source, "samples"): 1, (source, "slots"): len(mask), (source, "loss"): np.count_nonzero(mask)})


def counts_of_ranks(run: Run, ranks: int, start: int, stop: int) -> Counter:
    """Returns (source, kind of count) -> count of all ranks that read [start, stop)."""
    found: Counter = Counter()
    for rank in range(ranks):
        sampler = MegatronPretrainingSampler(stop, start, 1, rank, ranks)
        for batch in ThreadLoader(run.dataset(), sampler, num_threads=2):
            count(found, int(batch["dataset_id"][0]), np.asarray(batch["loss_mask"][0]))
    return found


def counts_of_ledger(run: Run, until: int) -> Counter:
    found: Counter = Counter()
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
    dataset = run.dataset()
    found: Counter = Counter()
    for position in range(427):
        sample = dataset[position]
        count(found, int(sample["dataset_id"]), np.asarray(sample["loss_mask"]))
    assert found == counts_of_ledger(run, 427)


def test_a_growing_source(tmp_path):
    head = HEAD + 'windows = "best_fit"\n'
    make_run(tmp_path, head=head)
    write_pair(tmp_path / "web-9", 60, first=10**6, seed=3)
    lock_run(write_toml(tmp_path, STAGE, head=head), consumed=200)
    run = Run.open(tmp_path / "run.toml")
    assert len(run.lock.segments) == 2
    assert counts_of_ranks(run, 2, 0, 600) == counts_of_ledger(run, 600)
    assert run.ledger().balance == 0
