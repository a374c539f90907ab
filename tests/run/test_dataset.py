"""A run as a dataset: every way to a sample, every kind of sample, columns, and data in object storage."""

import dataclasses
import os
import pickle
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.run.data import settings_of, write_source
from tests.run.folders import (
    HEAD,
    SOURCES,
    STAGE,
    changed_run,
    chat_run,
    make_run,
    texts,
    write_data,
    write_pair,
    write_toml,
)
from tests.run.small_runs import make_lock, tuples
from tests.support import CharacterTokenizer, StandInTokenizer

from tokenloom.datasets.protocols import Announces, FillsBatches, KnowsLengths, KnowsOrder, is_remote_dataset
from tokenloom.datasets.tokenizer import NO_TOKEN, pad_token_id
from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, TokenloomError, UntrainableWarning
from tokenloom.indexed.columns import add_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.loading import build_dataloader, loader_statistics
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.order.packs import best_fit_report
from tokenloom.run.dataset import RunTokenizer
from tokenloom.run.lock import LockedSegment, LockedTokenizer
from tokenloom.run.locking import lock_run, locked_tokenizer
from tokenloom.run.run import Run
from tokenloom.run.sources import lock_sources
from tokenloom.samplers import MegatronPretrainingSampler
from tokenloom.storage.settings import ObjectStorageSettings

LONG = '[[stages]]\nname = "long"\nsequence_length = %d\nsamples = %d\nweights = { web = 1%s }\n'
TWO_LENGTHS = STAGE + LONG % (32, 100, ", code = 1")


def test_every_way_to_a_sample_gives_the_same_and_none_is_without_loss(tmp_path):
    dataset = make_run(tmp_path).dataset()
    assert len(dataset) == 600
    positions = [5, 599, 0, 5, 77]
    batch = dataset.batch(positions)
    out = dataset.allocate_batch(5)
    assert dataset.batch(np.array(positions), out=out) is out
    many = dataset.__getitems__(positions)
    for row, position in enumerate(positions):
        sample, item = dataset.sample(position), dataset[position]
        assert list(item) == list(sample) == list(batch)
        for name, array in sample.items():
            assert np.array_equal(array, batch[name][row])
            assert np.array_equal(array, out[name][row])
            assert np.array_equal(array, np.asarray(item[name]))
            assert np.array_equal(array, np.asarray(many[row][name]))
    assert np.array_equal(dataset[-1]["tokens"], dataset[599]["tokens"])
    assert isinstance(dataset, FillsBatches | KnowsOrder)
    assert isinstance(dataset, Announces)
    assert not is_remote_dataset(dataset)
    batch = dataset.batch([3, None])
    assert batch["loss_mask"].sum(axis=1).tolist() == [16.0, 0.0]
    assert (dataset[None]["loss_mask"].sum(), dataset.sample(None)["loss_mask"].sum()) == (0, 0)


@pytest.mark.parametrize("columns", ["", 'columns = ["loss_weight"]\n'])
def test_losses_of_a_source_count_as_much_as_is_said(tmp_path, columns):
    write_data(tmp_path)
    for name in ("web-0", "web-1", "code"):
        weights = (tokens % 3 / 2 for tokens in IndexedDataset(tmp_path / name)[:])
        add_column(tmp_path / name, "loss_weight", weights, dtype=np.float32, of="label")
    samples = f"[samples]\n{columns}loss_weights = {{ code = 0.25 }}\n"
    dataset = make_run(tmp_path, TWO_LENGTHS, head=HEAD + samples).dataset()
    (tmp_path / "plain").mkdir()
    plain = make_run(tmp_path / "plain", TWO_LENGTHS).dataset()
    batch, expected = dataset.batch(range(590, 600)), plain.batch(range(590, 600))
    weights = np.array([1.0, 0.25], dtype=np.float32)[expected["dataset_id"]][:, None]
    if columns:
        weights = weights * (expected["labels"] % 3 / 2).astype(np.float32)
    assert set(expected["dataset_id"]) == {0, 1}
    assert np.array_equal(batch["loss_mask"], expected["loss_mask"] * weights)
    assert np.array_equal(dataset.sample(595)["loss_mask"], batch["loss_mask"][5])
    assert np.array_equal(dataset[595]["loss_mask"], batch["loss_mask"][5])
    assert dataset.slot_counts(np.arange(590, 600)) == plain.slot_counts(np.arange(590, 600))


