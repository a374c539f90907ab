"""What is in the slots of parts of segments, wherever they are cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.run.audit.ledgers import counted_by_hand, make_kind

from tokenloom.datasets.slot_counts import NO_SLOTS
from tokenloom.run.audit.ledger_counts import Part, SlotCounter


@pytest.mark.parametrize("name", ["denied", "unmixed", "masked packs", "denied sft", "sft"])
def test_parts_add_up(tmp_path, rng, name):
    run = make_kind(tmp_path, name)
    by_hand = counted_by_hand(run)
    counter = SlotCounter(run.dataset())
    cuts = [0, *sorted(rng.integers(0, 300, size=3).tolist()), 300]
    for source, source_name in enumerate(("web", "code")):
        total = NO_SLOTS
        for start, stop in pairwise(cuts):
            mine = [each for each in by_hand[start:stop] if each[0] == source_name]
            found = counter.count(Part(segment=0, source=source, start=start, stop=stop), len(mine))
            assert (found.samples, found.slots) == (len(mine), sum(slots for _, slots, _ in mine))
            assert (found.with_loss, found.balance) == (sum(loss for *_, loss in mine), (0, 0))
            total += found
        every = [position for position, each in enumerate(by_hand[:300]) if each[0] == source_name]
        assert total == run.dataset().slot_counts(np.array(every))[source]


def test_samples_that_are_looked_into_are_reported(tmp_path):
    heard = []
    run = make_kind(tmp_path, "masked")
    run.ledger(until=100, report=heard.append)
    assert sum(heard) == 100
    heard.clear()
    run.ledger(until=100, reads_data=False, report=heard.append)
    assert not heard
