"""The ledger of runs in the reference's order, against their samples and their loaders."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.run.audit.ledgers import write_talks
from tests.run.megatrons import LENGTHS, STAGE, make, opened

from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.run import Run

KINDS = {
    "plain": "",
    "masked": "[samples]\neod_mask_loss = true\n",
    "without an extra token": "[samples]\nadd_extra_token_to_sequence = false\n",
}
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


@pytest.mark.parametrize("kind", list(KINDS))
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


def test_all_ranks_add_up(tmp_path):
    run, found = opened(make(tmp_path)), Counter()
    for rank in range(3):
        loader = ThreadLoader(run.dataset(), MegatronPretrainingSampler(240, 0, 4, rank, 3), count=True)
        for _ in loader:
            pass
        for number, counts in loader.counts().items():
            each = {"samples": counts.samples, "slots": counts.slots, "loss": counts.with_loss}
            found += Counter({(number, name): count for name, count in each.items()})
    assert found == of_ledger(run.ledger(until=240))


def test_one_pair_and_a_source_of_several(tmp_path):
    path = make(tmp_path, sources='web = "web"\n', stage="sequence_length = 16\nsamples = 300\nweights = { web = 3 }\n")
    run = opened(path)
    assert of_ledger(run.ledger()) == counted(run, 300)
    (tmp_path / "run.lock").unlink()
    stage = STAGE.replace("0.7, code = 0.3", "1, rest = 2")
    ledger = opened(make(tmp_path, sources='web = "web"\nrest = ["code", "news"]\n', stage=stage)).ledger()
    assert (ledger.balance, ledger.total.counts.samples) == (0, 300)
    assert [name for name, _ in ledger.stages[0].sources] == ["web", "rest"]


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
    assert ledger.total.dropped.empty.conversations
    assert run.ledger(until=57, reads_data=False).balance == 0


@pytest.mark.filterwarnings("ignore::tokenloom.errors.UntrainableWarning")
def test_a_whole_dataset_of_conversations_is_its_own_ledger(tmp_path):
    """All of the samples that were built are read, so nothing is left but what the last pass does not reach."""
    write_talks(tmp_path)
    stage = "sequence_length = 64\nsamples = 20\nweights = { code = 1 }\n"
    run = opened(make(tmp_path, sources='code = "code"\n', stage=stage, head='dataset = "sft"\n'))
    row, whole = run.ledger().total, run.dataset().ledger()
    assert (row.offered, row.not_reached) == (whole.exposed.tokens, whole.not_reached.tokens)
    assert (row.counts.with_loss, row.counts.truncated) == (whole.num_trained_tokens, whole.truncated.tokens)
    assert row.counts.prompt + row.counts.first_tokens == whole.num_masked_tokens
    assert (row.counts.slots, row.counts.padding) == (whole.num_slots, whole.num_padding_slots)
    assert sum(row.balance) == 0