def test_loss_weights_are_of_sources(tmp_path):
    with pytest.raises(ConfigError, match=r"`loss_weights` has 'cod', which is not in \[sources\].*\n.*`code`"):
        make_run(tmp_path, head=HEAD + "[samples]\nloss_weights = { cod = 2 }\n")
    with pytest.raises(ConfigError, match="the weight of 'code' in `loss_weights`: must be above 0, got 0"):
        make_run(tmp_path, head=HEAD + "[samples]\nloss_weights = { code = 0 }\n")


def test_each_window_of_a_pass_comes_once_and_shares_are_exact(tmp_path):
    run = make_run(tmp_path, STAGE.replace("600", "800"))
    dataset = run.dataset()
    sources = dataset.batch(range(800))["dataset_id"]
    assert np.bincount(sources).tolist() == [600, 200]
    for source, name in enumerate(("web", "code")):
        places = [place for k in range(800) if (place := dataset.place(k)).source == name]
        windows = run.timeline.walk_of(source, 0).num_windows
        assert len(places) > windows
        for number in range(len(places) // windows):
            chosen = [place.window for place in places if place.walk == number]
            assert sorted(chosen) == list(range(windows))
        first = [place.position for place in places if place.walk == 0]
        tokens = [token for text in texts(dataset, first) for token in text[:-1]]
        assert len(set(tokens)) == len(tokens) == windows * 16


def test_two_lengths_make_no_batch(tmp_path):
    dataset = make_run(tmp_path, TWO_LENGTHS).dataset()
    assert not dataset.fills_batches
    assert dataset.batch([0, 1])["tokens"].shape == (2, 16)
    assert dataset.batch([600, 699])["tokens"].shape == (2, 32)
    with pytest.raises(ConfigError, match=r"samples of 16 tokens \(stage 'stage 1'\) and 32 .*from position 600"):
        dataset.batch([599, 600])
    with pytest.raises(ConfigError, match=r"cannot fill given arrays with samples of \[16, 32\] tokens"):
        dataset.allocate_batch(2)
    loader = ThreadLoader(dataset, MegatronPretrainingSampler(700, 560, 20, 0, 2))
    assert [tuple(batch["tokens"].shape) for batch in loader] == [(20, 16), (20, 32), (20, 32)]


LENGTHS = "".join(
    STAGE.replace("]]", f']]\nname = "{length}"').replace("16", str(length)).replace("600", str(samples))
    for length, samples in ((4, 301), (16, 90), (8, 50), (64, 160))
)


@pytest.mark.parametrize("documents", ["shuffled", "file"])
def test_a_warm_up_of_lengths_reads_every_token_of_a_pass_once_and_finds_it_again(tmp_path, documents):
    run = make_run(tmp_path, LENGTHS, head=HEAD + f'documents = "{documents}"\n')
    dataset = run.dataset()
    places = [dataset.place(position) for position in range(601)]
    for source, pairs in (("web", ("web-0", "web-1")), ("code", ("code",))):
        num_tokens = sum(IndexedDataset(str(tmp_path / name)).num_tokens for name in pairs)
        for number in (0, 1):
            read = [place for place in places if (place.source, place.pass_number) == (source, number)]
            tokens = [token for text in texts(dataset, [place.position for place in read]) for token in text[:-1]]
            assert len(set(tokens)) == len(tokens) > 0
            assert number == 1 or {place.sequence_length for place in read} == {4, 16, 8, 64}
            assert number == 1 or num_tokens - len(tokens) <= 16 + 8 + 2 * 64
    plan, ledger = run.plan(), run.ledger()
    assert [source.difference for source in plan.sources] == [0, 0]
    for source, (_, row) in zip(plan.sources, ledger.sources, strict=True):
        assert (row.balance, row.given_up, row.not_reached) == ((0, 0), 0, source.unseen_tokens)
        assert source.uncovered_tokens == row.dropped_tail + row.first_of_passes
    for source, name in enumerate(("web", "code")):
        read = [position for position in range(601) if dataset.place(position).source == name]
        spans = [(position, dataset.spans(position)) for position in read]
        expected = [(at, *row) for at, each in spans for row in tuples(each.documents, each.starts, each.lengths)]
        found = run.occurrences({source: range(run.lock.sources[source].num_documents)})
        assert sorted(tuples(found.positions, found.documents, found.starts, found.lengths)) == sorted(expected)


def test_pickled_forked_and_in_threads(tmp_path):
    dataset = make_run(tmp_path).dataset()
    expected = dataset.batch(range(600))["tokens"]
    again = pickle.loads(pickle.dumps(dataset))
    assert np.array_equal(again.batch(range(600))["tokens"], expected)
    fresh = make_run(tmp_path).dataset()
    with ThreadPoolExecutor(8) as executor:
        found = list(executor.map(lambda k: fresh.batch(range(k, k + 6))["tokens"], range(0, 600, 6)))
    assert np.array_equal(np.concatenate(found), expected)
    loader = build_dataloader(make_run(tmp_path).dataset(), MegatronPretrainingSampler(600, 0, 10, 0, 1), num_workers=2)
    assert torch.equal(torch.cat([batch["tokens"] for batch in loader]), torch.from_numpy(expected))


def test_state_goes_on_with_other_ranks(tmp_path):
    dataset = make_run(tmp_path).dataset()
    loader = ThreadLoader(dataset, MegatronPretrainingSampler(600, 0, 4, 1, 3))
    for number, _ in enumerate(loader):
        if number == 9:
            break
    state = loader.state_dict()
    assert state["position"] == 120
    other = ThreadLoader(make_run(tmp_path).dataset(), MegatronPretrainingSampler(600, 0, 8, 0, 1), num_threads=3)
    other.load_state_dict(state)
    assert np.array_equal(next(iter(other))["tokens"], dataset.batch(range(120, 128))["tokens"])


def test_states_of_others_are_refused(tmp_path):
    run = make_run(tmp_path)
    dataset = run.dataset()
    state = dataset.run_order.order_state(500)
    assert dataset.run_order.position_of_state(state) == 500
    for stages, head, message in (
        (STAGE, HEAD.replace("1234", "5"), "state is of another run"),
        (STAGE.replace("600", "400"), HEAD, "position 500 out of range: the run has 400 samples"),
        (STAGE.replace("3", "2"), HEAD, "the order before position 500 changed after it was read"),
    ):
        (tmp_path / "run.lock").unlink()
        edited = make_run(tmp_path, stages, head=head).dataset()
        with pytest.raises(ConfigError, match=message):
            edited.run_order.position_of_state(state)
    assert edited.run_order.position_of_state({**state, **edited.run_order.order_state(0)}) == 0


def test_denied_documents_are_padding_from_their_position_on(tmp_path):
    run = make_run(tmp_path)
    dataset = run.dataset()
    before = dataset.batch(range(600))
    seen = [k for k in range(600) if dataset.place(k).source == "web" and 7 in dataset.spans(k).documents]
    start = seen[len(seen) // 2]
    write_toml(tmp_path, STAGE + f'[[denied]]\ndocuments = ["web:7"]\nfrom = {start}\n')
    (tmp_path / "run.lock").unlink()
    denied = Run.open(tmp_path / "run.toml").dataset()
    after = denied.batch(range(600))
    changed = [k for k in range(600) if not np.array_equal(before["tokens"][k], after["tokens"][k])]
    assert changed == [k for k in seen if k >= start and (before["tokens"][k] != after["tokens"][k]).any()]
    assert changed
    document = IndexedDataset(str(tmp_path / "web-0"))[7].tolist()
    for k in range(600):
        assert np.array_equal(before["dataset_id"][k], after["dataset_id"][k])
        if k < start:
            assert np.array_equal(before["loss_mask"][k], after["loss_mask"][k])
        else:
            assert not set(document) & {*after["tokens"][k].tolist(), *after["labels"][k].tolist()} - {0}


def test_data_that_changed_is_an_error(tmp_path):
    run = make_run(tmp_path)
    write_data(tmp_path)  # the same again
    assert run.dataset().sample(0)
    lengths = IndexedDataset(str(tmp_path / "code")).sequence_lengths
    (tmp_path / "code.idx").write_bytes((tmp_path / "web-0.idx").read_bytes())
    (tmp_path / "code.bin").write_bytes((tmp_path / "web-0.bin").read_bytes())
    assert not np.array_equal(lengths, IndexedDataset(str(tmp_path / "code")).sequence_lengths)
    dataset = run.dataset()
    with pytest.raises(DatasetFormatError, match=r"code\.idx.* changed after it was locked: expected documents: 140"):
        dataset.batch(range(600))
    os.unlink(tmp_path / "web-1.bin")
    with pytest.raises(DatasetNotFoundError, match="web-1") as raised:
        run.dataset().batch(range(600))
    assert "SectionNeeded" not in "".join(traceback.format_exception(raised.value))


RESETS = "reset_position_ids = true\nreset_attention_mask = true\neod_mask_loss = true\ncreate_attention_mask = true"


@pytest.mark.parametrize("samples", [RESETS, "inter_document_masking = true", "add_extra_token_to_sequence = false"])
def test_settings_of_samples(tmp_path, samples):
    tokenizer = StandInTokenizer(vocab_size=100_000, eod=30)
    write_data(tmp_path)
    write_toml(tmp_path, sources=f"[samples]\n{samples}\n" + SOURCES)
    first, second = (
        Run.open(tmp_path / "run.toml", tokenizer=tokenizer, mmap=mmap).dataset().batch(range(40))
        for mmap in (True, False)
    )
    assert first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), name
    assert ("cu_seqlens" in first) == ("inter_document" in samples)


HELD = '[sources]\nweb = { data = "web-*", holdout = "20%" }\ncode = { data = "code", holdout = "10%" }\n'


def tokens_of(dataset):
    return {token for k in range(len(dataset)) for token in dataset.sample(k)["tokens"].tolist()}


def test_training_never_reads_it(tmp_path):
    run = make_run(tmp_path, STAGE.replace("600", "2000"), sources=HELD)
    held = run.holdout()
    assert np.unique(held.batch(range(len(held)))["dataset_id"]).tolist() == [0, 1]
    validation, training = tokens_of(held), tokens_of(run.dataset())
    assert not validation & training
    total = sum(pair.num_tokens for source in run.lock.sources for pair in source.pairs)
    kept = sum(pair.held_tokens for source in run.lock.sources for pair in source.pairs)
    assert len(validation) == len(held) * 16
    assert kept - len(validation) < 2 * 17
    assert 0.1 < kept / total < 0.25


def test_none_is_held_out(tmp_path):
    run = make_run(tmp_path)
    with pytest.raises(ConfigError, match="source 'web' holds out 0 tokens, fewer than a sample of 16"):
        run.holdout()
    with pytest.raises(ConfigError, match="the run has no source 'wbe'"):
        run.holdout("wbe")


# --- packs, fill in the middle and conversations, and the tokenizer -------------------------------------------------
BEST_FIT = HEAD + 'windows = "best_fit"\n[samples]\ninter_document_masking = true\n'


@pytest.mark.parametrize("most", [None, 2])
def test_best_fit_packs_hold_each_token_once(tmp_path, most):
    head = BEST_FIT + ("" if most is None else f"most_documents = {most}\n")
    run = make_run(tmp_path, STAGE.replace("sequence_length = 16", "sequence_length = 48"), head=head)
    dataset = run.dataset()
    assert max(len(dataset.spans(k).documents) for k in range(600)) == (most or 8)
    batch = dataset.batch(range(600))
    assert "cu_seqlens" in batch
    walks = {name: run.timeline.walk_of(number, 0).num_windows for number, name in enumerate(("web", "code"))}
    places = [dataset.place(k) for k in range(600)]
    chosen = [place.position for place in places if place.source == "web" and place.walk == 0]
    assert len(chosen) == walks["web"]
    rows = [row for spans in map(dataset.spans, chosen) for row in tuples(spans.documents, spans.starts, spans.lengths)]
    seen = [(document, start + token) for document, start, length in rows for token in range(length)]
    lengths = np.concatenate([IndexedDataset(str(tmp_path / name)).sequence_lengths for name in ("web-0", "web-1")])
    assert sorted(set(seen)) == [(d, t) for d, length in enumerate(lengths.tolist()) for t in range(length)]


def test_packs_of_pairs_that_come_later_and_of_another_length(tmp_path):
    run = make_run(tmp_path, head=BEST_FIT)
    tokens = run.dataset().batch(range(200))["tokens"]
    write_pair(tmp_path / "web-9", 60, first=10**6, seed=3)
    lock_run(write_toml(tmp_path, STAGE + LONG % (64, 50, ""), head=BEST_FIT), consumed=200)
    after = Run.open(tmp_path / "run.toml")
    assert np.array_equal(after.dataset().batch(range(200))["tokens"], tokens)
    assert [len(pair.packs) for pair in after.lock.sources[0].pairs] == [2, 2, 2]
    assert (after.dataset().batch(range(600))["tokens"] >= 10**6).any()
    assert after.dataset().batch(range(600, 650))["tokens"].shape == (50, 64)


def test_fill_in_the_middle_is_the_same_in_every_batch(tmp_path):
    fim = "[samples]\nfim_rate = 0.9\nfim_spm_rate = 0.5\n"
    fim += "fim_extra_tokens = { prefix = 50001, middle = 50002, suffix = 50003 }\n"
    write_data(tmp_path)
    write_toml(tmp_path, head=HEAD + 'dataset = "fim"\n' + fim)
    run = Run.open(tmp_path / "run.toml", tokenizer=CharacterTokenizer())
    expected = run.dataset().batch(range(120))["tokens"]
    assert (expected == 50002).sum() > 60
    again = Run.open(tmp_path / "run.toml", tokenizer=CharacterTokenizer()).dataset()
    loader = ThreadLoader(again, MegatronPretrainingSampler(600, 0, 6, 0, 1), num_threads=3)
    found = [batch["tokens"] for _, batch in zip(range(20), loader, strict=False)]
    assert np.array_equal(torch.cat(found).numpy(), expected)
    assert np.array_equal(np.stack([again.sample(k)["tokens"] for k in range(119, -1, -1)])[::-1], expected)


def test_rows_of_conversations(tmp_path):
    run = chat_run(tmp_path, "sft")
    dataset = run.dataset()
    batch = dataset.batch(range(600))
    assert not dataset.fills_batches
    for position in (0, 77, 599):
        sample, item = dataset.sample(position), dataset[position]
        assert all(np.array_equal(sample[name], batch[name][position]) for name in batch)
        assert all(np.array_equal(sample[name], np.asarray(item[name])) for name in batch)
    web = [k for k in range(600) if dataset.place(k).source == "web" and dataset.place(k).walk == 0]
    assert len(web) == run.timeline.walk_of(0, 0).num_windows
    read = [document for k in web for document in dataset.spans(k).documents.tolist()]
    assert sorted(read) == list(range(130))
    loader = ThreadLoader(run.dataset(), MegatronPretrainingSampler(600, 0, 6, 0, 1))
    assert np.array_equal(next(iter(loader))["tokens"], batch["tokens"][:6])


def test_single_conversations_and_their_lengths(tmp_path):
    run = chat_run(tmp_path, "varlen")
    dataset = run.dataset()
    assert not dataset.makes_batches
    assert isinstance(dataset, KnowsLengths)
    positions = np.arange(0, 600, 7)
    lengths = [int(dataset.sample(k)["original_seq_len"][0]) for k in positions]
    assert dataset.lengths(positions).tolist() == lengths
    padded = [int(dataset.sample(k)["padded_seq_len"][0]) for k in positions]
    assert dataset.padded_lengths(positions).tolist() == padded
    items = dataset.__getitems__([3, 4])
    assert items[0]["tokens"].tolist() == dataset.sample(3)["tokens"].tolist()
    (tmp_path / "run.lock").unlink()
    both = chat_run(tmp_path, "varlen", STAGE + LONG % (32, 50, "")).dataset()
    lengths = [int(both.sample(k)["original_seq_len"][0]) for k in (640, 5, 610)]
    assert both.lengths(np.array([640, 5, 610])).tolist() == lengths
    with pytest.raises(ConfigError, match="cannot fill given arrays with conversations"):
        both.allocate_batch(2)
    web = [k for k in range(600) if dataset.place(k).source == "web" and dataset.place(k).walk == 0]
    assert sorted(int(dataset.spans(k).documents[0]) for k in web) == list(range(130))


SHA256 = "ab" * 32


def known(**ids):
    tokenizer = StandInTokenizer(**ids)
    tokenizer.sha256 = SHA256
    return tokenizer


def test_the_tokenizer_of_a_run_knows_its_ids_without_loading_anything():
    assert locked_tokenizer("t.json", known(pad=9), allow_ambiguous_pad=False).pad is None
    tokenizer = RunTokenizer(locked_tokenizer("t.json", known(pad=9), allow_ambiguous_pad=True), None)
    with pytest.warns(UserWarning, match="pad id 9"):
        assert pad_token_id(tokenizer, allow_ambiguous=True) == 9
    locked = locked_tokenizer("t.json", known(pad=1), allow_ambiguous_pad=False)
    assert locked == LockedTokenizer(name="t.json", fingerprint=SHA256, eod=9, pad=1, vocab_size=100)
    tokenizer = pickle.loads(pickle.dumps(RunTokenizer(locked, "/nowhere/t.json")))
    assert (tokenizer.eod, tokenizer.pad, tokenizer.vocab_size) == (9, 1, 100)
    assert pad_token_id(tokenizer, allow_ambiguous=False) == 1
    with pytest.raises(Exception, match="nowhere"):
        tokenizer.tokenize("text")
    tokenizer = RunTokenizer(None, None)
    assert tokenizer.vocab_size is None
    assert pad_token_id(tokenizer, allow_ambiguous=False) == NO_TOKEN
    with pytest.raises(ConfigError, match=r"without `tokenizer`, a run has no end-of-document id"):
        _ = tokenizer.eod
    with pytest.raises(ConfigError, match=r"text is needed, but run\.toml has no `tokenizer`"):
        tokenizer.tokenize("text")


def locked(settings, *, old=None):
    return lock_sources(settings, old=old, at=0)


def set_up(folder, *sources, lengths=(8,), **changes):
    settings = settings_of(folder, *sources)
    stages = [dataclasses.replace(settings.stages[0], name=f"s{length}", sequence_length=length) for length in lengths]
    return dataclasses.replace(settings, stages=tuple(stages), **changes)


def test_packs_of_all_stages_are_counted(tmp_path):
    write_source(tmp_path / "web", 3, 9, 4, 2, 0, 30)
    (source,) = locked(set_up(tmp_path, 'web = "web"', lengths=(16, 8), windows="best_fit"))
    lengths = np.array([3, 9, 4, 2, 0, 30], dtype=np.int32)
    packs = [(length, best_fit_report(lengths, sequence_length=length).num_packs) for length in (8, 16)]
    assert source.pairs[0].packs == tuple(packs)
    without_extra = best_fit_report(lengths, sequence_length=8, extra=0).num_packs
    without = {"add_extra_token_to_sequence": False}, without_extra
    for samples, expected in (without, ({"most_documents": 1}, 8)):  # 30 is four pieces
        (source,) = locked(set_up(tmp_path, 'web = "web"', windows="best_fit", samples=samples))
        assert source.pairs[0].packs == ((8, expected),)


def test_what_an_older_lock_says_is_not_counted_again(tmp_path):
    write_source(tmp_path / "web", 3, 9, 4, 2)
    settings = set_up(tmp_path, 'web = "web"', windows="best_fit")
    (source,) = locked(settings)
    [pair] = source.pairs
    known = dataclasses.replace(source, pairs=(dataclasses.replace(pair, packs=((8, 77), (32, 5))),))
    segment = LockedSegment(stage="s8", start=0, num_samples=None, sequence_length=8, weights=((0, 1),))
    segments = (segment, dataclasses.replace(segment, sequence_length=64))
    old = make_lock(known, segments=segments)
    old = dataclasses.replace(old, seed=settings.seed, samples=settings.samples, windows="best_fit", dataset="gpt")
    (again,) = locked(set_up(tmp_path, 'web = "web"', lengths=(8, 16), windows="best_fit"), old=old)
    assert again.pairs[0].packs == ((8, 77), (16, 2), (32, 5), (64, 1))
    other = dataclasses.replace(old, windows="concat")
    (again,) = locked(settings, old=other)
    assert again.pairs[0].packs == (pair.packs[0], (64, 1))


@pytest.mark.parametrize(("dataset", "expected"), [("sft", 2), ("varlen", 3)])
def test_conversations_are_counted_as_their_class_takes_them(tmp_path, dataset, expected):
    talks = [
        conversation((PROMPT, [1, 2]), (ANSWER, [3, 4, 5])),
        conversation((PROMPT, [1, 2, 3])),
        conversation((PROMPT, [1]), (ANSWER, [3, 4])),
        conversation((PROMPT, [1]), (ANSWER, [3, 4] * 9)),
    ]
    write_conversations(tmp_path / "chat", talks)
    settings = set_up(tmp_path, 'chat = "chat"', dataset=dataset)
    with pytest.warns(UntrainableWarning, match="1 of 4 conversations have no token to train on"):
        (source,) = locked(settings)
    assert source.pairs[0].packs == ((8, expected),)
    if dataset == "sft":
        with pytest.warns(UntrainableWarning):
            (source,) = locked(set_up(tmp_path, 'chat = "chat"', dataset=dataset, samples={"most_conversations": 1}))
        assert source.pairs[0].packs == ((8, 3),)
    wrong = set_up(tmp_path, 'chat = "chat"', dataset=dataset, samples={"long_conversations": "error"})
    with pytest.raises(ConfigError, match="longer than a sample"):
        locked(wrong)


# --- columns: beside exactly the token they were stored with --------------------------------------------------------
SETTINGS = ObjectStorageSettings(block_bytes=1 << 13, concurrency=4, timeout_seconds=10, deadline_seconds=60)

COLUMNS = 'samples = { columns = { place = "required", next = 3, own = 4 }%s }\n'
FIM = ", fim_rate = 0.8, fim_spm_rate = 0.5, fim_extra_tokens = { prefix = 50001, middle = 50002, suffix = 50003 }"


class Placed:
    """Which values belong to each token: those of the hash of its pair, document and offset."""

    def __init__(self, folder: Path, *, without: str = "") -> None:
        tokens, places, lacks = [], [], []
        for path in sorted(folder.glob("*.idx")):
            pair = IndexedDataset(path.with_suffix(""))
            own = np.concatenate([pair[document] for document in range(len(pair))]).astype(np.int64)
            documents = np.repeat(np.arange(len(pair)), pair.sequence_lengths)
            offsets = np.concatenate([np.arange(length) for length in pair.sequence_lengths])
            hashes = (documents * 1_000_003 + offsets * 8191 + own * 2_654_435_761 + 12_345) % 2**32
            add_column(path.with_suffix(""), "place", hashes, dtype=np.uint32)
            if path.stem != without:
                add_column(path.with_suffix(""), "next", hashes, dtype=np.uint32, of="label", padding=1)
                numbers = np.arange(len(pair))
                add_column(path.with_suffix(""), "own", numbers, dtype=np.int16, kind="document", padding=-1)
            tokens.append(own)
            places.append(np.stack([hashes, documents]))
            lacks.append(np.full(len(own), path.stem == without))
        self._tokens = np.concatenate(tokens)
        assert len(np.unique(self._tokens)) == len(self._tokens)
        self._order = np.argsort(self._tokens)
        self._places, self._lacks = np.concatenate(places, axis=1), np.concatenate(lacks)

    def check(self, batch: dict[str, Any]) -> int:
        """Compares the columns of samples with their tokens; returns how many have values."""
        for side, name, row, padding, default in (
            ("tokens", "place", 0, 0, None), ("labels", "next", 0, 1, 3), ("tokens", "own", 1, -1, 4)
        ):  # fmt: skip
            tokens, found = np.asarray(batch[side]), np.asarray(batch[name])
            at = self._order.take(np.searchsorted(self._tokens, tokens, sorter=self._order), mode="clip")
            expected = self._places[row, at]
            expected = expected if default is None else np.where(self._lacks[at], default, expected)
            has_value = found != padding
            assert np.array_equal(found[has_value], expected[has_value]), name
            known = self._tokens[at] == tokens
            assert not has_value[~known].any()
            assert has_value[known & (tokens > 0)].all()  # 0 is a token, and stands where there is none
        return int(np.count_nonzero(has_value))


def by_length(dataset: Any, positions: list[int]) -> list[dict[str, Any]]:
    """Returns samples in batches, or one by one where a change of length lies between them."""
    if len({len(dataset.sample(each)["tokens"]) for each in (positions[0], positions[-1])}) == 1:
        return [dataset.batch(positions)]
    return [{name: value[None] for name, value in dataset.sample(each).items()} for each in positions]


@pytest.mark.parametrize("case", range(6))
def test_values_stand_beside_the_token_that_they_were_stored_with(tmp_path, rng, case):
    kind = ["gpt", "gpt", "fim"][case % 3]
    head = HEAD.replace("1234", str(rng.integers(1 << 31))) + f'dataset = "{kind}"\n'
    head += 'windows = "best_fit"\n' if case % 2 else ""
    head += COLUMNS % (FIM if kind == "fim" else "")
    run = changed_run(tmp_path, rng, head=head, num_changes=0 if kind == "fim" else int(rng.integers(1, 6)))
    placed = Placed(tmp_path, without="code" if case > 2 else "")
    tokenizer = CharacterTokenizer() if kind == "fim" else None
    run = Run.open(run.path, mmap=bool(rng.random() < 0.7), tokenizer=tokenizer)
    dataset, total = pickle.loads(pickle.dumps(run.dataset())), min(run.num_samples, 480)
    size, seen, found = int(rng.integers(1, 9)), [], 0
    consumed = int(rng.integers(0, total // 2))
    for rank in range(size):
        sampler = MegatronPretrainingSampler(total, consumed, 6, rank, size)
        for positions in sampler:
            seen += positions
            found += sum(map(placed.check, by_length(dataset, positions)))
    assert sorted(seen) == list(range(consumed, consumed + len(seen)))
    assert found > len(seen)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_values_come_from_object_storage_through_loaders(bucket, tmp_path, num_workers):
    write_data(tmp_path)
    placed = Placed(tmp_path, without="code")
    here, there = stored(bucket, tmp_path, head=HEAD + COLUMNS % "")
    loader = loader_of(there.dataset(), num_workers, num_samples=64)
    batches = [{name: np.asarray(value) for name, value in batch.items()} for batch in loader]
    assert sum(map(placed.check, batches)) >= 64 * 16 - 1
    expected = here.dataset().batch(range(64))
    for name in ("place", "next", "own"):
        assert np.array_equal(np.concatenate([batch[name] for batch in batches]), expected[name])


# --- object storage -------------------------------------------------------------------------------------------------


def stored(bucket, folder, stages=STAGE, *, head=HEAD):
    """Returns a run over local pairs, and one of the same order over the same pairs in a bucket."""
    here = make_run(folder, stages, head=head)
    for name in ("web-0", "web-1", "code"):
        bucket.put_pair(str(folder / name), f"data/{name}")
    (folder / "away").mkdir()
    sources = f'[sources]\nweb = "{bucket.url("data/web-*")}"\ncode = "{bucket.url("data/code")}"\n'
    path = write_toml(folder / "away", stages, head=head, sources=sources)
    return here, Run.open(path, object_storage=SETTINGS)


def loader_of(dataset, num_workers, *, num_samples):
    sampler = MegatronPretrainingSampler(num_samples, 0, 8, 0, 1)
    if num_workers:
        return build_dataloader(dataset, sampler, num_workers=num_workers)
    return ThreadLoader(dataset, sampler, num_threads=2)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_samples_are_those_of_local_files(bucket, tmp_path, num_workers):
    here, there = stored(bucket, tmp_path)
    dataset = there.dataset()
    assert is_remote_dataset(dataset)
    assert dataset.remote_paths == [bucket.url(f"data/{name}.bin") for name in ("web-0", "web-1", "code")]
    expected = texts(here.dataset(), range(32))
    assert texts(dataset, range(32)) == expected
    loader = loader_of(there.dataset(), num_workers, num_samples=32)
    assert np.concatenate([batch["tokens"].numpy() for batch in loader]).tolist() == [text[:-1] for text in expected]
    assert sum(each.hits for each in loader_statistics(loader).values()) > 0


def test_in_file_order_a_sample_is_one_range(bucket, tmp_path):
    here, there = stored(bucket, tmp_path, head=HEAD + 'documents = "file"\n')
    dataset = there.dataset()
    for position in range(12):
        place = dataset.place(position)
        spans = dataset.spans(position)
        if len({document < 120 for document in spans.documents.tolist()}) > 1 and place.source == "web":
            continue  # the one window of two pairs
        before = sum(each.requests for each in loader_statistics(ThreadLoader(dataset, [[0]])).values())
        dataset.will_need([position])
        assert texts(dataset, [position]) == texts(here.dataset(), [position])
        after = sum(each.requests for each in loader_statistics(ThreadLoader(dataset, [[0]])).values())
        assert after - before <= 1


def test_an_object_that_was_replaced_after_it_was_locked(bucket, tmp_path):
    _, there = stored(bucket, tmp_path)
    write_data(tmp_path / "away")
    (tmp_path / "away" / "code.idx").write_bytes((tmp_path / "web-0.idx").read_bytes())
    (tmp_path / "away" / "code.bin").write_bytes((tmp_path / "web-0.bin").read_bytes())
    bucket.put_pair(str(tmp_path / "away" / "code"), "data/code")
    with pytest.raises(TokenloomError, match=r"code\.idx` changed after it was locked"):
        there.dataset().batch(range(100))


def test_stages_of_two_lengths_are_announced(bucket, tmp_path):
    here, there = stored(bucket, tmp_path, STAGE + LONG % (32, 50, ""))
    dataset = there.dataset()
    dataset.will_need(list(range(590, 610)))
    assert texts(dataset, range(590, 610)) == texts(here.dataset(), range(590, 610))
