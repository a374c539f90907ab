"""`--step-batch-size-schedule` as the reference reads it."""

from __future__ import annotations

import math
from itertools import pairwise

from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import BatchSizeSchedule
from tokenloom.numbers import checked_integer, quoted

_MULTIPLES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_EXAMPLE = "such as `0:768 250B:1536`: a threshold, a colon, and the samples of each step from there on"


def step_batch_size_schedule(text: str, seq_length: int | None = None) -> BatchSizeSchedule:
    """Returns the batch sizes that `--step-batch-size-schedule` stands for, equal to the reference's after any sample.

    `BatchSizeSchedule.parse` is stricter and exact. This reads what the reference reads: items in any order, suffixes
    with and without a sequence length, and numbers in double precision, whose products are cut to integers.

    Args:
        text: items "THRESHOLD:SIZE" between blanks or commas; K, M, B and T are powers of 1000.
        seq_length: tokens per sample, if thresholds are tokens; None if they are samples.

    Raises:
        ConfigError: an item is none, none begins at 0, two begin together, or a size is not positive.

    Example:
        >>> step_batch_size_schedule("1.6K:8 0:4", seq_length=100).sizes
        ((0, 4), (16, 8))
    """
    length = 1 if seq_length is None else checked_integer("seq_length", seq_length, at_least=1)
    sizes: list[tuple[int, int]] = []
    for item in text.replace(",", " ").split():
        threshold, colon, size = item.partition(":")
        if not colon:
            message = f"expected a threshold and a batch size in the schedule, found {quoted(item)}"
            raise ConfigError(message, hint=_EXAMPLE)
        sizes.append((_number(threshold, item) // length, _number(size, item)))
    sizes.sort(key=lambda pair: pair[0])
    if not sizes or sizes[0][0] != 0:
        message = f"expected a schedule that begins at 0, found {quoted(text)}"
        raise ConfigError(message, hint="say first what holds from the beginning on, as in `0:768`")
    for (start, _), (after, _) in pairwise(sizes):
        if start == after:
            message = f"expected thresholds that rise by a sample at least, found two of {start} samples"
            raise ConfigError(message, hint=None if seq_length is None else f"a sample has {seq_length} tokens")
    return BatchSizeSchedule(sizes=tuple(sizes))


def _number(text: str, item: str) -> int:
    """Returns the integer that a text such as "1.5B" stands for, with the reference's roundings."""
    digits = text.strip().upper()
    multiple = _MULTIPLES.get(digits[-1:], 1)
    try:
        number = float(digits[:-1] if multiple > 1 else digits) * multiple
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        message = f"expected a threshold and a batch size in the schedule, found {quoted(item)}"
        raise ConfigError(message, hint=_EXAMPLE)
    return int(number)
