"""Sentence mappings, one sentence at a time, with the generators of the C++ standard library."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

LONGEST_SENTENCE = 512
_WORD = 2**64 - 1


def mt19937_64(seed: int) -> Iterator[int]:
    """Yields what `std::mt19937_64(seed)` draws (Nishimura and Matsumoto 2000)."""
    state = [seed & _WORD]
    for i in range(1, 312):
        state.append((6364136223846793005 * (state[-1] ^ (state[-1] >> 62)) + i) & _WORD)
    while True:
        for i in range(312):
            joined = (state[i] & ~0x7FFFFFFF) | (state[(i + 1) % 312] & 0x7FFFFFFF)
            state[i] = state[(i + 156) % 312] ^ (joined >> 1) ^ (0xB5026F5AA96619E9 if joined & 1 else 0)
        for x in state:
            x ^= (x >> 29) & 0x5555555555555555
            x ^= (x << 17) & 0x71D67FFFEDA60000
            x ^= (x << 37) & 0xFFF7EEE000000000
            yield x ^ (x >> 43)


def mt19937(seed: int) -> Callable[[], int]:
    """Returns what draws as `std::mt19937(seed)`, which is NumPy's legacy generator."""
    generator = np.random.MT19937()
    generator.state = np.random.RandomState(seed).get_state(legacy=False)
    return lambda: int(generator.random_raw())


def shuffled(rows: list[tuple[int, ...]], seed: int) -> list[tuple[int, ...]]:
    draws = mt19937_64(seed + 1)
    for i in range(len(rows) - 1, 0, -1):
        j = next(draws) % (i + 1)
        rows[i], rows[j] = rows[j], rows[i]
    return rows


def cut(
    lengths: Sequence[int], first: int, stop: int, *, least: int, least_after: int, next_target: Callable[[], int]
) -> Iterator[tuple[int, int, int]]:
    """Yields (first sentence, one past the last, target) of the runs of one document."""
    start, target = first, next_target()
    for end in range(first + 1, stop + 1):
        long_enough = sum(lengths[start:end]) >= target and end - start >= least and stop - end >= least_after
        if end == stop or long_enough:
            yield start, end, target
            start, target = end, next_target()


def build_mapping(
    boundaries: Sequence[int],
    lengths: Sequence[int],
    *,
    num_epochs: int,
    max_num_samples: int,
    max_sequence_length: int,
    short_sequence_probability: float,
    seed: int,
    min_sentences: int,
) -> list[tuple[int, ...]]:
    """Returns the rows of `tokenloom.build_mapping`."""
    draw = mt19937(seed)
    ratio = int(1 / short_sequence_probability + 0.5) if short_sequence_probability else 0

    def next_target() -> int:
        if ratio and (drawn := draw()) % ratio == 0:
            return 2 + drawn % (max_sequence_length - 1)
        return max_sequence_length

    rows: list[tuple[int, ...]] = []
    for _ in range(num_epochs):
        if len(rows) >= max_num_samples:
            break
        for first, stop in pairwise(boundaries):
            if stop - first < min_sentences or (stop - first > 1 and max(lengths[first:stop]) > LONGEST_SENTENCE):
                continue
            rows += cut(lengths, first, stop, least=min_sentences, least_after=2, next_target=next_target)
    return shuffled(rows, seed)


def build_blocks_mapping(
    boundaries: Sequence[int],
    lengths: Sequence[int],
    titles: Sequence[int],
    *,
    num_epochs: int,
    max_num_samples: int,
    max_sequence_length: int,
    seed: int,
    use_one_sentence_blocks: bool,
) -> list[tuple[int, ...]]:
    """Returns the rows of `tokenloom.build_blocks_mapping`."""
    least = 1 if use_one_sentence_blocks else 2
    rows: list[tuple[int, ...]] = []
    for _ in range(num_epochs):
        if len(rows) >= max_num_samples:
            break
        epoch: list[tuple[int, ...]] = []
        for document, (first, stop) in enumerate(pairwise(boundaries)):
            if stop - first < least or max(lengths[first:stop]) > LONGEST_SENTENCE:
                continue
            target = max_sequence_length - titles[document]
            for start, end, _ in cut(
                lengths, first, stop, least=least, least_after=least, next_target=lambda target=target: target
            ):
                epoch.append((start, end, document, len(epoch)))
        rows += epoch
    return shuffled(rows, seed)
