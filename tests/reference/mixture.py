"""Mixtures of sources in exact integers: the readable twin of the kernels."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from tests.reference.permutation import Key, Permutation, derive

MIXING = 7


@dataclass(frozen=True)
class Node:
    """A leaf of its number, or an inner node with two sides."""

    leaf: int = -1
    sides: tuple[Node, ...] = ()
    share: int = 0
    """Of the left side, in 2**-64."""

    def left(self, k: int) -> int:
        """Returns how many of the first k positions go left: k times the share, rounded half up."""
        return (k * self.share + 2**63) >> 64


class Mixture:
    """A Huffman tree: the two lightest nodes become one, the lighter on the left, ties by their lowest leaf."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.num_leaves = len(weights)
        heap = [(weight, leaf, Node(leaf=leaf)) for leaf, weight in enumerate(weights)]
        heapq.heapify(heap)
        while len(heap) > 1:
            left_weight, left_leaf, left = heapq.heappop(heap)
            right_weight, right_leaf, right = heapq.heappop(heap)
            weight = left_weight + right_weight
            share = (left_weight * 2**65 + weight) // (2 * weight)
            heapq.heappush(heap, (weight, min(left_leaf, right_leaf), Node(sides=(left, right), share=share)))
        self.root = heap[0][2]

    def locate(self, position: int) -> tuple[int, int]:
        """Returns the leaf of a position, and how many positions before it have that leaf."""
        node, k = self.root, position
        while node.sides:
            left = node.left(k)
            if node.left(k + 1) > left:
                node, k = node.sides[0], left
            else:
                node, k = node.sides[1], k - left
        return node.leaf, k

    def counts(self, k: int) -> list[int]:
        """Returns how many of the first k positions come from each leaf."""
        found = [0] * self.num_leaves
        waiting = [(self.root, k)]
        while waiting:
            node, of_node = waiting.pop()
            if node.sides:
                left = node.left(of_node)
                waiting += [(node.sides[0], left), (node.sides[1], of_node - left)]
            else:
                found[node.leaf] = of_node
        return found


def locate_mixed(weights: Sequence[int], start: int, size: int, block: int, key: Key, offset: int) -> tuple[int, int]:
    """Returns the leaf and its sample of an offset of a stage whose positions are permuted within blocks."""
    begin = offset // block * block
    permutation = Permutation(min(block, size - begin), derive(key, MIXING, start + begin))
    return Mixture(weights).locate(begin + permutation.forward(offset - begin))
