"""Stretches of orders: of runs, of stored orders, shuffled and not."""

from __future__ import annotations

import pytest
from tests.run.data import write_source
from tests.run.folders import write_toml
from tests.support import StandInTokenizer, make_dataset

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


def test_a_block_shuffle_is_told_by_its_blocks(tmp_path):
    prefix = write_source(tmp_path / "blocks", *[16] * 8000)
    blocks = BlockShuffle(block_bytes=2 * 16 * 500, window_blocks=1)
    [found] = sampled_members(make_dataset(prefix, sequence_length=16, block_shuffle=blocks))
    assert found.num_items == 8000
    assert found.quality.median_distance < 400
    assert found.quality.verdict.startswith("shuffled within blocks of about")
