"""Tokens of many spans from whatever holds sequences: the fast way, or a class of a user's own asked for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.overrides import Remembered, Shortcut, Uncalled, overrides, refuse_uncalled

SPANS = Shortcut("gather", skips=("get",), asked_by_hooks=True)
"""Spans of sequences, which a class of a user's own gives by `get`, as the reference's GPT datasets ask for them."""

SEQUENCES = Shortcut("gather", skips=("__getitem__", "get"), asked_by_hooks=True)
"""Whole sequences, or their beginnings, which it gives by `source[k]`, as the reference's other datasets ask."""

MAPPED = Shortcut(None, skips=("get", "gather", "sequence_lengths"))
"""The bytes behind an `IndexedDataset`, which kernels read by themselves."""

SLICES = Shortcut("_read_run", skips=("get",), asked_by_hooks=True)
"""Sequences in a row."""

_READER = Shortcut("mapped", skips=("read", "read_many"), asked_by_hooks=True)

Int64s = NDArray[np.int64]


def gather_tokens(
    source: Any, sequences: Int64s, starts: Int64s, lengths: Int64s, *, shortcut: Shortcut = SPANS
) -> NDArray[Any]:
    """Returns the tokens of many spans, back to back: integers[sum(lengths)].

    Args:
        source: an `IndexedDataset`, or what has `get(idx, offset, length)`, or gives a sequence by `source[idx]`.
        sequences: int64[num_spans], the sequence of each span.
        starts: int64[num_spans], the first token in the sequence.
        lengths: int64[num_spans], how many tokens.
        shortcut: `SPANS` or `SEQUENCES`, which says what is asked of a class of a user's own.

    Raises:
        ConfigError: there is no way to ask.
        DatasetFormatError: the source gives another number of tokens than was asked for.
    """
    if shortcut.skipped(source) is None and (hasattr(type(source), "gather") or "gather" in vars(source)):
        tokens: NDArray[Any] = source.gather(sequences, starts, lengths)
        return tokens
    by_item = shortcut is SEQUENCES and overrides(source, "__getitem__")
    if not by_item and not hasattr(source, "get"):
        message = f"expected a low-level dataset with `get(idx, offset, length)`, found {type(source).__name__}"
        raise ConfigError(message)
    parts = list(_ask_each(source, sequences, starts, lengths, by_item=by_item))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _ask_each(
    source: Any, sequences: Int64s, starts: Int64s, lengths: Int64s, *, by_item: bool
) -> Iterator[NDArray[Any]]:
    for sequence, start, length in zip(sequences.tolist(), starts.tolist(), lengths.tolist(), strict=True):
        found = source[sequence] if by_item else source.get(sequence, offset=start, length=length)
        if isinstance(found, tuple):  # of multimodal data, (tokens, mode)
            found = found[0]
        tokens = np.asarray(found)[start : start + length] if by_item else np.asarray(found)
        if tokens.ndim != 1 or len(tokens) != length:
            message = (
                f"expected {length} tokens of sequence {sequence} from token {start} on, "
                f"found shape {list(tokens.shape)} from {type(source).__name__}"
            )
            raise DatasetFormatError(message, hint="its `sequence_lengths` must say how many tokens it gives")
        yield tokens


def mapped_bytes(reader: Any) -> NDArray[np.uint8] | None:
    """Returns the bytes of a reader that are mapped into memory; None if there are none, or its `read` is a user's."""
    mapped: NDArray[np.uint8] | None = None if _READER.skipped(reader) else reader.mapped
    return mapped


def check_source(source: Any) -> None:
    """Raises if a low-level dataset overrides what samples of spans do not ask.

    Raises:
        ConfigError: it does.
    """
    if not _IS_ASKED(source):
        _has_effect(source)


def _has_effect(source: Any) -> bool:
    if hasattr(source, "get"):
        remedy = "override `get(idx, offset, length)`, which gives the tokens of samples"
        refuse_uncalled(source, {"__getitem__": Uncalled(remedy, unless=("get", "gather"))})
    return True


_IS_ASKED = Remembered(("get", "gather", "__getitem__"), _has_effect)
