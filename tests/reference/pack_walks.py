"""Packs of a walk through a source, in the order of its windows: all at once, where the kernel works out one."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.reference.packs import pack
from tests.reference.permutation import Key, Permutation, derive

GROUP_DOCUMENTS = 32 * 1024
"""Consecutive documents of a pair that are packed together."""

POOL_GROUPS = 16
"""Groups among whose packs the samples are permuted."""

PAIRS, PACK_GROUPS, PACKS = 2, 8, 9

Pack = list[tuple[int, int, int]]
"""(document, start, length) of each piece."""


def packs_of_walk(
    pairs: Sequence[Sequence[int]],
    *,
    key: Key,
    walk: int,
    sequence_length: int,
    extra: int,
    most: int | None = None,
    is_shuffled: bool = True,
    reads: Callable[[int, int], bool] = lambda pair, document: True,
) -> list[Pack]:
    """Returns the packs of all windows of a walk.

    Args:
        pairs: the lengths of the documents of each pair.
        key: key of the source.
        walk: number of the walk.
        sequence_length, extra, most: of a sample.
        is_shuffled: whether pairs and groups come in an order of the walk.
        reads: whether a document of a pair is read.
    """
    order = permuted(list(range(len(pairs))), derive(key, PAIRS, walk)) if is_shuffled else list(range(len(pairs)))
    rooms: list[list[int]] = []
    in_room = 0
    for pair in order:
        count = -(-len(pairs[pair]) // GROUP_DOCUMENTS)
        if not rooms or in_room + count > POOL_GROUPS:
            rooms.append([])
            in_room = 0
        rooms[-1].append(pair)
        in_room += count
    windows: list[Pack] = []
    for room in rooms:
        groups: list[list[Pack]] = []
        for pair in room:
            first = sum(map(len, pairs[:pair]))
            own = []
            for begin in range(0, len(pairs[pair]), GROUP_DOCUMENTS):
                chosen = range(begin, min(begin + GROUP_DOCUMENTS, len(pairs[pair])))
                documents = [document for document in chosen if reads(pair, document)]
                rows = pack(pairs[pair], documents, sequence_length=sequence_length, extra=extra, most=most)
                own.append([[(first + document, start, length) for document, start, length in row] for row in rows])
            groups += permuted(own, derive(derive(key, PACK_GROUPS, walk), PACK_GROUPS, pair)) if is_shuffled else own
        num_pools = max(1, -(-len(groups) // POOL_GROUPS))
        for pool in range(num_pools):
            begin, end = pool * len(groups) // num_pools, (pool + 1) * len(groups) // num_pools
            packs = [row for group in groups[begin:end] for row in group]
            windows += permuted(packs, derive(derive(derive(key, PACKS, walk), PACKS, room[0]), PACKS, pool))
    return windows


def permuted(things: list[Any], key: Key) -> list[Any]:
    """Returns things in the order of a key."""
    order = Permutation(len(things), key)
    return [things[order.forward(place)] for place in range(len(things))]
