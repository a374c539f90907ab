"""N-grams of words in documents, by lists of words; of ASCII, where letters and digits alone make words."""

import re


def words_of(text: str) -> list[str]:
    """Returns the words of a text."""
    return re.findall("[a-z0-9]+", text.lower().replace("'", ""))


def ngrams_of(text: str, length: int, least: int) -> list[tuple[str, ...]]:
    """Returns the n-grams of a text, or all its words if they are fewer, but enough."""
    words = words_of(text)
    if len(words) < length:
        return [tuple(words)] if len(words) >= least else []
    return [tuple(words[first : first + length]) for first in range(len(words) - length + 1)]


def hits_of(document: str, ngrams: set[tuple[str, ...]]) -> set[tuple[int, tuple[str, ...]]]:
    """Returns the number of the last word and the n-gram of each place; no n-gram goes over a `|`."""
    found, before = set(), 0
    for part in document.split("|"):
        words = words_of(part)
        for ngram in ngrams:
            for last in range(len(ngram), len(words) + 1):
                if tuple(words[last - len(ngram) : last]) == ngram:
                    found.add((before + last, ngram))
        before += len(words) + 1
    return found
