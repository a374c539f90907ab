"""Counts of samples of documents, beside the samples themselves."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.audit.ledgers import KINDS, make_kind

from tokenloom.datasets.gpt import GPTDataset
from tokenloom.errors import ConfigError


@pytest.mark.parametrize("name", [name for name in KINDS if "sft" not in name and name != "varlen"])
def test_counts_are_those_of_the_samples(tmp_path, rng, name):
    dataset = make_kind(tmp_path, name).dataset()
    positions = rng.integers(0, 377, size=40)
    batch, found = dataset.batch(positions), dataset.slot_counts(positions)
    for source, counts in found.items():
        rows = batch["dataset_id"] == source
        assert counts.samples == rows.sum()
        assert counts.slots == batch["tokens"][rows].size
        assert counts.with_loss == np.count_nonzero(batch["loss_mask"][rows])
        assert counts.balance == (0, 0)
    assert sum(counts.samples for counts in found.values()) == 40


def test_samples_of_a_users_own_are_not_counted(tmp_path):
    class Other(GPTDataset):
        def __getitem__(self, idx):
            return super().__getitem__(idx)

    dataset = make_kind(tmp_path, "plain").dataset()
    dataset.sample(0)
    [group] = dataset._groups.of(np.array([0]))
    group.member.dataset.__class__ = Other
    with pytest.raises(ConfigError, match="counts"):
        group.slot_counts()
