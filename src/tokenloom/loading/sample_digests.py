"""Digests of samples that were read: 128 bits over positions and tokens, independent of ranks, batches and order.

A digest is a sum of hashes, one per sample. It detects accidents: a flipped bit, a missing, repeated or swapped sample,
a changed file. A digest is not cryptographic and detects no forgery.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.datasets.protocols import KnowsLengths, Positions
from tokenloom.datasets.shortcuts import batch_of, makes_batches, sample_of
from tokenloom.distributed.building import do_together
from tokenloom.errors import ConfigError
from tokenloom.loading.read_ahead import Batch, announce_ahead
from tokenloom.numbers import checked_integer, quoted
from tokenloom.progress import task

VERSION = 1  # of the hash and the sum; changes whenever the digest of the same samples changes

_HALF = 1 << 64
_RUN_CHARACTERS = 16
_RANGE = re.compile(r"(\d{1,9}):([^:\s]{1,16}):(\d{1,19})-(\d{1,19}):([0-9a-f]{32})")
_TOKENS_AT_ONCE = 1 << 19
_MOST_AT_ONCE = 256
_UNKNOWN_AT_ONCE = 16
_LOCATED_AT_ONCE = 1 << 14


@dataclass(slots=True, kw_only=True)
class ReadingDigest:
    """The digest of samples that were read: the sum of their hashes, independent of order and batches.

    The hash of a sample covers its position and the values of its tokens, but no dtype, labels or masks.

    Example:
        >>> import numpy as np
        >>> one, other = ReadingDigest(), ReadingDigest()
        >>> one.add([7, 8], np.array([[1, 2, 3], [4, 5, 6]]))
        >>> other.add([8], np.array([[4, 5, 6]], dtype=np.int32))
        >>> other.add([7], np.array([[1, 2, 3]], dtype=np.uint16))
        >>> one == other, one.num_samples
        (True, 2)

    Attributes:
        low, high: sums of the lower and upper 64 bits of the hashes, modulo 2**64.
        num_samples: number of samples in the digest.
    """

    low: int = 0
    high: int = 0
    num_samples: int = 0

    def add(self, positions: Positions, tokens: Any) -> None:
        """Adds the hashes of samples to the digest.

        Args:
            positions: integers of at least 0, one per sample; None marks a padding sample, which is not added.
            tokens: array or tensor of integers[num_samples, length]; or a list of vectors of different lengths.
        """
        digests = digests_of(tokens)
        if digests is None or len(digests) != len(positions):
            raise ConfigError(f"`tokens`: must be integers [{len(positions)} samples, length], got {tokens!r}")
        if any(position is not None and int(position) < 0 for position in positions):
            raise ConfigError(f"`positions`: must be 0 or more, got {list(positions)!r}")
        sums = _native.DigestSums()
        sums.add(positions, digests)
        total = self + total_of(sums)
        self.low, self.high, self.num_samples = total.low, total.high, total.num_samples

    def __add__(self, other: ReadingDigest) -> ReadingDigest:
        low, high = (self.low + other.low) % _HALF, (self.high + other.high) % _HALF
        return ReadingDigest(low=low, high=high, num_samples=self.num_samples + other.num_samples)

    def hexdigest(self) -> str:
        """Returns 32 hex digits: `high`, then `low`."""
        return f"{self.high:016x}{self.low:016x}"

    @classmethod
    def from_hex(cls, text: str, *, num_samples: int) -> Self:
        """Parses the text that `hexdigest` returns."""
        return cls(low=int(text[16:], 16), high=int(text[:16], 16), num_samples=num_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeDigest:
    """The digest of a range of positions of a run; `str` returns a text with run, range and digest.

    Example:
        >>> digest = RangeDigest(run="35cbb0f6a6ad1ea6", start=0, stop=2, digest=ReadingDigest(low=1, num_samples=2))
        >>> str(digest)
        '1:35cbb0f6a6ad1ea6:0-2:00000000000000000000000000000001'
        >>> RangeDigest.parse(str(digest)) == digest
        True

    Attributes:
        run: name of the run, see `name_of_run`.
        start, stop: the positions [start, stop).
        digest: the digest of the samples at these positions.
    """

    run: str
    start: int
    stop: int
    digest: ReadingDigest = field(default_factory=ReadingDigest)

    def __str__(self) -> str:
        return f"{VERSION}:{self.run}:{self.start}-{self.stop}:{self.digest.hexdigest()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the text that `str` returns.

        Raises:
            ConfigError: `text` is not a digest, or has another version.
        """
        found = _RANGE.fullmatch(text) if isinstance(text, str) else None
        if found is None or int(found[3]) > int(found[4]):
            raise ConfigError(f"{quoted(str(text))} is not a digest such as {VERSION}:RUN:START-STOP:{'0' * 32}")
        if int(found[1]) != VERSION:
            message = f"digest version: expected {VERSION}, found {found[1]}"
            raise ConfigError(message, hint="use the version of tokenloom that computed the digest")
        start, stop = int(found[3]), int(found[4])
        digest = ReadingDigest.from_hex(found[5], num_samples=stop - start)
        return cls(run=found[2], start=start, stop=stop, digest=digest)

    def __add__(self, other: RangeDigest) -> RangeDigest:
        """Returns the digest of both ranges; `other` must start where this range stops."""
        if (self.run, self.stop) != (other.run, other.start):
            raise ConfigError(f"the positions of digest {other} do not start where those of {self} stop")
        return RangeDigest(run=self.run, start=self.start, stop=other.stop, digest=self.digest + other.digest)


