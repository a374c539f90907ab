"""Things by name: a package's own, imported when they are asked for, and those of others."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.registry import Registry


def test_names_keep_their_order_and_nothing_is_imported_before_it_is_asked_for():
    registry = Registry[object]("thing", {"second": "no.such.module:THING", "first": "json:dumps"})
    registry["third"] = 3
    assert list(registry) == ["second", "first", "third"]
    assert len(registry) == 3
    assert "second" in registry
    assert registry["first"]([1]) == "[1]"
    with pytest.raises(ModuleNotFoundError):
        registry["second"]
    with pytest.raises(KeyError):
        registry["fourth"]


@pytest.mark.parametrize("name", ["own", "added"])
def test_a_name_has_one_thing(name: str):
    registry = Registry[object]("thing", {"own": "json:dumps"})
    registry["added"] = 1
    with pytest.raises(ConfigError, match=f"thing '{name}'"):
        registry[name] = 2
    del registry[name]
    registry[name] = 2
    assert registry[name] == 2
