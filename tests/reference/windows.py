"""The sample index and the gathering of spans, one document at a time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def build_sample_index(
    lengths: Sequence[int], document_index: Sequence[int], *, window_length: int, extra: int, num_windows: int
) -> list[tuple[int, int]]:
    """Returns (position in `document_index`, token offset) for the start of each window, and the end of the last.

    A window reads `window_length + extra` tokens; the next one starts `extra` tokens before the end of what it read,
    in the document that holds the last token read. If the stream ends inside the last window, the end is the last
    document, `extra` tokens before its end.
    """
    position, offset = 0, 0
    rows = [(position, offset)]
    for window in range(num_windows):
        wanted = window_length + extra
        while wanted > 0:
            available = lengths[document_index[position]] - offset
            if available >= wanted:
                offset += wanted - extra
                wanted = 0
            elif position == len(document_index) - 1:
                if window != num_windows - 1:
                    message = f"the stream ends in window {window}, before the last"
                    raise IndexError(message)
                offset = lengths[document_index[position]] - extra
                wanted = 0
            else:
                wanted -= available
                position, offset = position + 1, 0
        rows.append((position, offset))
    return rows


def gather_spans(
    sequences: Sequence[NDArray[np.generic]], spans: Sequence[tuple[int, int, int]]
) -> list[NDArray[np.generic]]:
    """Returns the tokens of each (sequence, start, length) span."""
    return [sequences[sequence][start : start + length] for sequence, start, length in spans]
