"""The groups that a rank belongs to."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.packing.groups import place_of

torch = pytest.importorskip("torch")


def test_groups_must_have_all_attributes():
    with pytest.raises(ConfigError, match="expected process groups with the attributes dp, cp, dp_cp, tp and pp"):
        place_of(object())
