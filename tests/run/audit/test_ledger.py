"""Where the tokens of a run went: by hand, against the plan, and against samples of every kind, in either order."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.run.audit.ledgers import KINDS, counted_by_hand, make_kind, write_talks
from tests.run.folders import HEAD, MEGATRON_LENGTHS, MEGATRON_STAGE, make_megatron, opened, write_toml
from tests.run.small_runs import lock, pair, random_locks, segment, source
from tests.support import StandInTokenizer

from tokenloom.datasets.slot_counts import Count, count_windows
from tokenloom.errors import ConfigError, UntrainableWarning
from tokenloom.run.audit.ledger import LedgerRow, LedgerStage, RunLedger, summed
from tokenloom.run.lock import LockedSource, RunLock
from tokenloom.run.plan import closed_at, plan_of
from tokenloom.run.run import Run
from tokenloom.run.settings import DEFAULTS


def ledger_of(lock: RunLock, until: int | None = None):
    """The ledger of a run without data."""
    return Run("run.toml", replace(lock, samples=dict(DEFAULTS))).ledger(until=until)


def test_two_walks_of_47_tokens():
    """Of each: token 0 is no label, labels 1 to 40 are four windows of ten, and six are behind them."""
    ledger = ledger_of(lock([LockedSource(name="web", pairs=(pair(47),))], [segment(0, 9, [1])]), 6)
    ((_, row),) = ledger.sources
    assert (ledger.position, ledger.balance, row.offered, row.seen) == (6, 0, 94, 60)
    told = row.as_json()
    tokens = {"offered": 94, "with_loss": 60, "first_token": 2, "dropped_tail": 12, "not_reached": 20}
    assert {name: count for name, count in told["tokens"].items() if count} == tokens
    assert {name: count for name, count in told["slots"].items() if count} == {"all": 60, "with_loss": 60}


def test_passes_are_handed_on_given_up_and_not_reached():
    """web: 3 of 4 windows of ten, the last and one of the next pass, which is given up; then one of 20 tokens."""
    web, code = source("web", 4), source("code", 4)
    segments = [segment(0, 3, {0: 1}), segment(3, 2, {0: 1}, stage="second"), segment(5, 1, {1: 1}, stage="third")]
    segments.append(segment(6, 1, {0: 1}, stage="long", length=20))
    ledger = ledger_of(lock([web, code], segments))
    first, second, third, last = (stage.sources[0][1] for stage in ledger.stages)
    assert (first.brought, first.offered, first.seen, first.handed_on) == (0, 41, 30, 10)
    assert (second.brought, second.offered, second.seen, second.given_up) == (10, 41, 20, 30)
    assert (third.seen, third.given_up, third.not_reached) == (10, 30, 0)
    assert (last.offered, last.seen, last.not_reached, last.dropped_tail) == (41, 20, 20, 0)
    (_, web_row), _ = ledger.sources
    assert (web_row.brought, web_row.handed_on, web_row.offered) == (0, 0, 123)
    assert ledger.total.offered == 123 + 41
    assert ledger_of(lock([web, code], segments), 5).sources[0][1].not_reached == 30
    assert ledger.balance == 0


@given(random_locks(), st.data())
def test_a_ledger_is_the_plan_up_to_there(lock: RunLock, data):
    end = lock.segments[-1].start + (lock.segments[-1].num_samples or 90)
    until = data.draw(st.integers(1, end))
    ledger, plan = ledger_of(lock, until), plan_of(closed_at(lock, until))
    assert ledger.balance == 0
    for (name, row), planned in zip(ledger.sources, plan.sources, strict=True):
        assert name == planned.name
        assert (row.offered, row.seen, row.brought) == (planned.offered_tokens, planned.seen_tokens, 0)
        assert row.first_of_passes + row.dropped_tail == planned.uncovered_tokens
        assert row.given_up + row.not_reached == planned.unseen_tokens
        assert (row.handed_on, row.first_of_passes) == (0, planned.num_walks)
        assert row.counts.with_loss == row.seen
        assert row.dropped_tail >= 0
    assert sum(summed(row for _, row in stage.sources).counts.samples for stage in ledger.stages) == until
    for stage in ledger.stages:
        for _, row in stage.sources:
            assert min(row.brought, row.offered, row.handed_on, row.given_up, row.not_reached) >= 0
            assert row.dropped_tail >= 0 or any(each.stretch_length for each in lock.segments)
    assert json.loads(json.dumps(ledger.as_json()))["balance"] == 0


USUAL = ("plain", "masked, denied and padding ids", "masked packs", "denied sft", "varlen")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in KINDS]
)
def test_samples_of_every_kind(tmp_path, rng, name):
    run = make_kind(tmp_path, name)
    by_hand = list(counted_by_hand(run))
    for until in sorted({*rng.integers(1, 427, size=3).tolist(), 300, 377, 427}):
        ledger = run.ledger(until=until)
        assert ledger.balance == 0
        for stage in ledger.stages:
            for source_name, row in stage.sources:
                mine = [each for each in by_hand[stage.start : stage.stop] if each[0] == source_name]
                expected = (len(mine), sum(slots for _, slots, _ in mine), sum(loss for *_, loss in mine))
                assert (row.counts.samples, row.counts.slots, row.counts.with_loss) == expected
                tokens, slots = row.as_json()["tokens"], row.as_json()["slots"]
                assert min(*tokens.values(), *slots.values()) >= 0
        blind = run.ledger(until=until, reads_data=False)
        assert (blind.balance, blind.total.offered) == (0, ledger.total.offered)
        if name in ("plain", "unmixed", "without an extra token"):
            assert blind == ledger
    assert [each for each, _ in ledger.sources] == ["web", "code"]


@pytest.mark.parametrize("name", ["plain", "sft"])
def test_what_is_held_out_is_not_offered(tmp_path, name):
    run = make_kind(tmp_path, name, holdout="20%")
    ledger = run.ledger()
    held = sum(each.held_tokens for each in run.lock.sources[0].pairs)
    assert held
    walks = ledger.stages[0].sources[0][1].offered
    assert walks % (sum(each.num_tokens for each in run.lock.sources[0].pairs) - held) == 0
    assert ledger.balance == 0


def test_reasons_why_conversations_are_left_out(tmp_path):
    """Samples of eight: one conversation fits, one is too long, one has no answer, one is empty."""
    answered = [conversation((PROMPT, [1, 2]), (ANSWER, [3, 4, 5])), conversation((PROMPT, [1]), (ANSWER, [2] * 9))]
    talks = [*answered, conversation((PROMPT, [1, 2, 3])), conversation((PROMPT, []))]
    write_conversations(tmp_path / "web", talks)
    head = HEAD + 'dataset = "sft"\n[samples]\nlong_conversations = "drop"\n'
    stage = "[[stages]]\nsequence_length = 8\nsamples = 2\nweights = { web = 1 }\n"
    path = write_toml(tmp_path, stage, head=head, sources='[sources]\nweb = "web"\n')
    with pytest.warns(UntrainableWarning):
        run = Run.open(path, tokenizer=StandInTokenizer(pad=7))
    (_, row), ledger = run.ledger().sources[0], run.ledger()
    assert row.dropped_empty == Count(conversations=2, tokens=0)
    assert row.dropped_long == Count(conversations=2, tokens=20)
    assert row.dropped_untrainable == Count(conversations=2, tokens=6)
    counts = row.counts
    assert (row.offered, counts.with_loss, counts.prompt, counts.first_tokens) == (36, 6, 2, 2)
    assert (counts.slots, counts.no_label, counts.padding, ledger.balance) == (16, 2, 6, 0)


def test_what_is_not_accounted_for_is_reported_and_positions_that_are_none():
    wrong = LedgerRow(offered=5, counts=count_windows(1, sequence_length=4, extra=1))
    stage = LedgerStage(stage="main", start=0, stop=1, sequence_length=4, sources=(("web", wrong),))
    ledger = RunLedger(position=1, stages=(stage,), sources=(("web", wrong),))
    found = ledger.as_json()
    assert (wrong.balance, ledger.balance) == ((1, 0), 2)
    assert (found["balance"], found["total"]["balance"], found["stages"][0]["sources"][0]["balance"]) == (2, 1, 1)
    endless = lock([source("web", 4)], [segment(0, None, [1])])
    with pytest.raises(ConfigError, match="the run is endless, so its ledger needs an end"):
        ledger_of(endless)
    assert ledger_of(endless, 10**6).total.seen == 10**7
    with pytest.raises(ConfigError, match="position 9 out of range: the run has 8 samples"):
        ledger_of(lock([source("web", 4)], [segment(0, 8, [1])]), 9)
    with pytest.raises(ConfigError, match="position -1 out of range"):
        ledger_of(endless, -1)


# --- the order of the reference -------------------------------------------------------------------------------------
STORED_KINDS = {"plain": "", "masked": "[samples]\neod_mask_loss = true\n"}
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
    names = {"samples": "samples", "slots": "slots", "loss": "with_loss"}
    rows = [(number, row.counts) for number, (_, row) in enumerate(ledger.sources)]
    return +Counter({(number, short): getattr(row, name) for number, row in rows for short, name in names.items()})


@pytest.mark.parametrize("kind", ["masked", pytest.param("plain", marks=pytest.mark.slow)])
def test_samples_of_documents(tmp_path, rng, kind):
    run = opened(make_megatron(tmp_path, head=STORED_KINDS[kind]))
    for until in (0, int(rng.integers(1, 300)), 300):
        ledger = run.ledger(until=until)
        assert (ledger.balance, of_ledger(ledger)) == (0, counted(run, until))
        assert run.ledger(until=until, reads_data=False).balance == 0
    for (_, row), lengths in zip(ledger.sources, (MEGATRON_LENGTHS["web"], MEGATRON_LENGTHS["code"]), strict=True):
        assert row.offered % sum(lengths) == 0
    if kind == "masked":
        assert ledger.total.counts.eod_masked


@pytest.mark.filterwarnings("ignore::tokenloom.errors.UntrainableWarning")
@pytest.mark.parametrize("kind", ["sft", "varlen"])
def test_conversations(tmp_path, kind):
    write_talks(tmp_path)
    stage = MEGATRON_STAGE.replace("web = 0.7, code = 0.3", "web = 3, code = 1")
    run = opened(make_megatron(tmp_path, sources=TALKS, stage=stage, head=f'dataset = "{kind}"\n'))
    pairs = [0, 0, 1]
    for until in (57, 300):
        ledger, by_source = run.ledger(until=until), Counter()
        for (number, name), count in counted(run, until).items():
            by_source[pairs[number], name] += count
        assert (of_ledger(ledger), ledger.balance) == (by_source, 0)
    assert ledger.total.dropped_empty.conversations
    assert run.ledger(until=57, reads_data=False).balance == 0
