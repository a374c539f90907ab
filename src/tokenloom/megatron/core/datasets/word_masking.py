"""Masking one text token by token, where a program replaces a part of it; kernels do the same for whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tokenloom.datasets.tokenizer import CONTINUATION, optional_token_id

GEOMETRIC_PROBABILITY = 0.2
"""Parameter of the distribution of n-gram lengths, from SpanBERT (https://arxiv.org/abs/1907.10529, section 3.1)."""

MaskedText = tuple[list[int], list[int], list[int], list[int], list[tuple[list[int], list[int]]]]
"""The masked tokens; positions that are predicted; what stood there; 1 where a word begins, or a special token stands;
and each masked n-gram, as its positions and what stood there."""


def mask_words(
    token_ids: Sequence[int],
    target_sequence_length: int,
    random: np.random.RandomState,
    *,
    config: Any,
    replacement: Callable[[np.random.RandomState], int | None],
) -> MaskedText:
    """Masks n-grams of words of a text; all draws come from one generator, in the reference's order.

    Args:
        token_ids: the text, with its special tokens.
        target_sequence_length: the tokens of which a share is masked, at most.
        random: the generator of the sample.
        config: a config of masked datasets.
        replacement: draws what a masked token becomes; None to keep it.
    """
    words, boundaries = _words(token_ids, config)
    share = config.masking_probability
    budget = min(share * target_sequence_length, max(1, round(len(token_ids) * share)))
    draw = _ngram_lengths(random, config)
    order = list(range(len(words)))
    random.shuffle(order)
    masked = list(token_ids)
    taken: set[int] = set()
    ngrams = []
    for ngram in _choose(words, order, budget, taken, draw):
        for position in ngram:
            new = replacement(random)
            masked[position] = token_ids[position] if new is None else new
        ngrams.append(ngram)
    predicted = {position: token_ids[position] for position in chain.from_iterable(ngrams)}
    random.shuffle(order)
    if config.masking_do_permutation:
        moved = sorted(chain.from_iterable(_choose(words, order, budget, taken, draw)))
        sources = list(moved)
        random.shuffle(sources)
        for position, source in zip(moved, sources, strict=True):
            masked[position] = token_ids[source]
            predicted[position] = token_ids[position]
    positions = sorted(predicted)
    spans = [(ngram, [token_ids[position] for position in ngram]) for ngram in sorted(ngrams)]
    return masked, positions, [predicted[position] for position in positions], boundaries, spans


def _words(token_ids: Sequence[int], config: Any) -> tuple[list[list[int]], list[int]]:
    """Returns the positions of what is masked together, and of each token whether it begins a word or is special."""
    tokenizer = config.tokenizer
    special = {optional_token_id(tokenizer, "cls"), optional_token_id(tokenizer, "sep")}
    words: list[list[int]] = []
    boundaries = []
    for position, token in enumerate(token_ids):
        if token in special:
            boundaries.append(1)
            continue
        continues = tokenizer.inv_vocab[token].startswith(CONTINUATION)
        boundaries.append(0 if continues else 1)
        if continues and config.masking_do_full_word and words:
            words[-1].append(position)
        else:
            words.append([position])
    return words, boundaries


def _ngram_lengths(random: np.random.RandomState, config: Any) -> Callable[[], int]:
    """Returns what draws the words of an n-gram."""
    longest = config.masking_max_ngram
    if config.masking_use_geometric_distribution:
        return lambda: min(random.geometric(GEOMETRIC_PROBABILITY), longest)
    lengths = np.arange(1, longest + 1)
    weights = 1.0 / lengths
    weights = weights / weights.sum(keepdims=True)
    if config.masking_use_longer_ngrams:
        weights = weights[::-1]
    shares = weights / weights.sum(keepdims=True)
    return lambda: int(random.choice(lengths, p=shares))


def _choose(
    words: list[list[int]], order: list[int], budget: float, taken: set[int], draw: Callable[[], int]
) -> Iterator[list[int]]:
    """Yields n-grams that touch none that is taken, until the budget of tokens is spent; each as long as it allows."""
    spent = 0
    for first in order:
        if spent >= budget:
            return
        for length in range(draw(), 0, -1):
            ngram = list(chain.from_iterable(words[first : first + length]))
            if spent + len(ngram) <= budget:
                if taken.isdisjoint(ngram):
                    taken.update(ngram)
                    spent += len(ngram)
                    yield ngram
                break
