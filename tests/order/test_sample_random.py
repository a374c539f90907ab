"""Random numbers of a sample's own: pinned, apart from all others, and within their bounds."""

from __future__ import annotations

import numpy as np

from tokenloom.order.sample_random import Purpose, SampleRandom


def test_numbers_are_the_words_of_philox():
    random = SampleRandom(1234, 7, Purpose.FILL_IN_THE_MIDDLE)
    key = np.array([1234, Purpose.FILL_IN_THE_MIDDLE], dtype=np.uint64)
    words = np.random.Philox(key=key, counter=np.array([0, 0, 0, 7], dtype=np.uint64)).random_raw(3)
    assert [random.below(2**64) for _ in range(3)] == words.tolist()


def test_samples_and_seeds_have_streams_of_their_own():
    streams = {
        tuple(SampleRandom(seed, sample, Purpose.FILL_IN_THE_MIDDLE).below(2**64) for _ in range(2))
        for seed in (0, 1, 2**64 - 1)
        for sample in (0, 1, 2**64 - 1)
    }
    assert len(streams) == 9


def test_chances_of_nothing_and_of_everything_are_certain():
    random = SampleRandom(1, 2, Purpose.FILL_IN_THE_MIDDLE)
    assert not any(random.chance(0.0) for _ in range(100))
    assert all(random.chance(1.0) for _ in range(100))
    assert {random.below(3) for _ in range(100)} == {0, 1, 2}