def name_of_run(identity: str) -> str:
    """Returns a run's name in digests: the first 16 characters of its identity, with `_` instead of `:` and blanks."""
    return re.sub(r"[:\s]", "_", identity[:_RUN_CHARACTERS]) or "_"


def digest_tokens(tokens: NDArray[Any]) -> NDArray[np.uint64]:
    """Returns a digest, uint64[num_samples, 2], of each row of `tokens`, integers[num_samples, length] of any dtype."""
    if tokens.dtype not in (np.int64, np.int32):  # also converts other byte orders
        tokens = tokens.astype(np.int64)
    out = np.empty((len(tokens), 2), dtype=np.uint64)
    _native.digest_rows(np.ascontiguousarray(tokens), out)
    return out


def digests_of(tokens: Any) -> NDArray[np.uint64] | None:
    """Returns the hash of each sample's tokens, uint64[num_samples, 2]; None unless all tokens are integers."""
    if isinstance(tokens, (list, tuple)) and not all(isinstance(each, int) for each in tokens):
        rows = [digests_of(np.asarray(each)[np.newaxis]) for each in tokens]
        return None if any(row is None for row in rows) else np.concatenate(rows)  # type: ignore[arg-type]
    found = np.asarray(tokens)
    return digest_tokens(found) if found.ndim == 2 and found.dtype.kind in "iu" else None


def digests_of_batch(batch: Any, count: int) -> NDArray[np.uint64] | None:
    """Returns the hash of each sample's tokens, uint64[count, 2]; None unless `batch` has tokens of `count` samples."""
    found = None
    if isinstance(batch, Mapping):
        found = digests_of(batch["tokens"]) if "tokens" in batch else None
    elif isinstance(batch, list) and all(isinstance(each, Mapping) and "tokens" in each for each in batch):
        found = digests_of([each["tokens"] for each in batch])
    return found if found is not None and len(found) == count else None


def total_of(sums: _native.DigestSums) -> ReadingDigest:
    return ReadingDigest(low=sums.low, high=sums.high, num_samples=sums.num_samples)


