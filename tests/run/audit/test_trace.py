"""Traced spans, read again from their pairs, are the tokens of samples: of runs of all kinds, blends and datasets."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.folders import HEAD, STAGE, chat_run, make_run, write_data, write_pair, write_toml
from tests.run.small_runs import tuples
from tests.support import CharacterTokenizer, StandInTokenizer, make_dataset, write_corpus

from tokenloom.blending.blended import BlendedDataset
from tokenloom.inspect.texts import span_tokens
from tokenloom.order.block_shuffle import BlockShuffle
from tokenloom.run.audit.trace import trace_dataset
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run

LONG = '[[stages]]\nname = "long"\nsequence_length = 48\nsamples = 80\nweights = { web = 1, code = 1 }\n'
BEST_FIT = HEAD + 'windows = "best_fit"\n[samples]\ninter_document_masking = true\n'
MEGATRON = 'order = "megatron"\nseed = 1234\n'


def assert_tells_the_tokens(table, dataset, positions, **reading) -> None:
    """Compares traced tokens with those of samples, at their slots; all other places are padding."""
    assert list(dict.fromkeys(table.positions.tolist())) == list(dict.fromkeys(positions))
    tokens = span_tokens(table, **reading)
    for position in positions:
        sample = dataset.sample(position)
        read = np.array([*sample["tokens"].tolist(), int(sample["labels"][-1])])
        filled = 0
        for row in np.flatnonzero(table.positions == position).tolist():
            slot, length = int(table.slots[row]), int(table.lengths[row])
            filled = slot + length
            if table.denied[row]:
                assert not sample["loss_mask"][slot : slot + length - 1].any()
                assert len(tokens[row]) == 0
            else:
                assert read[slot:filled].tolist() == tokens[row].tolist()
        assert not sample["loss_mask"][filled:].any()


def test_tokens_of_a_run(tmp_path, rng):
    run = make_run(tmp_path, STAGE + LONG)
    dataset = run.dataset()
    positions = rng.integers(0, 680, size=60).tolist()
    positions = list(dict.fromkeys([*positions, 599, 600]))
    table = run.trace(positions)
    assert_tells_the_tokens(table, dataset, positions)
    places = {position: dataset.place(position) for position in positions}
    for row in table.rows():
        place = places[row["position"]]
        assert (row["source"], row["stage"], row["pass"]) == (place.source, place.stage, place.pass_number)
        assert (row["walk"], row["window"], row["run"]) == (place.walk, place.window, run.identity)
    chosen = [positions[3], positions[0], positions[3]]
    counts = [int((table.positions == position).sum()) for position in chosen]
    assert run.trace(chosen).positions.tolist() == np.repeat(chosen, counts).tolist()


def test_sources_that_grow_and_documents_that_are_denied(tmp_path):
    run = make_run(tmp_path)
    before = run.trace(range(200))
    write_pair(tmp_path / "web-9", 60, first=10**6, seed=3)
    denied = '[[denied]]\ndocuments = ["web:3", "web:4", "web:5", "web:130", "web:260", "code:0"]\nfrom = 300\n'
    lock_run(write_toml(tmp_path, STAGE + denied), consumed=200)
    run = Run.open(tmp_path / "run.toml")
    table = run.trace(range(600))
    assert_tells_the_tokens(table, run.dataset(), range(600))
    assert list(table.take(table.positions < 200).rows()) == [row | {"run": run.identity} for row in before.rows()]
    gone = table.take(table.denied)
    assert (table.documents >= 0).all()
    assert int(gone.positions.min()) >= 300
    assert {row["pair"].rpartition("/")[2] for row in table.rows()} == {"web-0", "web-1", "web-9", "code"}
    listed = {("web", number) for number in (3, 4, 5, 130, 260)} | {("code", 0)}
    assert {(row["source"], row["document"]) for row in gone.rows()} <= listed
    passes = [run.dataset().place(k).pass_number for k in table.positions.tolist()]
    assert table.passes.tolist() == passes


def test_packs_of_a_run(tmp_path):
    run = make_run(tmp_path, STAGE.replace("16", "48") + LONG.replace("48", "32"), head=BEST_FIT)
    assert_tells_the_tokens(run.trace(range(590, 650)), run.dataset(), range(590, 650))


def test_fill_in_the_middle_is_traced_before_it_is_rearranged(tmp_path):
    fim = "[samples]\nfim_rate = 0.9\nfim_spm_rate = 0.5\n"
    fim += "fim_extra_tokens = { prefix = 50001, middle = 50002, suffix = 50003 }\n"
    (tmp_path / "plain").mkdir()
    write_data(tmp_path)
    run = Run.open(write_toml(tmp_path, head=HEAD + 'dataset = "fim"\n' + fim), tokenizer=CharacterTokenizer())
    plain = make_run(tmp_path / "plain")
    table = run.trace(range(50))
    assert_tells_the_tokens(table, plain.dataset(), range(50))
    assert (run.dataset().batch(range(50))["tokens"] == 50002).any()


def test_what_is_held_out(tmp_path):
    write_data(tmp_path)
    sources = '[sources]\nweb = { data = "web-*", holdout = "10%" }\ncode = "code"\n'
    run = Run.open(write_toml(tmp_path, sources=sources))
    held = run.holdout()
    table = trace_dataset(held, range(len(held)))
    assert_tells_the_tokens(table, held, range(len(held)))
    trained = run.trace(range(600))
    assert not {*tuples(table.sources, table.documents)} & {*tuples(trained.sources, trained.documents)}


def assert_tells_conversations(table, dataset, positions) -> None:
    """Compares traced tokens with those of rows of conversations, whose inputs begin at their slots."""
    tokens = span_tokens(table)
    for position in positions:
        sample = dataset.sample(position)
        rows = np.flatnonzero(table.positions == position).tolist()
        assert rows
        for row in rows:
            slot, inputs = int(table.slots[row]), tokens[row].tolist()
            found = sample["tokens"][slot : slot + len(inputs)].tolist()
            assert found == inputs[: len(found)]
            assert len(found) >= len(inputs) - 1
            assert sample["position_ids"][slot] == 0


@pytest.mark.parametrize(("kind", "head"), [("sft", HEAD), ("varlen", MEGATRON)], ids=["computed", "megatron"])
def test_conversations_of_a_run(tmp_path, kind, head):
    samples = "[samples]\ncontext_parallel_size = 2\n" if kind == "sft" else ""
    run = chat_run(tmp_path, kind, head=head, samples=samples)
    assert_tells_conversations(run.trace(range(0, 600, 5)), run.dataset(), range(0, 600, 5))


def test_a_run_in_the_order_of_the_reference(tmp_path):
    write_data(tmp_path)
    path = write_toml(tmp_path, head=MEGATRON)
    run = Run.open(path, tokenizer=StandInTokenizer(), path_to_cache=tmp_path / "cache")
    dataset = run.dataset()
    assert isinstance(dataset, BlendedDataset)
    positions = range(0, 600, 7)
    table = run.trace(positions)
    assert_tells_the_tokens(table, dataset, positions)
    rows = list(table.rows())
    assert {row["source"] for row in rows} == {"web", "code"}
    second = [row for row in rows if row["pair"].endswith("web-1")]
    assert second
    assert all(row["document"] == row["row"] + 120 for row in second)
    assert {(row["walk"], row["stage"], row["run"]) for row in rows} == {(None, "stage 1", run.identity)}
    assert max(row["pass"] for row in rows) > 0


DOCUMENTS = [[10 * number + token for token in range(1 + number % 7)] for number in range(1, 41)]


@pytest.mark.parametrize(
    "settings",
    [{"window_policy": "best_fit"}, {"block_shuffle": BlockShuffle(block_bytes=40, window_blocks=2)}],
    ids=["packs", "blocks"],
)
def test_datasets_without_a_run(tmp_path, settings):
    prefix = write_corpus(tmp_path / "corpus", DOCUMENTS)
    dataset = make_dataset(prefix, num_samples=100, sequence_length=8, **settings)
    table = trace_dataset(dataset, range(len(dataset)))
    tokens = span_tokens(table)
    for position, spans in enumerate(map(dataset.spans, range(len(dataset)))):
        rows = np.flatnonzero(table.positions == position)
        assert table.documents[rows].tolist() == spans.documents.tolist()
        assert table.slots[rows].tolist() == spans.boundaries[:-1].tolist()
        read = np.concatenate([tokens[row] for row in rows]).tolist()
        assert read[:8] == dataset.sample(position)["tokens"][: len(read)].tolist()
    row = next(table.rows())
    assert (row["source"], row["pair"], row["stage"], row["run"]) == (prefix, prefix, None, None)
