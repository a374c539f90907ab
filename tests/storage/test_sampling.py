"""Hashes of a few pieces of something large."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.storage.local import MappedFile
from tokenloom.storage.sampling import sampled_hash, sampled_hash_of, spread_evenly

PIECE = 512


def hash_of(data: np.ndarray) -> str:
    return sampled_hash(lambda offset, length: data[offset : offset + length], len(data))


def test_what_is_small_is_hashed_as_a_whole(rng):
    data = rng.integers(0, 256, size=32 * PIECE, dtype=np.uint8)
    for size in (0, 1, 32 * PIECE):
        assert hash_of(data[:size]) == hashlib.sha256(data[:size].tobytes()).hexdigest()


def test_of_what_is_large_32_pieces_are_read_from_the_first_byte_to_the_last(rng):
    data = rng.integers(0, 256, size=63 * PIECE, dtype=np.uint8)  # every other piece
    pieces = b"".join(data[2 * piece * PIECE : (2 * piece + 1) * PIECE].tobytes() for piece in range(32))
    assert hash_of(data) == hashlib.sha256(pieces).hexdigest()


def test_a_source_gives_the_same(tmp_path, rng):
    data = rng.integers(0, 256, size=100 * PIECE + 3, dtype=np.uint8)
    (tmp_path / "data").write_bytes(data.tobytes())
    assert sampled_hash_of(MappedFile(str(tmp_path / "data"))) == hash_of(data)


@given(count=st.integers(0, 1 << 45), most=st.integers(1, 200))
def test_numbers_spread_evenly_are_as_many_as_wanted_and_rise_to_the_last(count, most):
    numbers = spread_evenly(count, most).tolist()
    assert len(numbers) == min(count, most)
    assert numbers == sorted(set(numbers))
    assert numbers[:1] == [0] * bool(count)
    assert most == 1 or numbers[-1:] == [count - 1] * bool(count)
