"""Settings of a build: what is made of them, and what is refused."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.retro.settings import RetroBuildSettings, three_sizes


def settings(*data: tuple[float | None, str]) -> RetroBuildSettings:
    return RetroBuildSettings(data=data, sequence_length=8, sizes=(1, 0, None), index="Flat", num_index_chunks=1)


def test_a_single_data_set_may_have_no_weight():
    assert settings((None, "a")).blend_weights is None
    assert settings((None, "a")).of_database.data == ((1.0, "a"),)
    assert settings((2, "a")).blend_weights == [2.0]
    assert settings((2, "a"), (1, "b")).blend_weights == [2.0, 1.0]
    with pytest.raises(ConfigError, match="expected a weight of each of 2 data sets, found None"):
        settings((1.0, "a"), (None, "b"))


def test_sizes_are_three():
    assert three_sizes([1, None, 3]) == (1, None, 3)
    with pytest.raises(ConfigError, match=r"expected the samples of train, valid and test, found \[1\]"):
        three_sizes([1])
