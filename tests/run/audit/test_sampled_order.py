"""Stretches of orders: of runs, of stored orders, shuffled and not."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.data import write_source
from tests.run.folders import make_run, write_toml
from tests.run.megatrons import make, opened
from tests.support import StandInTokenizer, make_dataset

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.order.block_shuffle import BlockShuffle
from tokenloom.run.audit.sampled_order import sampled_members, sampled_source
from tokenloom.run.run import Run

ONE = "[[stages]]\nsequence_length = 16\nsamples = 5000\nweights = { web = 1 }\n"


def large(folder, *, head="order = 1\nseed = 1\n", length: int = 16, num_documents: int = 4096) -> Run:
    write_source(folder / "web", *[length] * num_documents)
    write_source(folder / "rest", *[length] * 64)
    write_source(folder / "other", 100)
    path = write_toml(folder, ONE, head=head, sources='[sources]\nweb = ["web", "rest"]\nother = "other"\n')
    return Run.open(path, tokenizer=StandInTokenizer())


@pytest.mark.parametrize("documents", ["shuffled", "file"])
def test_windows_of_a_computed_order_are_as_good_as_uniform(tmp_path, documents: str):
    run = large(tmp_path, head=f'order = 1\nseed = 1\ndocuments = "{documents}"\n')
    found = sampled_source(run, 0)
    assert found.source == "web"
    assert (len(found.positions), found.num_positions, found.num_items) == (4096, 4159, 4160)
    assert found.quality.verdict == "as good as uniform"


def test_stretches_are_even_and_of_samples_that_follow_each_other(tmp_path):
    found = sampled_source(large(tmp_path), 0, num_stretches=4, length=100)
    assert found.positions[[0, 99, 100, 199, 200, -1]].tolist() == [0, 99, 1353, 1452, 2706, 4158]


def test_a_block_shuffle_is_told_by_its_blocks(tmp_path):
    prefix = write_source(tmp_path / "blocks", *[16] * 8000)
    blocks = BlockShuffle(block_bytes=2 * 16 * 500, window_blocks=1)
    [found] = sampled_members(make_dataset(prefix, sequence_length=16, block_shuffle=blocks))
    assert found.num_items == 8000
    assert found.quality.median_distance < 400
    assert found.quality.verdict.startswith("shuffled within blocks of about")


def test_places_are_those_of_the_first_tokens(tmp_path):
    run = make_run(tmp_path)
    found = sampled_source(run, 0)
    first = np.empty(len(found.positions), dtype=np.int64)
    positions = run.timeline.positions_of(0, np.zeros_like(first), found.positions, sequence_length=16)
    for row, position in enumerate(positions.tolist()):
        first[row] = run.dataset().sample(position)["tokens"][0]  # tells its place, over both pairs
    assert found.items.tolist() == (first // 16).tolist()


def test_a_source_that_is_not_read_has_no_order(tmp_path):
    assert sampled_source(large(tmp_path, num_documents=100), 1) is None


def test_a_run_that_ends_within_the_pass(tmp_path):
    run = make_run(tmp_path, ONE.replace("5000", "40"))
    assert sampled_source(run, 0).positions.tolist() == list(range(40))


def test_a_stored_order_is_as_good_as_uniform(tmp_path):
    write_source(tmp_path / "large", *[7] * 20_000)
    path = make(
        tmp_path,
        sources='web = "large"\ncode = "code"\n',
        stage="sequence_length = 16\nsamples = 9000\nweights = { web = 0.9, code = 0.1 }\n",
    )
    web, code = sampled_members(opened(path).dataset())
    assert (web.source, code.source) == (str(tmp_path / "large"), str(tmp_path / "code"))
    assert web.num_items == IndexedDataset(tmp_path / "large").num_tokens // 16
    assert web.num_positions >= 8100
    assert web.quality.verdict == "as good as uniform"
    assert code.num_items < 200
