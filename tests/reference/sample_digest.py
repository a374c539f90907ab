"""The digest of a sample, of one at a time and in Python's integers."""

from collections.abc import Iterator, Sequence

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
BLOCK, GROUP = 512, 8


def stirred(value: int) -> int:
    """Returns the finaliser of SplitMix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def rotated(value: int, places: int) -> int:
    return (value << places | value >> (64 - places)) & MASK


def make_keys() -> list[int]:
    """Returns 512 numbers of [2**30, 2**31), any two of them more than 2**20 apart."""
    randoms = (stirred(count * STEP & MASK) for count in range(1, 2 * BLOCK))
    strata = list(range(BLOCK))
    for i in range(BLOCK - 1, 0, -1):
        other = next(randoms) % (i + 1)
        strata[i], strata[other] = strata[other], strata[i]
    return [(1 << 30) + (stratum << 21) + (next(randoms) >> 44) for stratum in strata]


KEYS = make_keys()


def sum_block(tokens: Sequence[int]) -> tuple[int, int]:
    """Returns the sum of products of at most 512 tokens, and that of what of tokens lies beyond 32 bits."""
    tokens = [*tokens, *[0] * (-len(tokens) % GROUP)]
    words = [(token + key) & MASK for token, key in zip(tokens, KEYS, strict=False)]
    halves = [(word & 0xFFFFFFFF, word >> 32) for word in words]
    products = sum(
        halves[group + i][0] * halves[group + i + GROUP // 2][0]
        for group in range(0, len(words), GROUP)
        for i in range(GROUP // 2)
    )
    beyond = sum(high * (key * STEP & MASK | 1) for (_, high), key in zip(halves, KEYS, strict=False))
    return products & MASK, beyond & MASK


def digest_tokens(tokens: Sequence[int]) -> tuple[int, int]:
    """Returns two times 64 bits of tokens alone."""
    low, high = stirred(len(tokens)), stirred(MASK - len(tokens))
    for products, beyond in blocks(tokens):
        low = stirred(((low ^ beyond * STEP & MASK) + products) & MASK)
        high = stirred((high + beyond & MASK) ^ rotated(products, 32))
    return low, high


def digest_sample(position: int, tokens: Sequence[int]) -> tuple[int, int]:
    """Returns two times 64 bits of a position and tokens."""
    low, high = digest_tokens(tokens)
    name = stirred(position * STEP & MASK)
    high = stirred((high + rotated(name, 32)) & MASK)
    return stirred(stirred(low ^ name) ^ rotated(high, 17)), high


def blocks(tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
    for start in range(0, len(tokens), BLOCK):
        yield sum_block(tokens[start : start + BLOCK])


def digest_samples(positions: Sequence[int], samples: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Returns the sums over samples, each half by itself."""
    digests = [digest_sample(position, tokens) for position, tokens in zip(positions, samples, strict=True)]
    return sum(low for low, _ in digests) & MASK, sum(high for _, high in digests) & MASK
