"""Where the tokens of a run go, as a report says it."""

from __future__ import annotations

from tests.report.pages import made, target_of, words_of
from tests.run.audit.ledgers import CHANGED, DENIED, Words
from tests.run.folders import HEAD, write_data, write_toml
from tests.run.megatrons import make, opened

from tokenloom.report.ledger_section import ledger_section
from tokenloom.run.run import Run

MASKED = HEAD + "[samples]\neod_mask_loss = true\n"


def run_of(folder, stages=CHANGED, head=HEAD, eod=5) -> Run:
    write_data(folder)
    return Run.open(write_toml(folder, stages, head=head), tokenizer=Words(eod=eod))


def test_all_counts_are_those_of_the_ledger(tmp_path):
    run = run_of(tmp_path, CHANGED + DENIED)
    found = made(ledger_section, target_of(run))
    words, ledger = words_of(found.html), run.ledger()
    tokens = ledger.total.as_json()["tokens"]
    assert f"Where tokens go, before position {run.num_samples:,}" in words
    assert f"tokens of the passes that were begun {tokens['offered']:,} 100%" in words
    for name, label in (("denied", "denied"), ("dropped_tail", "dropped tail"), ("not_reached", "not reached yet")):
        assert tokens[name]
        assert f"{label} {tokens[name]:,} " in words
    assert "Balance: 0 tokens and slots are not accounted for." in words
    assert "not counted" not in words
    web = dict(ledger.sources)["web"]
    assert f"web {web.counts.samples:,} {web.offered:,} {web.counts.with_loss:,}" in words


def test_more_samples_than_a_report_looks_into_are_not_counted(tmp_path, monkeypatch):
    run = run_of(tmp_path, head=MASKED, eod=50)  # of which some tokens end documents
    assert "EOD masked" in words_of(made(ledger_section, target_of(run)).html)
    monkeypatch.setattr("tokenloom.report.ledger_section._MOST_SLOTS", 100)
    words = words_of(made(ledger_section, target_of(run)).html)
    assert "What has loss is not counted" in words
    assert "with or without loss: not counted" in words
    assert "EOD masked" not in words


def test_a_run_without_an_end_has_a_ledger_of_a_pass(tmp_path):
    stage = "[[stages]]\nsequence_length = 16\nweights = { web = 3, code = 1 }\n"
    assert "The last stage has no end" in words_of(made(ledger_section, target_of(run_of(tmp_path, stage))).html)


def test_much_that_is_never_seen_is_a_finding(tmp_path):
    stage = "[[stages]]\nsequence_length = 1500\nsamples = 3\nweights = { code = 1 }\n"
    [finding] = made(ledger_section, target_of(run_of(tmp_path, stage))).findings
    assert finding.endswith("of the tokens are never seen: dropped tail.")


def test_a_stored_order_has_none(tmp_path):
    assert made(ledger_section, target_of(opened(make(tmp_path)))) is None


def test_packs_are_looked_into(tmp_path):
    words = words_of(made(ledger_section, target_of(run_of(tmp_path, head=HEAD + 'windows = "best_fit"\n'))).html)
    assert "padding" in words
    assert "Balance: 0 " in words
