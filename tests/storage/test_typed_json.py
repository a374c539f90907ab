"""Dataclasses as objects of JSON: what is written is read, and whatever is none is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tokenloom.errors import ConfigError
from tokenloom.storage.json_files import UnusableJsonError
from tokenloom.storage.typed_json import (
    MAY_BE_MISSING,
    Crc32,
    from_members,
    from_versioned,
    members_of,
    versioned_members_of,
)


@dataclass(frozen=True, slots=True)
class Wheel:
    size: float
    crc32: Crc32

    def __post_init__(self) -> None:
        if self.size < 0:
            message = f"expected a size from 0 on, found {self.size}"
            raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class Car:
    name: str
    num_doors: int
    is_sold: bool
    fuel: Literal["none", "any"]
    wheels: tuple[Wheel, ...]
    years: tuple[int, ...]
    extras: Mapping[str, Any]
    counts: Mapping[str, int]
    spare: Wheel | None
    note: str | None = None
    owner: str | None = field(default=None, metadata=MAY_BE_MISSING)


CAR = Car("é", 4, False, "any", (Wheel(1.5, 0xFF), Wheel(2.5, 0)), (1, 2), {"a": [None]}, {"km": 5}, None)
MEMBERS = {
    "name": "é",
    "num_doors": 4,
    "is_sold": False,
    "fuel": "any",
    "wheels": [{"size": 1.5, "crc32": "000000ff"}, {"size": 2.5, "crc32": "00000000"}],
    "years": [1, 2],
    "extras": {"a": [None]},
    "counts": {"km": 5},
    "spare": None,
    "note": None,
}


def test_an_object_may_have_a_version():
    written = versioned_members_of(CAR, 3)
    assert written == {"version": 3, **MEMBERS}
    assert from_versioned(Car, written, 3) == CAR
    for members, found in ((written, "3"), (MEMBERS, "None")):
        with pytest.raises(UnusableJsonError, match=f"^: expected `version` to be 4, found {found}$"):
            from_versioned(Car, members, 4)
    with pytest.raises(UnusableJsonError, match="expected an object, found 4"):
        from_versioned(Car, 4, 4)


def test_members_are_written_in_the_order_of_the_fields():
    assert json.dumps(members_of(CAR)) == json.dumps(MEMBERS)


def test_what_is_written_is_read():
    assert from_members(Car, MEMBERS) == CAR
    more = Car("x", 0, True, "none", (), (), {}, {}, Wheel(0.0, 2**32 - 1), "n", "o")
    assert from_members(Car, json.loads(json.dumps(members_of(more)))) == more


def test_members_that_may_be_missing_may_be_null_too_and_others_are_left_alone():
    assert from_members(Car, MEMBERS | {"owner": None, "color": "red"}) == CAR


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([], ": expected an object, found []"),
        ({**MEMBERS, "num_doors": True}, ": expected `num_doors` to be an integer, found True"),
        ({**MEMBERS, "num_doors": 4.0}, ": expected `num_doors` to be an integer, found 4.0"),
        ({**MEMBERS, "is_sold": 0}, ": expected `is_sold` to be true or false, found 0"),
        ({**MEMBERS, "fuel": 1}, ": expected `fuel` to be a string, found 1"),
        ({**MEMBERS, "wheels": {}}, ": expected `wheels` to be an array, found {}"),
        ({**MEMBERS, "wheels": [None]}, ": expected `wheels[0]` to be an object, found None"),
        ({**MEMBERS, "years": [1, "2"]}, ": expected `years[1]` to be an integer, found '2'"),
        ({**MEMBERS, "counts": [5]}, ": expected `counts` to be an object, found [5]"),
        ({**MEMBERS, "counts": {"km": 5.0}}, ": expected `counts.km` to be an integer, found 5.0"),
        ({**MEMBERS, "spare": {"size": 1.0}}, ": expected `spare.crc32`, found none"),
        ({**MEMBERS, "spare": {"size": "1", "crc32": "0"}}, ": expected `spare.size` to be a number, found '1'"),
        ({**MEMBERS, "spare": {"size": 1.0, "crc32": "0000000G"}}, ": expected `spare.crc32` to be 8 hexadecimal di"),
        ({**MEMBERS, "wheels": [{"size": -1.0, "crc32": "00000000"}]}, " in `wheels[0]`: expected a size from 0 on"),
        ({**MEMBERS, "note": ["y" * 99]}, f": expected `note` to be a string, found ['{'y' * 58}…"),
        ({name: MEMBERS[name] for name in MEMBERS if name != "note"}, ": expected `note`, found none"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(members, problem):
    with pytest.raises(UnusableJsonError) as caught:
        from_members(Car, members)
    assert str(caught.value).startswith(problem)


def test_what_a_class_refuses_is_told_behind_the_name_of_the_file():
    with pytest.raises(UnusableJsonError, match=r"^: expected a size from 0 on, found -1.0$"):
        from_members(Wheel, {"size": -1.0, "crc32": "00000000"})
