"""Settings that are written as text: splits, sizes, shares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress

from fuzz.inputs import Bytes
from tokenloom.cli.options import count, shares
from tokenloom.datasets.splits import parse_and_normalize_split, split_indices, split_matrix
from tokenloom.errors import ConfigError
from tokenloom.numbers import parse_bytes


def check(data: bytes) -> None:
    """Data: which setting, its text."""
    source = Bytes(data)
    kind = source.integer(0, 255) % 4
    text = source.rest().decode(errors="surrogateescape")
    if kind == 0:
        with suppress(ConfigError):
            _check_split(parse_and_normalize_split(text))
        return
    with suppress(ConfigError):
        if kind == 1:
            assert parse_bytes(text.strip()) >= 1
        elif kind == 2:
            assert count(text) >= 1
        else:
            assert all(type(share) is float for share in shares(text).values())


def _check_split(parts: list[float]) -> None:
    assert len(parts) == 3
    assert all(math.isfinite(part) and part >= 0 for part in parts), parts
    assert math.isclose(sum(parts), 1.0, rel_tol=1e-9), parts
    for size in (0, 1, 7, 1000):
        rows = [row for bounds in split_matrix(parts) if bounds is not None for row in split_indices(bounds, size)]
        assert rows == list(range(size)), "the splits do not share the rows out"


def seeds() -> Iterable[bytes]:
    yield b"\x00" + b"969, 30, 1"
    yield b"\x00" + b"0.5,0.25,.25"
    yield b"\x01" + b"1.5 GiB"
    yield b"\x01" + b"500MB"
    yield b"\x02" + b"17"
    yield b"\x03" + b"train=0.99,valid=0.01"
