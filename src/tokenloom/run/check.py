"""Whether sources are still what was locked: at a glance, or byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

from tokenloom.errors import TokenloomError
from tokenloom.indexed.checksums import FileTally
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.kernels import Watch
from tokenloom.progress import also_told, task
from tokenloom.run.lock import LockedPair, RunLock
from tokenloom.run.sources import NUM_THREADS, Difference, changed_data, difference, facts_of, lock_pair
from tokenloom.storage.local import ByteSource

_BYTES = 16 << 20
"""Read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with a pair, or not known of it.

    Attributes:
        source: name of the source.
        path: the file, or the prefix of the pair.
        message: one sentence, with file, expected and found.
        is_unknown: whether nothing is wrong as far as can be told: the lock has no checksum to compare with.
    """

    source: str
    path: str
    message: str
    is_unknown: bool = False


def check_sources(
    lock: RunLock, *, full: bool, progress: Callable[[int], None] | None = None, num_threads: int = NUM_THREADS
) -> list[Problem]:
    """Returns how the pairs of a lock differ from what was locked, in the order of the lock.

    Sizes, counts, the start of each index and the checksums in manifests are compared; with `full`, also the checksums
    of all bytes.

    Args:
        lock: the lock.
        full: whether to read both files of each pair.
        progress: called with the bytes read since the last call, by several threads.
        num_threads: threads that look at pairs at the same time.
    """
    pairs = [(source.name, pair) for source in lock.sources for pair in source.pairs]
    total = sum(_num_checked(pair) for _, pair in pairs) if full else len(pairs)
    with (
        task("check", unit="bytes" if full else "pairs", total=total) as advance,
        ThreadPoolExecutor(num_threads) as executor,
    ):
        tell = also_told(advance, progress)

        def look(named: tuple[str, LockedPair]) -> list[Problem]:
            problems = list(_problems(*named, full=full, progress=tell))
            if not full:
                advance()
            return problems

        return list(chain.from_iterable(executor.map(look, pairs)))


def _num_checked(pair: LockedPair) -> int:
    """Returns how many bytes of a pair are read in full: those of which a checksum is known."""
    num_bytes = pair.num_token_bytes * (pair.tokens_crc32 is not None)
    return num_bytes + pair.idx_bytes * (pair.index_crc32 is not None)


def check_opened(pair: IndexedDataset, locked: LockedPair) -> None:
    """Checks that a pair that was opened is what was locked, as far as can be told without reading; costs some µs."""
    if (changed := difference(locked, facts_of(pair))) is not None:
        raise changed_data(changed)


def _problems(source: str, locked: LockedPair, *, full: bool, progress: Callable[[int], None]) -> Iterator[Problem]:
    try:
        changed = difference(locked, lock_pair(locked.prefix))
        if changed is not None:
            yield _problem(source, changed)
        elif full:
            yield from _differences_of_bytes(source, locked, progress)
    except TokenloomError as error:
        yield Problem(source=source, path=locked.prefix, message=error.message)


def _differences_of_bytes(source: str, locked: LockedPair, progress: Callable[[int], None]) -> Iterator[Problem]:
    pair = IndexedDataset(locked.prefix, mmap=False)
    for path, expected, file in (
        (bin_path(locked.prefix), locked.tokens_crc32, pair.byte_source),
        (idx_path(locked.prefix), locked.index_crc32, pair.index_source()),
    ):
        if expected is None:
            message = f"`{path}`: no checksum is known, since there was no manifest when it was locked"
            yield Problem(source=source, path=path, message=message, is_unknown=True)
        elif (found := _crc32_of(file, progress)) != expected:
            yield _problem(source, Difference(path, f"bytes with CRC-32 {expected:08x}", f"{found:08x}"))


def _crc32_of(file: ByteSource, progress: Callable[[int], None]) -> int:
    tally = FileTally()
    for begin in range(0, file.num_bytes, _BYTES):
        data = file.read(begin, min(_BYTES, file.num_bytes - begin))
        tally.add(data.data)
        progress(len(data))
    if file.mapped is not None:
        Watch([file.mapped]).check()
    return tally.crc32


def _problem(source: str, changed: Difference) -> Problem:
    return Problem(source=source, path=changed.path, message=changed_data(changed).message)
