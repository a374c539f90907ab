"""Which documents a data set keeps: told by a hash of each, so that it depends on nothing else.

A hash costs 16 bytes per document and is made where the text is at hand. With it, a document falls into the same split
whatever is added to the corpus, and exact duplicates are found over any number of shards.
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
"""uint64[num_documents, 2]: 128 bits of BLAKE2b of the texts of each document."""

_DIGEST_BYTES = 16
_ROWS_AT_ONCE = 1 << 20
# A document of one pass: its hash twice (as found, and sorted), its number, its place in the order, and half as much
# again for what sorting needs.
_BYTES_PER_ROW = 96
_MOST_PASSES = 1 << 16


def hash_documents(columns: Sequence[Texts], num_documents: int) -> DocumentHashes:
    """Returns the hash of the texts of each document under all keys.

    Numbers of texts and their lengths are hashed along, so that documents are equal only if they have the same texts
    under the same keys, cut into the same parts. BLAKE2b is cryptographic: nobody can make two documents of one hash,
    to have one of them dropped, say; among 10¹² documents, chance makes such a pair with a probability of 10⁻¹⁵.

    Args:
        columns: one for each key, in the order of the keys.
        num_documents: number of documents in each column.
    """
    every = range(1, num_documents + 1)
    ends = [every if column.document_ends is None else column.document_ends.tolist() for column in columns]
    encoded = [utf8_of(column.texts) for column in columns]
    digests: list[bytes] = []
    for index in range(num_documents):
        state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for texts, stops in zip(encoded, ends, strict=True):
            num_texts = stops[index] - (stops[index - 1] if index else 0)
            state.update(_eight_bytes(num_texts))
            for data in islice(texts, num_texts):
                state.update(_eight_bytes(len(data)))
                state.update(data)
        digests.append(state.digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64).reshape(num_documents, 2)


def hash_of_text(text: str | bytes) -> DocumentHashes:
    """Returns the hash of a document that is one text, as `hash_documents` makes it: uint64[2].

    Args:
        text: the text as it stands in the input, or its UTF-8; nothing is added to it, and no newline taken from it.

    Example:
        >>> [hex(half) for half in hash_of_text("one text").tolist()]
        ['0x28cae114a8d50ed1', '0x720f96af2c019d21']
    """
    texts = Texts(texts=[encodable(text) if isinstance(text, str) else text.decode()])
    found: DocumentHashes = hash_documents([texts], 1)[0]
    return found


def _eight_bytes(number: int) -> bytes:
    return number.to_bytes(8, "little")


def split_of(hashes: DocumentHashes, *, seed: int, shares: Sequence[float]) -> NDArray[np.int8]:
    """Returns which split each document belongs to, int8[num_documents].

    A function of the document's hash, the seed and the shares alone: other documents never change it, and equal
    documents always meet in one split. The hash and the seed give a number u in [0, 2⁶⁴), and split i takes
    floor(c[i] × 2⁶⁴) <= u < floor(c[i + 1] × 2⁶⁴), where c[i] is the exact sum of the shares before i, divided by that
    of all. So a document falls into split i with the probability that its share says, to within 2⁻⁶⁴, and never
    into one of share 0. How many documents a split gets varies by chance: of n documents p × n, in two cases out of
    three less than sqrt(n × p × (1 - p)) away from it.

    Args:
        hashes: uint64[num_documents, 2], of `hash_documents`.
        seed: seed in [0, 2⁶⁴).
        shares: shares of at least 0, with a sum above 0; at most 127 of them.

    Raises:
        ConfigError: seed or shares are not of this kind.

    Example:
        >>> hashes = np.arange(16, dtype=np.uint64).reshape(8, 2)
        >>> split_of(hashes, seed=1, shares=[0.5, 0.5]).tolist() == split_of(hashes, seed=1, shares=[1, 1]).tolist()
        True
    """
    _check_hashes(hashes)
    if not 0 <= seed < 2**64:
        message = f"expected a seed in [0, 2**64), got {seed!r}"
        raise ConfigError(message)
    bounds = _bounds(shares)
    keyed = hashes[:, 0] ^ _mixed(np.array([seed], dtype=np.uint64))
    numbers = _mixed(keyed ^ hashes[:, 1])
    splits: NDArray[np.int8] = np.searchsorted(np.array(bounds, dtype=np.uint64), numbers, side="right").astype(np.int8)
    return splits


def _bounds(shares: Sequence[float]) -> list[int]:
    """Returns where the second and later splits begin; a split that begins at 2⁶⁴ is left out: nothing reaches it."""
    try:
        ratios = [share.as_integer_ratio() for share in shares]
    except (AttributeError, ValueError, OverflowError):  # a text, NaN, infinity
        ratios = []
    common = math.lcm(*(denominator for _, denominator in ratios))
    exact = [numerator * (common // denominator) for numerator, denominator in ratios]
    total = sum(exact)
    if not 1 <= len(exact) <= 127 or min(exact) < 0 or total <= 0:
        message = f"expected 1 to 127 shares of at least 0, not all of them 0, got {list(shares)!r}"
        raise ConfigError(message)
    bounds = [(sum(exact[:index]) << 64) // total for index in range(1, len(exact))]
    return [bound for bound in bounds if bound < 2**64]


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns a permutation of 64-bit numbers in which each bit depends on all (the last step of SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def first_occurrences(
    hash_arrays: Sequence[DocumentHashes], *, memory_bytes: int = 256 << 20
) -> list[NDArray[np.bool_]]:
    """Returns for each shard which of its documents are the first of their hash, in the order of the corpus.

    The hashes are read in as many passes as the memory demands, each of which takes those that begin with certain bits;
    a duplicate is dropped where it is met first, so that many copies of one document need no memory.

    Args:
        hash_arrays: uint64[num_documents, 2] of each shard, in the order of the corpus; may be mapped files.
        memory_bytes: memory beside the result and one million hashes.

    Raises:
        ConfigError: an array has another shape or dtype, or the memory does not suffice.

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
        message = f"{memory_bytes} bytes are too few to compare {sum(map(len, hash_arrays))} documents"
        raise ConfigError(message, hint=f"give at least {-(-num_passes * memory_bytes // _MOST_PASSES)}")
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
    """Marks the later duplicates among the hashes that begin with the bits of a number."""
    found: list[DocumentHashes] = [np.empty((0, 2), dtype=np.uint64)]
    places: list[NDArray[np.int64]] = [np.empty((0, 2), dtype=np.int64)]
    for shard, (hashes, mask) in enumerate(zip(hash_arrays, masks, strict=True)):
        for start in range(0, len(hashes), rows_at_once):
            rows = np.asarray(hashes[start : start + rows_at_once])
            # In two steps: a shift by all 64 bits is undefined.
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
    """Returns for each row whether no earlier one is equal."""
    order = np.lexsort((rows[:, 1], rows[:, 0]))  # stable: equal rows stay in their order
    ordered = rows[order]
    first = np.ones(len(rows), dtype=np.bool_)
    first[order[1:]] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return first


def _check_hashes(hashes: DocumentHashes) -> None:
    if hashes.ndim != 2 or hashes.shape[1] != 2 or hashes.dtype != np.uint64:
        message = f"expected hashes as uint64[num_documents, 2], found {hashes.dtype}{list(hashes.shape)}"
        raise ConfigError(message)
