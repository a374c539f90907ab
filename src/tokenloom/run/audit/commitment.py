"""A hash that stands for all that a run reads and when: order, settings, segments, denials, and every token.

It is the root of Merkle trees, as RFC 6962 has them, over the lock and the data. The head holds what is of the whole
run and the root over its sources; a source its denials and pairs; a pair its facts and the roots of its data, see
`committed_data.py`. Where data lie, names of stages and what was consumed are left out, since they decide nothing. Who
knows the root can be shown that a document was, or was not, read at some positions, without being given the data
(`proof.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenloom.errors import ConfigError, DatasetFormatError, StorageError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.order.computed_keys import source_key
from tokenloom.progress import task
from tokenloom.run.audit.committed_data import HashedPair, PairRoots, hash_pair
from tokenloom.run.audit.merkle import leaf_hash, root_of
from tokenloom.run.check import check_opened, check_sources
from tokenloom.run.digest import ratio_of, run_identity
from tokenloom.run.lock import LockedDenial, LockedPair, LockedSegment, LockedSource, RunLock
from tokenloom.run.lock_file import members_of_lock
from tokenloom.run.lock_rows import pair_members
from tokenloom.storage.json_files import UnusableJsonError, read_json
from tokenloom.storage.publishing import make_folder_of
from tokenloom.storage.resolve import open_pending
from tokenloom.storage.typed_json import from_members, members_of

FORMAT, VERSION = "tokenloom run commitment", 1

NUM_THREADS = min(16, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPair:
    """The data of a pair of a run.

    Attributes:
        source: name of its source.
        number: its place there.
        blocks, sums: see `PairRoots`.
    """

    source: str
    number: int
    blocks: str
    sums: str

    @property
    def roots(self) -> PairRoots:
        """What stands for the data."""
        return PairRoots(blocks=self.blocks, sums=self.sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """What a commitment file holds. The root is all that needs to be known; the rest makes proofs quicker.

    Attributes:
        root: the root, 64 hexadecimal digits.
        run: identity of the run, which the root does not prove.
        pairs: the data of each pair, in the order of the lock.
        format, version: of the file.
    """

    root: str
    run: str
    pairs: tuple[CommittedPair, ...]
    format: str = FORMAT
    version: int = VERSION


def commit(lock: RunLock, *, num_threads: int = NUM_THREADS) -> Commitment:
    """Returns the commitment to a run; reads all of its data, twice where the lock has checksums of them.

    Args:
        lock: the run.
        num_threads: threads that hash at the same time.

    Raises:
        ConfigError: the order is the reference's.
        DatasetFormatError, DatasetNotFoundError, StorageError: data are not what was locked, or not there.
    """
    check_committable(lock)
    problems = check_sources(lock, full=True, num_threads=num_threads)
    if wrong := [problem for problem in problems if not problem.is_unknown]:
        raise DatasetFormatError(wrong[0].message, hint="what is committed to is what was locked; restore the data")
    pairs = []
    every = [(source, number) for source, locked in enumerate(lock.sources) for number in range(len(locked.pairs))]
    total = sum(lock.sources[source].pairs[number].num_token_bytes for source, number in every)
    with task("hashing", unit="bytes", total=total) as advance:
        for source, number in every:
            locked = lock.sources[source]
            roots = hash_locked_pair(lock, source, number, progress=advance, num_threads=num_threads).roots
            pairs.append(CommittedPair(source=locked.name, number=number, blocks=roots.blocks, sums=roots.sums))
    found = Commitment(root="", run=run_identity(lock), pairs=tuple(pairs))
    return dataclasses.replace(found, root=root_of_run(lock, found))


def check_committable(lock: RunLock) -> None:
    """Checks that the order of a run follows from its lock.

    Raises:
        ConfigError: it does not.
    """
    if lock.is_megatron:
        message = 'expected a run whose order is computed, found `order = "megatron"`'
        hint = "that order follows from a shuffle of all samples, which nobody can check without making it again"
        raise ConfigError(message, hint=hint)


def hash_locked_pair(
    lock: RunLock, source: int, number: int, *, progress: Callable[[int], None], num_threads: int
) -> HashedPair:
    """Returns the hashes of a pair of a run; reads all of it.

    Raises:
        DatasetFormatError, DatasetNotFoundError, StorageError: it is not what was locked, or not there.
    """
    locked = lock.sources[source].pairs[number]
    pair = IndexedDataset(locked.prefix)
    check_opened(pair, locked)
    key = source_key(lock.seed, lock.sources[source].name)
    return hash_pair(pair, locked, key=key, number=number, num_threads=num_threads, progress=progress)


def root_of_run(lock: RunLock, commitment: Commitment) -> str:
    """Returns the root of a run and the data of its pairs, 64 hexadecimal digits.

    Raises:
        ConfigError: the commitment is of other pairs.
    """
    return root_of_head(lock, root_of(source_hashes(lock, commitment)))


def root_of_head(lock: RunLock, sources: bytes) -> str:
    """Returns the root of a run from its lock, of which only what is of the whole run is asked, and that of sources."""
    members = members_of_lock(reduced(lock, None), path="")
    head = {**members, "sources": [source.name for source in lock.sources], "sources_root": sources.hex()}
    return leaf_hash(b"run\0" + _canonical(head)).hex()


def source_hashes(lock: RunLock, commitment: Commitment) -> list[bytes]:
    """Returns the hashes of all sources.

    Raises:
        ConfigError: the commitment is of other pairs.
    """
    expected = [(source.name, number) for source in lock.sources for number in range(len(source.pairs))]
    if [(pair.source, pair.number) for pair in commitment.pairs] != expected:
        message = f"expected a commitment to the {len(expected)} pairs of this run, found one to other pairs"
        hint = "commit again after the run has changed, or name the lock that was committed to"
        raise ConfigError(message, hint=hint)
    roots = iter(commitment.pairs)
    return [
        hash_of_source(lock, number, [next(roots).roots for _ in source.pairs])
        for number, source in enumerate(lock.sources)
    ]


def hash_of_source(lock: RunLock, number: int, roots: Sequence[PairRoots]) -> bytes:
    """Returns the hash of a source as an entry of the tree of its run.

    Args:
        lock: the run.
        number: number of the source.
        roots: those of its pairs.
    """
    source = lock.sources[number]
    facts = {
        "number": number,
        "name": source.name,
        "pairs": [pair_members(pair, path="") for pair in _reduced_pairs(source.pairs)],
        "denials": [[denial.start, denial.documents[0][1]] for denial in _denials_of(lock, number)],
        "roots": [members_of(each) for each in roots],
    }
    return leaf_hash(b"source\0" + _canonical(facts))


def reduced(lock: RunLock, source: int | None) -> RunLock:
    """Returns what of a lock decides where one source is read: the same for all locks that decide that alike.

    Other sources keep their names alone; pairs have numbers for prefixes.

    Args:
        lock: the run.
        source: number of the source; None for what is of the whole run.
    """
    tokenizer = None if lock.tokenizer is None else dataclasses.replace(lock.tokenizer, name="")
    return dataclasses.replace(
        lock,
        tokenizer=tokenizer,
        sources=tuple(
            LockedSource(name=each.name, pairs=_reduced_pairs(each.pairs) if number == source else ())
            for number, each in enumerate(lock.sources)
        ),
        segments=tuple(_reduced_segment(segment) for segment in lock.segments),
        denials=_denials_of(lock, source),
        consumed=0,
        settings_sha256="",
        content_sha256="",
    )


def write_commitment(path: str, commitment: Commitment) -> None:
    """Writes a commitment file, which appears whole.

    Raises:
        StorageError: it cannot be written.
    """
    make_folder_of(path)
    with open_pending(path) as file:
        file.write(json.dumps(members_of(commitment), indent=1).encode() + b"\n")


def read_commitment(path: str) -> Commitment:
    """Returns what a commitment file holds.

    Raises:
        ConfigError: it is none.
        StorageError: it cannot be read.
    """
    try:
        commitment = from_members(Commitment, read_json(path))
    except OSError as error:
        message = f"cannot read `{path}`: {error.strerror}"
        raise StorageError(message) from error
    except UnusableJsonError as error:
        message = f"`{path}`{error}" if str(error).startswith((":", " in ")) else f"`{path}`: {error}"
        raise ConfigError(message, hint="`tokenloom run commit` writes one") from error
    if (commitment.format, commitment.version) != (FORMAT, VERSION):
        found = f"{commitment.format!r}, version {commitment.version}"
        message = f"`{path}`: expected {FORMAT!r}, version {VERSION}, found {found}"
        raise ConfigError(message)
    return commitment


def _denials_of(lock: RunLock, source: int | None) -> tuple[LockedDenial, ...]:
    return tuple(
        LockedDenial(start=denial.start, documents=((number, documents),))
        for denial in lock.denials
        for number, documents in denial.documents
        if number == source and documents
    )


def _reduced_pairs(pairs: Sequence[LockedPair]) -> tuple[LockedPair, ...]:
    return tuple(dataclasses.replace(pair, prefix=str(number), index_crc32=None) for number, pair in enumerate(pairs))


def _reduced_segment(segment: LockedSegment) -> LockedSegment:
    numbers = [source for source, _ in segment.weights]
    mixed_as = None if segment.mixed_as == segment.num_samples else segment.mixed_as
    weights = tuple(zip(numbers, ratio_of(segment), strict=True))
    return dataclasses.replace(segment, stage="", mixed_as=mixed_as, weights=weights)


def _canonical(members: object) -> bytes:
    return json.dumps(members, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
