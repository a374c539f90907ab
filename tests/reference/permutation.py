"""Keys and permutations of the computed order, in Python's integers: the readable twin of the kernels."""

from collections.abc import Iterator
from math import isqrt

Key = tuple[int, int]
"""128 bits: the low and the high word."""

WORD = 2**64 - 1
HALF = 2**32 - 1
GOLDEN = 0x9E3779B97F4A7C15
LARGEST_TABLE = 1024


def finalise(word: int) -> int:
    """Returns a word mixed by the finaliser of splitmix64, a bijection."""
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & WORD
    return word ^ word >> 31


def derive(key: Key, purpose: int, number: int) -> Key:
    """Returns a key for one purpose and number: both are added to a half, then the halves stir each other."""
    low = (key[0] + finalise((number + GOLDEN) & WORD)) & WORD
    high = (key[1] + finalise((purpose + 2 * GOLDEN) & WORD)) & WORD
    high ^= finalise((low + 3 * GOLDEN) & WORD)
    low ^= finalise((high + 4 * GOLDEN) & WORD)
    high ^= finalise((low + 5 * GOLDEN) & WORD)
    low ^= finalise((high + 6 * GOLDEN) & WORD)
    return low, high


def stream(key: Key) -> Iterator[int]:
    """Yields the random words of a key: splitmix64 from its low word, with its high word put in midway."""
    counter = key[0]
    while True:
        counter = (counter + GOLDEN) & WORD
        word = ((counter ^ counter >> 30) * 0xBF58476D1CE4E5B9) & WORD ^ key[1]
        word = ((word ^ word >> 27) * 0x94D049BB133111EB) & WORD
        yield word ^ word >> 31


def fisher_yates(key: Key, size: int) -> list[int]:
    """Returns a shuffled [0, size), from the back, with 32 bits per draw."""
    halves = (half for word in stream(key) for half in (word & HALF, word >> 32))
    things = list(range(size))
    for last in range(size - 1, 0, -1):
        bound = last + 1
        product = next(halves) * bound
        while product & HALF < 2**32 % bound:  # one of the few draws that would favour some partners
            product = next(halves) * bound
        partner = product >> 32
        things[last], things[partner] = things[partner], things[last]
    return things


class Permutation:
    """A permutation of [0, n): a table of few things, a Feistel network of more."""

    def __init__(self, n: int, key: Key) -> None:
        self.n = n
        self.table = fisher_yates(key, n) if n <= LARGEST_TABLE else []
        self.columns = isqrt(max(n, 1) - 1) + 1  # the least whose square is n or more
        self.rows = -(-n // self.columns)
        words = stream(key)
        self.round_keys = [next(words) for _ in range(10 if n < 65536 else 6)]

    def forward(self, place: int) -> int:
        """Returns what lies at a place."""
        if self.table:
            return self.table[place]
        while True:
            left, right = divmod(place, self.rows)
            for number, key in enumerate(self.round_keys):
                if number % 2 == 0:
                    left = (left + step(right, key, self.columns)) % self.columns
                else:
                    right = (right + step(left, key, self.rows)) % self.rows
            place = left * self.rows + right
            if place < self.n:  # else once more through the network
                return place

    def inverse(self, thing: int) -> int:
        """Returns the place of a thing."""
        if self.table:
            return self.table.index(thing)
        while True:
            left, right = divmod(thing, self.rows)
            for number, key in reversed(list(enumerate(self.round_keys))):
                if number % 2 == 0:
                    left = (left - step(right, key, self.columns)) % self.columns
                else:
                    right = (right - step(left, key, self.rows)) % self.rows
            thing = left * self.rows + right
            if thing < self.n:
                return thing


def step(half: int, key: int, bound: int) -> int:
    """Returns what one half adds to the other: a keyed hash of 32 bits, brought into [0, bound)."""
    value = half ^ key & HALF
    value = ((value ^ value >> 16) * 0x21F0AAAD) & HALF
    value = ((value ^ value >> 15 ^ key >> 32) * 0x735A2D97) & HALF
    value ^= value >> 15
    return value * bound >> 32
