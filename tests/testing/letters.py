"""Readings of letters."""

from __future__ import annotations

from tokenloom.testing.fingerprints import Sample


def reading(text):
    """Batches of letters: words are batches, parts with a stroke between are ranks."""
    return [[[Sample(letter, letter) for letter in rank] for rank in word.split("|")] for word in text.split()]
