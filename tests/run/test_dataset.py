"""A run as a dataset: every way to a sample, each token once in a pass, loaders, threads and denied documents."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.run.folders import HEAD, SOURCES, STAGE, make_run, texts, write_data, write_toml
from tests.run.small_runs import tuples

from tokenloom.datasets.protocols import Announces, FillsBatches, KnowsOrder, is_remote_dataset
from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError
from tokenloom.indexed.columns import add_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.loading import build_dataloader
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.run import Run
from tokenloom.samplers import MegatronPretrainingSampler

TWO_LENGTHS = (
    STAGE + '[[stages]]\nname = "long"\nsequence_length = 32\nsamples = 100\nweights = { web = 1, code = 1 }\n'
)


def test_every_way_to_a_sample_gives_the_same(tmp_path):
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
    with pytest.raises(ConfigError, match=r"`loss_weights` names 'cod', which is not in \[sources\].*\n.*`code`"):
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
def test_a_warm_up_of_lengths_reads_every_token_of_a_pass_once(tmp_path, documents):
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


def test_what_a_warm_up_read_is_found_again(tmp_path):
    run = make_run(tmp_path, LENGTHS)
    dataset = run.dataset()
    for source, name in enumerate(("web", "code")):
        read = [position for position in range(601) if dataset.place(position).source == name]
        spans = [(position, dataset.spans(position)) for position in read]
        expected = [(at, *row) for at, each in spans for row in tuples(each.documents, each.starts, each.lengths)]
        found = run.occurrences({source: range(run.lock.sources[source].num_documents)})
        assert sorted(tuples(found.positions, found.documents, found.starts, found.lengths)) == sorted(expected)


def test_none_is_a_sample_without_loss(tmp_path):
    dataset = make_run(tmp_path).dataset()
    batch = dataset.batch([3, None])
    assert batch["loss_mask"].sum(axis=1).tolist() == [16.0, 0.0]
    assert dataset[None]["loss_mask"].sum() == 0
    assert dataset.sample(None)["loss_mask"].sum() == 0


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
    with pytest.raises(DatasetNotFoundError, match="web-1"):
        run.dataset().batch(range(600))


@pytest.mark.parametrize(
    "samples",
    [
        "reset_position_ids = true\nreset_attention_mask = true\neod_mask_loss = true\ncreate_attention_mask = true",
        "inter_document_masking = true",
        "add_extra_token_to_sequence = false",
    ],
)
def test_settings_of_samples(tmp_path, samples):
    class Tokenizer:
        vocab_size, eod, unique_identifiers = 100000, 30, {}

    write_data(tmp_path)
    write_toml(tmp_path, sources=f"[samples]\n{samples}\n" + SOURCES)
    mapped = Run.open(tmp_path / "run.toml", tokenizer=Tokenizer()).dataset()
    read = Run.open(tmp_path / "run.toml", tokenizer=Tokenizer(), mmap=False).dataset()
    first, second = mapped.batch(range(40)), read.batch(range(40))
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


def test_columns_follow_their_tokens_through_stages(tmp_path):
    write_data(tmp_path)
    for name in ("web-0", "web-1", "code"):
        tokens = IndexedDataset(tmp_path / name)[:]
        add_column(tmp_path / name, "place", tokens, dtype=np.int32)
        add_column(tmp_path / name, "next", tokens, dtype=np.float64, of="label")
    samples = '[samples]\ncolumns = ["place", "next"]\n'
    dataset = make_run(tmp_path, TWO_LENGTHS, head=HEAD + samples).dataset()
    for each in (dataset, pickle.loads(pickle.dumps(dataset))):
        for positions in (range(50), range(600, 640)):
            batch = each.batch(positions)
            assert np.array_equal(batch["place"], batch["tokens"])
            assert np.array_equal(batch["next"], batch["labels"])
