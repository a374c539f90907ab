"""Checksums of parts, and of the whole."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from tokenloom.indexed.checksums import joined_crc32


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_checksums_of_parts_give_that_of_the_whole(parts):
    checksum = 0
    for part in parts:
        checksum = joined_crc32(checksum, zlib.crc32(part), len(part))
    assert checksum == zlib.crc32(b"".join(parts))


def test_checksums_of_parts_join_beyond_four_gigabytes():
    num_bytes = 1 << 20
    block = zlib.crc32(bytes(num_bytes))
    one_by_one = 0
    for _ in range(1 << 13):
        one_by_one = joined_crc32(one_by_one, block, num_bytes)
    doubled = block
    for power in range(13):
        doubled = joined_crc32(doubled, doubled, num_bytes << power)
    assert doubled == one_by_one
