"""Runs of best-fit packs, fill in the middle and conversations, and the tokenizer of a run."""

from __future__ import annotations

import dataclasses
import pickle
import traceback

import numpy as np
import pytest
import torch
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.run.data import settings_of, write_source
from tests.run.folders import HEAD, STAGE, chat_run, make_run, write_data, write_pair, write_toml
from tests.run.locks import make_lock
from tests.run.small_runs import tuples
from tests.support import CharacterTokenizer, StandInTokenizer

from tokenloom.datasets.protocols import KnowsLengths
from tokenloom.datasets.tokenizer import NO_TOKEN, pad_token_id
from tokenloom.errors import ConfigError, DatasetNotFoundError, UntrainableWarning
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.order.packs import best_fit_report
from tokenloom.run.dataset import RunTokenizer
from tokenloom.run.lock import LockedSegment, LockedTokenizer
from tokenloom.run.locking import lock_run, locked_tokenizer
from tokenloom.run.run import Run
from tokenloom.run.sources import lock_sources
from tokenloom.samplers import MegatronPretrainingSampler

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
    longer = STAGE + '[[stages]]\nname = "long"\nsequence_length = 64\nsamples = 50\nweights = { web = 1 }\n'
    lock_run(write_toml(tmp_path, longer, head=BEST_FIT), consumed=200)
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
    longer = STAGE + '[[stages]]\nname = "long"\nsequence_length = 32\nsamples = 50\nweights = { web = 1 }\n'
    (tmp_path / "run.lock").unlink()
    both = chat_run(tmp_path, "varlen", longer).dataset()
    lengths = [int(both.sample(k)["original_seq_len"][0]) for k in (640, 5, 610)]
    assert both.lengths(np.array([640, 5, 610])).tolist() == lengths
    with pytest.raises(ConfigError, match="cannot fill given arrays with conversations"):
        both.allocate_batch(2)
    web = [k for k in range(600) if dataset.place(k).source == "web" and dataset.place(k).walk == 0]
    assert sorted(int(dataset.spans(k).documents[0]) for k in web) == list(range(130))


def test_data_that_are_not_there_any_more_show_no_error_of_a_kernel(tmp_path):
    dataset = make_run(tmp_path).dataset()
    (tmp_path / "code.idx").unlink()
    with pytest.raises(DatasetNotFoundError) as raised:
        dataset.batch(range(600))
    assert "SectionNeeded" not in "".join(traceback.format_exception(raised.value))


SHA256 = "ab" * 32


def known(**ids):
    tokenizer = StandInTokenizer(**ids)
    tokenizer.sha256 = SHA256
    return tokenizer


def test_a_pad_that_is_another_token_counts_where_that_is_allowed():
    assert locked_tokenizer("t.json", known(pad=9), allow_ambiguous_pad=False).pad is None
    tokenizer = RunTokenizer(locked_tokenizer("t.json", known(pad=9), allow_ambiguous_pad=True), None)
    with pytest.warns(UserWarning, match="pad id 9"):
        assert pad_token_id(tokenizer, allow_ambiguous=True) == 9


def test_samples_get_their_ids_without_loading_anything():
    locked = locked_tokenizer("t.json", known(pad=1), allow_ambiguous_pad=False)
    assert locked == LockedTokenizer(name="t.json", fingerprint=SHA256, eod=9, pad=1, vocab_size=100)
    tokenizer = pickle.loads(pickle.dumps(RunTokenizer(locked, "/nowhere/t.json")))
    assert (tokenizer.eod, tokenizer.pad, tokenizer.vocab_size) == (9, 1, 100)
    assert pad_token_id(tokenizer, allow_ambiguous=False) == 1
    with pytest.raises(Exception, match="nowhere"):
        tokenizer.tokenize("text")


def test_a_run_that_names_none():
    tokenizer = RunTokenizer(None, None)
    assert tokenizer.vocab_size is None
    assert pad_token_id(tokenizer, allow_ambiguous=False) == NO_TOKEN
    with pytest.raises(ConfigError, match=r"run\.toml has no `tokenizer`, so no end-of-document id"):
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
    for samples, expected in (
        ({"add_extra_token_to_sequence": False}, without_extra),
        ({"most_documents": 1}, 8),  # 30 is four pieces
    ):
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
