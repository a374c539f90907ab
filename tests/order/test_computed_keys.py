"""The root keys of the computed order: the same for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenloom.kernels import Key
from tokenloom.order.computed_keys import mixing_key, root_key, source_key

SEEDS = st.integers(0, 2**63 - 1)


def test_golden_root_keys():
    assert root_key(0, "") == Key(0x862B1A0486F08770, 0xE0AE6AE18FF5A654)
    assert root_key(1234, "mixing") == Key(0x1185FAD4F2D43437, 0x72709807B86E71CB)
    assert root_key(2**63 - 1, "source wéb") == Key(0x69B1C52C85D9837A, 0x1E6FC9973C5305A7)


@given(seed=SEEDS, other=SEEDS, name=st.text(st.characters(codec="utf-8")))
def test_seeds_and_names_have_keys_of_their_own(seed, other, name):
    assert source_key(seed, name) == root_key(seed, "source " + name) != mixing_key(seed)
    assert (source_key(seed, name) == source_key(other, name)) == (seed == other)
    assert all(0 <= half < 2**64 for half in root_key(seed, name))
