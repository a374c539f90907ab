"""Sizes for valid with `full_validation`: the reference keeps one that is given."""

from __future__ import annotations

import pytest
from tests.peer.test_blend_peer import _process_group as _process_group  # the fixture
from tests.peer.test_blend_peer import build, build_peer, compare_builds, draw_prefixes, draw_settings

from tokenloom.errors import ConfigError

pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("quiet")]


@pytest.mark.parametrize("weights", [None, [3.0]])
def test_a_size_that_is_given_is_the_same(tmp_path, rng, weights):
    prefixes = draw_prefixes(rng, tmp_path, 1)
    settings = draw_settings(rng) | {"blend": (prefixes, weights), "split": "60,25,15", "full_validation": True}
    compare_builds(settings, [50, int(rng.integers(1, 300)), 10], tmp_path, rng)


def test_several_sets_with_a_size_are_refused(tmp_path, rng):
    prefixes = draw_prefixes(rng, tmp_path, 2)
    blends = [(prefixes[:1], None), (prefixes, None), None]
    settings = draw_settings(rng) | {"blend_per_split": blends, "multiple_validation_sets": True}
    settings["full_validation"] = True
    with pytest.raises(ConfigError):
        build(settings, [50, 20, None], tmp_path / "ours")
    with pytest.raises(AssertionError):
        build_peer(settings, [50, 20, None], tmp_path / "theirs")
