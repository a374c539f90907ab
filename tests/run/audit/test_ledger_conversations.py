"""Whole walks through conversations: what they leave out, and what is in them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.run.audit.ledgers import make_kind
from tests.run.folders import HEAD, write_toml
from tests.support import StandInTokenizer

from tokenloom.datasets.ledger import Count
from tokenloom.errors import UntrainableWarning
from tokenloom.run.audit.ledger_conversations import NONE_DROPPED, Dropped, WalksOfConversations
from tokenloom.run.plan import PlannedWalks
from tokenloom.run.run import Run


def test_each_reason_by_hand(tmp_path):
    """Samples of eight: one conversation fits, one is too long, one has no answer, one is empty."""
    talks = [
        conversation((PROMPT, [1, 2]), (ANSWER, [3, 4, 5])),
        conversation((PROMPT, [1]), (ANSWER, [2] * 9)),
        conversation((PROMPT, [1, 2, 3])),
        conversation((PROMPT, [])),
    ]
    write_conversations(tmp_path / "web", talks)
    head = HEAD + 'dataset = "sft"\n[samples]\nlong_conversations = "drop"\n'
    stage = "[[stages]]\nsequence_length = 8\nsamples = 2\nweights = { web = 1 }\n"
    path = write_toml(tmp_path, stage, head=head, sources='[sources]\nweb = "web"\n')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainableWarning)
        run = Run.open(path, tokenizer=StandInTokenizer(pad=7))
    (_, row), ledger = run.ledger().sources[0], run.ledger()
    assert row.dropped == Dropped(
        empty=Count(conversations=2, tokens=0),
        long=Count(conversations=2, tokens=20),
        untrainable=Count(conversations=2, tokens=6),
    )
    counts = row.counts
    assert (row.offered, counts.with_loss, counts.prompt, counts.first_tokens) == (36, 6, 2, 2)
    assert (counts.slots, counts.no_label, counts.padding, ledger.balance) == (16, 2, 6, 0)


@pytest.mark.parametrize("name", ["sft", "denied sft", "varlen"])
def test_whole_walks_are_the_sum_of_their_samples(tmp_path, rng, name):
    run = make_kind(tmp_path, name, holdout="20%")
    dataset, walks = run.dataset(), WalksOfConversations(run.dataset())
    walk = run.timeline.walk_of(1, 0)
    positions = run.timeline.positions_of(
        1, np.zeros(walk.num_windows, int), np.arange(walk.num_windows), sequence_length=16
    )
    planned = PlannedWalks(first_pair=0, last_pair=1, num_windows=walk.num_windows, count=1)
    whole = walks.counts(1, planned, 16, denied=())
    assert positions.min() >= 0
    if not run.lock.denials:
        assert whole == dataset.slot_counts(positions)[1]
    shuffled = rng.permutation(60)
    lost = 0
    for denied in (shuffled[:5], shuffled[5:]):
        without = walks.counts(1, planned, 16, denied=sorted(denied.tolist()))
        assert (without.balance, without.samples, without.tokens) == ((0, 0), whole.samples, whole.tokens)
        lost += whole.with_loss - without.with_loss
    assert lost == whole.with_loss > 0  # each conversation is denied once, and takes its own loss with it


def test_sums():
    one = Dropped(long=Count(conversations=1, tokens=5), empty=Count(conversations=2))
    assert (one + one, NONE_DROPPED + one, (one * 3).tokens) == (one * 2, one, 15)
