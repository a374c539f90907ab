"""Whether the rows of an index are those of sequences that lie back to back."""

from collections.abc import Sequence


def check_rows(lengths: Sequence[int], pointers: Sequence[int], *, start: int, itemsize: int) -> tuple[int, int]:
    """Returns the first wrong row and where it should begin; or the number of rows, and where the last one ends."""
    expected = start
    for row, (length, pointer) in enumerate(zip(lengths, pointers, strict=True)):
        if length < 0 or pointer != expected:
            return row, expected
        expected += length * itemsize
    return len(lengths), expected


def first_fall(boundaries: Sequence[int]) -> int:
    """Returns the first boundary that is below the one before it, or how many there are."""
    return next((i for i in range(1, len(boundaries)) if boundaries[i] < boundaries[i - 1]), len(boundaries))
