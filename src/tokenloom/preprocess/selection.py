"""Assigns documents to splits and finds duplicates, by a 16-byte hash of each document.

The split of a document depends only on its own hash, so it does not change when the corpus grows. Exact duplicates are
found across all shards.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.inputs.records import Texts
from tokenloom.inputs.utf8_texts import encodable, utf8_of

DocumentHashes = NDArray[np.uint64]
"""uint64[num_documents, 2]: a 128-bit BLAKE2b hash of the texts of each document."""

_DIGEST_BYTES = 16
_ROWS_AT_ONCE = 1 << 20
# Memory per document in a pass: two copies of its hash (unsorted and sorted), its shard and row, and sorting overhead.
_BYTES_PER_ROW = 96
_MOST_PASSES = 1 << 16


def hash_documents(columns: Sequence[Texts], num_documents: int) -> DocumentHashes:
    """Returns a hash, uint64[num_documents, 2], of each document's texts for all keys (`columns`: one per key).

    The hash includes the number of texts and their lengths: two documents have equal hashes only if they have the same
    texts for the same keys, divided in the same way. BLAKE2b is a cryptographic hash; among 10¹² documents, the
    probability of a collision is 10⁻¹⁵.
    """
    every = range(1, num_documents + 1)
    ends = [every if column.document_ends is None else column.document_ends.tolist() for column in columns]
    encoded = [utf8_of(column.texts) for column in columns]
    digests: list[bytes] = []
    for index in range(num_documents):
        state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for texts, stops in zip(encoded, ends, strict=True):
            num_texts = stops[index] - (stops[index - 1] if index else 0)
            state.update(num_texts.to_bytes(8, "little"))
            for data in islice(texts, num_texts):
                state.update(len(data).to_bytes(8, "little"))
                state.update(data)
        digests.append(state.digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64).reshape(num_documents, 2)


def hash_of_text(text: str | bytes) -> DocumentHashes:
    """Returns the hash, uint64[2], that PREFIX.hashes.npy contains for a document with one text.

    Args:
        text: the exact input text, including newlines, as a string or UTF-8 bytes.

    Example:
        >>> [hex(half) for half in hash_of_text("one text").tolist()]
        ['0x28cae114a8d50ed1', '0x720f96af2c019d21']
    """
    texts = Texts(texts=[encodable(text) if isinstance(text, str) else text.decode()])
    found: DocumentHashes = hash_documents([texts], 1)[0]
    return found


def split_of(hashes: DocumentHashes, *, seed: int, shares: Sequence[float]) -> NDArray[np.int8]:
    """Returns the split index of each document, int8[num_documents], from the document's hash, the seed and the shares.

    The hash and the seed determine a number u in [0, 2⁶⁴). Split i receives the documents with
    floor(c[i] × 2⁶⁴) <= u < floor(c[i + 1] × 2⁶⁴), where c[i] is the exact sum of shares 0 to i - 1, divided by the sum
    of all shares. So a document falls into split i with probability p = share i / (sum of all shares), to within 2⁻⁶⁴.
    A split with share 0 gets no document. Equal documents fall into the same split. Of n different documents, split i
    gets n × p on average, with a standard deviation of sqrt(n × p × (1 - p)).

    Args:
        hashes: uint64[num_documents, 2], from PREFIX.hashes.npy or `hash_of_text`.
        seed: seed in [0, 2⁶⁴).
        shares: at most 127 shares of at least 0, with a sum above 0.

    Raises:
        ConfigError: the seed or the shares are out of range.

    Example:
        >>> hashes = np.arange(16, dtype=np.uint64).reshape(8, 2)
        >>> split_of(hashes, seed=1, shares=[0.5, 0.5]).tolist() == split_of(hashes, seed=1, shares=[1, 1]).tolist()
        True
    """
    _check_hashes(hashes)
    if not 0 <= seed < 2**64:
        raise ConfigError(f"`seed`: must be in [0, 2**64), got {seed!r}")
    bounds = _bounds(shares)
    keyed = hashes[:, 0] ^ _mixed(np.array([seed], dtype=np.uint64))
    numbers = _mixed(keyed ^ hashes[:, 1])
    splits: NDArray[np.int8] = np.searchsorted(np.array(bounds, dtype=np.uint64), numbers, side="right").astype(np.int8)
    return splits


def _bounds(shares: Sequence[float]) -> list[int]:
    """Returns the smallest u (see `split_of`) of each split after split 0, ascending; omits values of 2⁶⁴."""
    try:
        ratios = [share.as_integer_ratio() for share in shares]
    except (AttributeError, ValueError, OverflowError):  # a string, NaN, infinity
        ratios = []
    common = math.lcm(*(denominator for _, denominator in ratios))
    exact = [numerator * (common // denominator) for numerator, denominator in ratios]
    total = sum(exact)
    if not 1 <= len(exact) <= 127 or min(exact) < 0 or total <= 0:
        raise ConfigError(f"`shares`: must be 1 to 127 numbers >= 0, not all 0, got {list(shares)!r}")
    bounds = [(sum(exact[:index]) << 64) // total for index in range(1, len(exact))]
    return [bound for bound in bounds if bound < 2**64]


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes 64-bit numbers with the bijective finalizer of SplitMix64: each output bit depends on all input bits."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def first_occurrences(
    hash_arrays: Sequence[DocumentHashes], *, memory_bytes: int = 256 << 20
) -> list[NDArray[np.bool_]]:
    """Returns a mask per shard, bool[num_documents]: False if an earlier document has the same hash, else True.

    If `memory_bytes` is too small for all hashes, reads them in several passes. Each pass compares the hashes that have
    the same leading bits. Copies of a document need no extra memory.

    Args:
        hash_arrays: uint64[num_documents, 2] per shard, in the order of the corpus; memory-mapped files are allowed.
        memory_bytes: memory limit for the hashes of one pass, without the result and a block of a million hashes.

    Raises:
        ConfigError: an array has a wrong shape or dtype, or `memory_bytes` is too small.

    Example:
        >>> one, two = np.array([[1, 1]], dtype=np.uint64), np.array([[2, 2], [1, 1]], dtype=np.uint64)
        >>> [mask.tolist() for mask in first_occurrences([one, two])]
        [[True], [True, False]]
    """
    for hashes in hash_arrays:
        _check_hashes(hashes)
    masks = [np.ones(len(hashes), dtype=np.bool_) for hashes in hash_arrays]
    num_passes = -(-sum(map(len, hash_arrays)) * _BYTES_PER_ROW // max(1, memory_bytes))
    if num_passes > _MOST_PASSES:
        least = -(-num_passes * memory_bytes // _MOST_PASSES)
        raise ConfigError(f"`memory_bytes`: must be at least {least} for this number of documents, got {memory_bytes}")
    num_bits = max(0, num_passes - 1).bit_length()
    for number in range(1 << num_bits):
        _mark_pass(hash_arrays, masks, number, num_bits, min(_ROWS_AT_ONCE, max(1, memory_bytes // _BYTES_PER_ROW)))
    return masks


def _mark_pass(
    hash_arrays: Sequence[DocumentHashes],
    masks: Sequence[NDArray[np.bool_]],
    number: int,
    num_bits: int,
    rows_at_once: int,
) -> None:
    """Finds duplicates among hashes whose first `num_bits` bits equal `number`; sets the duplicates' masks to False."""
    found: list[DocumentHashes] = [np.empty((0, 2), dtype=np.uint64)]
    places: list[NDArray[np.int64]] = [np.empty((0, 2), dtype=np.int64)]
    for shard, (hashes, mask) in enumerate(zip(hash_arrays, masks, strict=True)):
        for start in range(0, len(hashes), rows_at_once):
            rows = np.asarray(hashes[start : start + rows_at_once])
            # Two shifts, because a shift by 64 bits is undefined.
            leading = rows[:, 0] >> np.uint64(32) >> np.uint64(32 - num_bits)
            chosen = np.flatnonzero(leading == number)
            first = _is_first(rows[chosen])
            mask[start + chosen[~first]] = False
            kept = chosen[first]
            found.append(rows[kept])
            places.append(np.stack([np.full(len(kept), shard, dtype=np.int64), start + kept], axis=1))
    repeated = np.concatenate(places)[~_is_first(np.concatenate(found))]
    for shard in np.unique(repeated[:, 0]).tolist():
        masks[shard][repeated[repeated[:, 0] == shard, 1]] = False


def _is_first(rows: DocumentHashes) -> NDArray[np.bool_]:
    """Returns for each row, bool[num_rows], whether all earlier rows differ from this row."""
    order = np.lexsort((rows[:, 1], rows[:, 0]))  # stable: equal rows keep their order
    ordered = rows[order]
    first = np.ones(len(rows), dtype=np.bool_)
    first[order[1:]] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return first


def _check_hashes(hashes: DocumentHashes) -> None:
    if hashes.ndim != 2 or hashes.shape[1] != 2 or hashes.dtype != np.uint64:
        raise ConfigError(f"hashes: expected uint64[num_documents, 2], found {hashes.dtype}{list(hashes.shape)}")
