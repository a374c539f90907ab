"""Settings have the types that their classes declare."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tokenloom.errors import ConfigError
from tokenloom.setting_types import check_types


@dataclasses.dataclass(frozen=True)
class Settings:
    """As if this package declared it: others' fields are their own affair."""

    count: int = 1
    share: float = 0.5
    wanted: bool = True
    name: str | None = None
    table_path: str = "a"
    anything: object = None


Settings.__module__ = "tokenloom.tests"


def test_what_fits_passes_and_integers_of_numpy_become_int(tmp_path):
    settings = Settings(count=np.int64(3), share=1, wanted=np.bool_(0), name=None, table_path=tmp_path, anything=[])
    check_types(settings)
    assert type(settings.count) is int


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 1.5}, "count"),
        ({"count": True}, "count"),
        ({"count": "3"}, "count"),
        ({"share": "much"}, "share"),
        ({"wanted": 2}, "`wanted`: must be True or False, got 2"),
        ({"wanted": None}, "`wanted`: must be True or False, got None"),
        ({"name": 5}, "`name`: must be a string, got 5"),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_types(Settings(**changes))
