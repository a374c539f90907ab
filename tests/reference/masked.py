"""BERT and T5 samples, one token at a time, with NumPy's own legacy generator."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    """Returns the items of all lists, one list after the other."""
    return list(chain.from_iterable(lists))


@dataclass
class Masked:
    """A masked text: its tokens, the runs of positions that are masked, and all positions that are predicted."""

    tokens: list[int]
    runs: list[list[int]] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)


def words_of(tokens: Sequence[int], tokenizer: Any, *, whole_words: bool) -> list[list[int]]:
    """Returns the positions of each word."""
    words: list[list[int]] = []
    for position, token in enumerate(tokens):
        if token in (tokenizer.cls, tokenizer.sep):
            continue
        if whole_words and words and tokenizer.inv_vocab[token].startswith("##"):
            words[-1].append(position)
        else:
            words.append([position])
    return words


def ngram_lengths(random: np.random.RandomState, config: Any) -> Callable[[], int]:
    """Returns what draws the number of words of an n-gram."""
    longest = config.masking_max_ngram
    if config.masking_use_geometric_distribution:
        return lambda: min(random.geometric(0.2), longest)
    weights = 1.0 / np.arange(1, longest + 1)
    weights = weights / weights.sum(keepdims=True)
    if config.masking_use_longer_ngrams:
        weights = weights[::-1]
    shares = weights / weights.sum(keepdims=True)
    return lambda: int(random.choice(np.arange(1, longest + 1), p=shares))


def choose(
    words: list[list[int]], order: list[int], budget: float, taken: set[int], draw: Callable[[], int]
) -> Iterator[list[int]]:
    """Yields runs of positions that are not taken yet, until the budget is spent."""
    spent = 0
    for word in order:
        if spent >= budget:
            return
        ngrams = [flat(words[word : word + length]) for length in range(draw(), 0, -1)]
        run = next((ngram for ngram in ngrams if spent + len(ngram) <= budget), [])
        if run and taken.isdisjoint(run):
            taken.update(run)
            spent += len(run)
            yield run


def mask(
    tokens: list[int],
    target: int,
    random: np.random.RandomState,
    config: Any,
    replacement: Callable[[], int | None],
) -> Masked:
    """Masks a text; `replacement` draws what a token becomes, None to keep it."""
    words = words_of(tokens, config.tokenizer, whole_words=config.masking_do_full_word)
    budget = min(config.masking_probability * target, max(1, round(len(tokens) * config.masking_probability)))
    draw = ngram_lengths(random, config)
    order = list(range(len(words)))
    random.shuffle(order)
    masked, taken = Masked(list(tokens)), set()
    for run in choose(words, order, budget, taken, draw):
        masked.runs.append(run)
        for position in run:
            new = replacement()
            masked.tokens[position] = tokens[position] if new is None else new
    masked.runs.sort()
    masked.predicted = flat(masked.runs)
    if config.masking_do_permutation:
        random.shuffle(order)
        moved = sorted(flat(choose(words, order, budget, taken, draw)))
        sources = list(moved)
        random.shuffle(sources)
        for position, source in zip(moved, sources, strict=True):
            masked.tokens[position] = tokens[source]
        masked.predicted += moved
    return masked


def without_pad(values: Sequence[int], pad: int) -> list[int]:
    return [0 if value == pad else value for value in values]


def bert_sample(sentences: list[list[int]], target: int, k: int, config: Any, pad: int) -> dict[str, Any]:
    """Returns sample k, which takes these sentences, as lists."""
    random = np.random.RandomState((config.random_seed + k) % 2**32)
    tokenizer, length = config.tokenizer, config.sequence_length
    pivot, is_random = len(sentences), False
    if config.classification_head:
        pivot = random.randint(1, len(sentences)) if len(sentences) > 2 else 1
        is_random = random.random_sample() < 0.5
    first, second = flat(sentences[:pivot]), flat(sentences[pivot:])
    if is_random:
        first, second = second, first
    truncated = len(first) + len(second) > target
    while len(first) + len(second) > target:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if random.random_sample() < 0.5 else -1)
    tokens = [tokenizer.cls, *first, tokenizer.sep] + ([*second, tokenizer.sep] if second else [])
    vocabulary = sorted(tokenizer.inv_vocab)

    def replacement() -> int | None:
        if random.random_sample() < 0.8:
            return tokenizer.mask
        return vocabulary[random.randint(0, len(vocabulary))] if random.random_sample() >= 0.5 else None

    masked = mask(tokens, target, random, config, replacement)
    rest = [pad] * (length - len(tokens))
    text = masked.tokens + rest
    predicted = set(masked.predicted)
    return {
        "text": without_pad(text, pad),
        "types": [0] * (len(first) + 2) + [1] * (len(tokens) - len(first) - 2) + rest,
        "labels": without_pad([tokens[i] if i in predicted else -1 for i in range(length)], pad),
        "is_random": int(is_random),
        "padding_mask": [1] * len(tokens) + rest,
        "loss_mask": [int(i in predicted) for i in range(length)],
        "truncated": int(truncated),
    }


def t5_sample(sentences: list[list[int]], target: int, k: int, config: Any, pad: int) -> dict[str, Any]:
    """Returns sample k, which takes these sentences, as lists."""
    random = np.random.RandomState((config.random_seed + k) % 2**32)
    tokenizer = config.tokenizer
    text = flat(sentences)
    tokens = text[:target]
    masked = mask(tokens, target, random, config, lambda: tokenizer.mask)
    read, written, done = [], [], 0
    for sentinel, run in zip(tokenizer.additional_special_tokens_ids, masked.runs, strict=False):
        read += [*masked.tokens[done : run[0]], sentinel]
        written += [sentinel, *(tokens[position] for position in run)]
        done = run[-1] + 1
    read += masked.tokens[done:]
    read += [pad] * (config.sequence_length - len(read))
    rest = config.sequence_length_decoder - len(written) - 1
    decoder = [tokenizer.bos, *written] + [pad] * rest
    return {
        "text_enc": without_pad(read, pad),
        "text_dec": without_pad(decoder, pad),
        "labels": without_pad([*written, tokenizer.eos] + [-1] * rest, pad),
        "loss_mask": [1] * (len(written) + 1) + [0] * rest,
        "truncated": int(len(text) > target),
        "enc_mask": [int(token != pad) for token in read],
        "dec_mask": [int(token != pad) for token in decoder],
    }
