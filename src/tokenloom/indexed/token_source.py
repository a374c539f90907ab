"""Tokens of many spans from whatever holds sequences: the fast way, or a class of a user's own asked for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.overrides import Overrides, Uncalled

Int64s = NDArray[np.int64]

ReadSpans = Callable[[Any, Int64s, Int64s, Int64s], NDArray[Any]]
"""Returns the tokens of many spans of a source, back to back: of sequences, from starts on, of so many tokens each."""

_HOOKS = ("get", "__getitem__", "gather")


def span_reader(source: Any, *, whole: bool = False) -> ReadSpans:
    """Returns what reads spans of a source: `gather`, unless a class of a user's own says by `get` what tokens are.

    Args:
        source: an `IndexedDataset`, or what has `get(idx, offset, length)`, or gives a sequence by `source[idx]`.
        whole: whether spans are sequences, or their beginnings, which `source[idx]` gives too, as the reference asks
            for them.

    Raises (what is returned):
        ConfigError: there is no way to ask.
        DatasetFormatError: the source gives another number of tokens than was asked for.
    """
    found = Overrides.of(source, _HOOKS)
    hook = found.skipped("gather", *(("get", "__getitem__") if whole else ("get",)))
    if hook is None and (hasattr(type(source), "gather") or "gather" in vars(source)):
        return _gather
    return partial(_ask_each, by_item=whole and "__getitem__" in found.found)


def _gather(source: Any, sequences: Int64s, starts: Int64s, lengths: Int64s) -> NDArray[Any]:
    tokens: NDArray[Any] = source.gather(sequences, starts, lengths)
    return tokens


def _ask_each(source: Any, sequences: Int64s, starts: Int64s, lengths: Int64s, *, by_item: bool) -> NDArray[Any]:
    if not by_item and not hasattr(source, "get"):
        message = f"expected a low-level dataset with `get(idx, offset, length)`, found {type(source).__name__}"
        raise ConfigError(message)
    parts = [np.empty(0, dtype=np.int64)][len(sequences) :]
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
        parts.append(tokens)
    return np.concatenate(parts)


def mapped_bytes(reader: Any) -> NDArray[np.uint8] | None:
    """Returns the bytes of a reader that are mapped into memory; None if there are none, or its `read` is a user's."""
    mapped: NDArray[np.uint8] | None = reader.mapped if is_our_reader(reader) else None
    return mapped


def is_our_reader(reader: Any) -> bool:
    """Whether what a reader maps into memory is what it reads, as a user's own class may have another `read`."""
    return Overrides.of(reader, ("mapped", "read", "read_many")).skipped("mapped", "read", "read_many") is None


def check_source(source: Any) -> None:
    """Raises if a low-level dataset overrides what samples of spans do not ask."""
    own = Overrides.of(source, _HOOKS)
    if own.found and hasattr(source, "get"):
        remedy = "override `get(idx, offset, length)`, which gives the tokens of samples"
        own.refuse_uncalled({"__getitem__": Uncalled(remedy, unless=("get", "gather"))})
