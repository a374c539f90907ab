"""`tokenloom.megatron.core.datasets.utils`."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets import utils


@pytest.mark.parametrize("weights", [[0.1, 0.2, 0.3], (1e-300, 5.0), [0.0, 2]])
def test_weights_are_divided_by_their_sum(weights):
    assert utils.normalize(weights) == [weight / sum(weights) for weight in weights]


BLENDS = [
    None,
    ["a"],
    ["a", "b"],
    ["a", "b", "c"],
    ["30", " a ", "70", "b"],
    ["0", "a", "1e-3", "b"],
    [0.3, "a", 0.7, "b"],
    ["-1", "a", "2", "b"],
]


@pytest.mark.peer
@pytest.mark.parametrize("blend", BLENDS, ids=repr)
def test_blends_equal_megatrons(blend):
    theirs = pytest.importorskip("megatron.core.datasets.utils")
    assert utils.get_blend_from_list(blend) == theirs.get_blend_from_list(blend)


def test_some_entries_are_no_weights():
    with pytest.raises(ConfigError, match="must be alternating weights and prefixes"):
        utils.get_blend_from_list(["1", "a", "x", "b"])
    assert utils.get_blend_from_list([["1", "a"], ["0.5", "b"]]) == (["a", "b"], [1.0, 0.5])