def digest_of_positions(dataset: Any, positions: Sequence[int], *, num_threads: int = 1) -> ReadingDigest:
    """Reads the samples at `positions`, such as a range, with `num_threads` threads; returns their digest."""
    batches = _batches_of(dataset, positions)
    return total_of(digest_batches(dataset, batches, num_threads=num_threads, total=len(positions)))


def digest_batches(
    dataset: Any, batches: Iterable[Batch], *, num_threads: int = 1, total: int | None = None
) -> _native.DigestSums:
    """Reads batches in threads, a few batches ahead; returns their digests.

    Skips positions that are None. `total` is the number of samples for the progress display.
    """
    num_threads = checked_integer("num_threads", num_threads, at_least=1)
    upcoming = announce_ahead(dataset, ([each for each in batch if each is not None] for batch in batches))
    executor = ThreadPoolExecutor(max_workers=num_threads, thread_name_prefix="tokenloom-replay")
    pending: deque[tuple[Batch, Future[NDArray[np.uint64]]]] = deque()
    sums = _native.DigestSums()
    try:
        with task("replay", unit="samples", total=total) as advance:
            while True:
                for batch in itertools.islice(upcoming, 2 * num_threads - len(pending)):
                    pending.append((batch, executor.submit(_digests, dataset, batch)))
                if not pending:
                    return sums
                positions, digests = pending.popleft()
                sums.add(positions, digests.result())
                advance(len(positions))
    finally:
        executor.shutdown(cancel_futures=True)


def _digests(dataset: Any, positions: Any) -> NDArray[np.uint64]:
    if not positions:
        return np.empty((0, 2), dtype=np.uint64)
    batch = dataset.batch(positions) if makes_batches(dataset) else [sample_of(dataset, each) for each in positions]
    if (digests := digests_of_batch(batch, len(positions))) is None:
        raise ConfigError(f"samples of {type(dataset).__name__} have no integer `tokens`, which a digest needs")
    return digests


def _batches_of(dataset: Any, positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yields batches of equally long samples, of at most about 2**19 tokens; of 16 samples if lengths are unknown."""
    for start in range(0, len(positions), _LOCATED_AT_ONCE):
        part = positions[start : start + _LOCATED_AT_ONCE]
        if not isinstance(dataset, KnowsLengths) or hasattr(dataset, "datasets"):  # samples of a blend have one length
            yield from (part[at : at + _UNKNOWN_AT_ONCE] for at in range(0, len(part), _UNKNOWN_AT_ONCE))
            continue
        lengths = dataset.lengths(np.asarray(part, dtype=np.int64))
        bounds = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(part)]
        for begin, end in itertools.pairwise(bounds):
            size = max(1, min(_MOST_AT_ONCE, _TOKENS_AT_ONCE // max(1, int(lengths[begin]))))
            yield from (part[at : min(at + size, end)] for at in range(begin, end, size))


def digest_of_samples(dataset: Any, positions: Iterable[int]) -> str:
    """Returns the SHA-256, in hex, of samples: their positions, and names, dtypes, shapes and bytes of their arrays."""
    digest = hashlib.sha256()
    for position in positions:  # one at a time: masks are large, and the digest must not depend on a batch size
        for name, array in batch_of(dataset, (position,)).items():
            digest.update(f"{position}\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def check_same_batches(dataset: Any, *, num_samples: int = 64, name: str = "the first samples") -> None:
    """Raises an error on every rank of `torch.distributed` unless all datasets have equal lengths and first samples.

    All ranks must call this function; ranks without the dataset pass None. Without `torch.distributed`, the function
    only reads the first `num_samples` samples. Error messages call these samples `name`.

    Raises:
        DivergenceError: the datasets differ; the message lists the ranks with each digest.
        BuildError: a rank failed to read, or died.
    """

    def digest() -> str | None:
        if dataset is None:
            return None
        first = digest_of_samples(dataset, range(min(num_samples, len(dataset))))
        return f"{len(dataset)} samples, {first[:16]}"

    do_together(f"comparing {name}", digest, compare=lambda found: found, name=name)
