"""Values of options."""

from __future__ import annotations

import pytest

from tokenloom.cli.values import byte_count


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("500MB", 500_000_000), ("10GiB", 10 << 30), ("1.5 KB", 1500), ("2TB", 2 * 10**12)],
)
def test_byte_counts_have_units(text, expected):
    assert byte_count(text) == expected
