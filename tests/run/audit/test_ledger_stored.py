"""The ledger of runs in the reference's order, against their samples and their loaders."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.run.audit.ledgers import write_talks
from tests.run.megatrons import LENGTHS, STAGE, make, opened

from tokenloom.run.run import Run

KINDS = {"plain": "", "masked": "[samples]\neod_mask_loss = true\n"}
TALKS = 'web = ["web-0", "web-1"]\ncode = "code"\n'


def counted(run: Run, until: int) -> Counter:
    """Returns samples, slots and slots with loss by number of the dataset."""
    dataset, found = run.dataset(), Counter()
    for position in range(until):
        sample = dataset.sample(position)
        number = int(sample.get("dataset_id", 0))
        found[number, "samples"] += 1
        found[number, "slots"] += sample["loss_mask"].size
        found[number, "loss"] += int(np.count_nonzero(sample["loss_mask"]))
    return +found


def of_ledger(ledger) -> Counter:
    found = Counter()
    for number, (_, row) in enumerate(ledger.sources):
        found[number, "samples"] = row.counts.samples
        found[number, "slots"] = row.counts.slots
        found[number, "loss"] = row.counts.with_loss
    return +found


@pytest.mark.parametrize("kind", ["masked", pytest.param("plain", marks=pytest.mark.slow)])
def test_samples_of_documents(tmp_path, rng, kind):
    run = opened(make(tmp_path, head=KINDS[kind]))
    for until in (0, int(rng.integers(1, 300)), 300):
        ledger = run.ledger(until=until)
        assert ledger.balance == 0
        assert of_ledger(ledger) == counted(run, until)
        assert run.ledger(until=until, reads_data=False).balance == 0
    for (_, row), lengths in zip(ledger.sources, (LENGTHS["web"], LENGTHS["code"]), strict=True):
        assert row.offered % sum(lengths) == 0
    if kind == "masked":
        assert ledger.total.counts.eod_masked


@pytest.mark.filterwarnings("ignore::tokenloom.errors.UntrainableWarning")
@pytest.mark.parametrize("kind", ["sft", "varlen"])
def test_conversations(tmp_path, kind):
    write_talks(tmp_path)
    stage = STAGE.replace("web = 0.7, code = 0.3", "web = 3, code = 1")
    run = opened(make(tmp_path, sources=TALKS, stage=stage, head=f'dataset = "{kind}"\n'))
    pairs = [0, 0, 1]
    for until in (57, 300):
        ledger, by_source = run.ledger(until=until), Counter()
        for (number, name), count in counted(run, until).items():
            by_source[pairs[number], name] += count
        assert of_ledger(ledger) == by_source
        assert ledger.balance == 0
    assert ledger.total.dropped_empty.conversations
    assert run.ledger(until=57, reads_data=False).balance == 0
