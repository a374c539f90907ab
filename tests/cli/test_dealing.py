"""Options that say how positions were dealt."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
from tests.run.locks import make_lock, source_of

from tokenloom.cli.dealing import add_dealing, check_dealing, has_batch_sizes, topology_of


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_dealing(parser)
    parser.set_defaults(parser=parser)
    return parser.parse_args(words)


def test_nothing_is_told():
    assert not has_batch_sizes(parsed())
    check_dealing(parsed())
    assert topology_of(parsed(), make_lock(source_of("web", "web"))) is None


def test_batch_sizes_and_ranks():
    lock = make_lock(source_of("web", "web"))  # samples of four tokens
    options = parsed("--batch-size-schedule", "0:4 32:8", "--micro-batch-size", "2", "--data-parallel-size", "2")
    check_dealing(options)
    topology = topology_of(options, lock)
    assert topology is not None
    assert topology.steps(np.array([0, 7, 8, 15, 16])).tolist() == [0, 1, 2, 2, 3]
    assert topology.ranks(np.array([0, 3, 8, 15])).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--global-batch-size", "8", "--micro-batch-size", "2"), "belong together"),
        (("--micro-batch-size", "2", "--data-parallel-size", "2"), "ranks need --global-batch-size"),
    ],
)
def test_ranks_that_are_told_by_half(capsys, words, message):
    with pytest.raises(SystemExit):
        check_dealing(parsed(*words))
    assert message in capsys.readouterr().err
