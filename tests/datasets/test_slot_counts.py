"""Counts of slots and tokens: by hand, against a plain reference, and against what loaders yield."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.audit.ledgers import KINDS, make_kind
from tests.run.folders import HEAD, STAGE, make_run, write_pair, write_toml

from tokenloom.datasets.slot_counts import NO_SLOTS, SlotCounts, Texts, count_conversations, count_spans, count_windows
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.order.windows import SpanBatch
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run


def spans(*samples: list[tuple[int, int, int]]) -> SpanBatch:
    flat = np.array([span for sample in samples for span in sample], dtype=np.int64).reshape(-1, 3)
    offsets = np.cumsum([0, *map(len, samples)], dtype=np.int64)
    return SpanBatch(*(np.ascontiguousarray(column) for column in flat.T), offsets)


def test_windows_with_and_without_an_extra_token():
    found = count_spans(spans([(0, 0, 3), (1, 0, 2)], [(1, 1, 5)]), sequence_length=4, extra=1, are_packs=False)
    assert found == count_windows(2, sequence_length=4, extra=1)
    assert (found.with_loss, found.tokens, found.slots, found.balance) == (8, 8, 8, (0, 0))
    found = count_spans(spans([(0, 0, 4)]), sequence_length=4, extra=0, are_packs=False)
    assert found == count_windows(1, sequence_length=4, extra=0)
    assert (found.with_loss, found.no_label, found.first_tokens, found.tokens) == (3, 1, 1, 4)


def test_packs_are_padded_and_their_first_token_is_no_label():
    found = count_spans(spans([(0, 0, 5)], [(0, 4, 2), (1, 0, 1)]), sequence_length=4, extra=1, are_packs=True)
    assert (found.with_loss, found.no_label, found.padding, found.slots) == (6, 1, 1, 8)
    assert (found.tokens, found.read_twice, found.first_tokens, found.balance) == (7, 1, 2, (0, 0))


def test_slots_beside_what_is_denied_have_no_loss():
    found = count_spans(spans([(0, 0, 2), (-2, 0, 2), (2, 0, 1)]), sequence_length=4, extra=1, are_packs=False)
    assert (found.with_loss, found.denied_slots, found.denied_tokens, found.balance) == (1, 3, 3, (0, 0))


def test_conversations_by_hand_sums_and_multiples():
    """Counts of tokens, inputs, read, slots and trained, with a cut and a denied conversation."""
    shares = np.array([[10, 8, 8, 8, 5], [6, 6, 6, 8, 3]])
    found = count_conversations(shares, np.array([False, True]), samples=1, slots=20)
    assert (found.with_loss, found.prompt, found.no_label, found.denied_slots, found.padding) == (5, 2, 1, 6, 6)
    assert (found.tokens, found.truncated, found.denied_tokens, found.first_tokens) == (16, 2, 6, 1)
    assert found.balance == (0, 0)
    one = SlotCounts(samples=1, slots=4, with_loss=3, padding=1)
    assert one + one == one * 2 == NO_SLOTS + one + one
    assert (one + SlotCounts(slots=1)).balance == (1, -3)


SAMPLES = st.lists(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.lists(st.integers(0, 3), max_size=4)), max_size=4),
    min_size=1, max_size=4,
)  # fmt: skip


@given(SAMPLES, st.sampled_from([0, 1]), st.booleans(), st.booleans())
def test_texts_slot_by_slot(samples, extra, are_packs, masks):
    """Compares counts with a loop over slots; token 1 ends documents and token 2 is padding."""
    length = 16
    batch = spans(*([(-1 if denied else 1, int(later), len(text)) for denied, later, text in each] for each in samples))
    flat = [[(token, denied) for denied, _, text in each for token in text] for each in samples]
    counts = dict.fromkeys(("loss", "eod", "denied", "pad", "last", "empty"), 0)
    loss = []
    for text in flat:
        before = counts["loss"]
        for slot in range(length):
            if slot >= len(text):
                counts["empty"] += 1
            elif slot + 1 >= len(text):
                counts["last"] += 1
            elif text[slot][1] or text[slot + 1][1]:
                counts["denied"] += 1
            elif masks and text[slot][0] == 1:
                counts["eod"] += 1
            else:
                counts["pad" if text[slot + 1][0] == 2 else "loss"] += 1
        loss.append(counts["loss"] - before)
    assert count_spans(batch, sequence_length=length, extra=extra, are_packs=are_packs).balance == (0, 0)
    texts = Texts(
        np.array([token for text in flat for token, _ in text], dtype=np.int64),
        np.array([denied for text in flat for _, denied in text], dtype=np.bool_),
        np.cumsum([0, *map(len, flat)], dtype=np.int64),
        np.array(loss),
        eod=1 if masks else None,
    )
    found = count_spans(batch, sequence_length=length, extra=extra, are_packs=are_packs, texts=texts)
    assert found.balance == (0, 0)
    assert (found.with_loss, found.eod_masked, found.denied_slots) == (counts["loss"], counts["eod"], counts["denied"])
    assert (found.pad_id, found.no_label, found.padding) == (counts["pad"], counts["last"], counts["empty"])


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
        counts = {"samples": of_row.samples, "slots": of_row.slots, "loss": of_row.with_loss}
        found += Counter({(source, kind): number for kind, number in counts.items()})
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
