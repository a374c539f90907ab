"""Proofs that a document was read, or was not read, at positions of a run: for people who have the root, and no data.

A proof holds the lock as far as it decides one source, the roots of that source's pairs, the tokens of each block of
the document's pair, and of the document's block the lengths and a path to the hash of its tokens. `proof_check.py` says
what follows from these.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.progress import also_told, task
from tokenloom.run.audit.commitment import (
    NUM_THREADS,
    Commitment,
    hash_locked_pair,
    reduced,
    root_of_run,
    source_hashes,
)
from tokenloom.run.audit.committed_data import (
    PairRoots,
    document_digest,
    hash_documents,
    hash_of_block,
    lengths_of_block,
    read_tree,
    write_tree,
)
from tokenloom.run.audit.document_reading import MOST_DOCUMENTS, check_readable, own_pair, reading_of
from tokenloom.run.audit.merkle import path_to, root_of
from tokenloom.run.check import check_opened
from tokenloom.run.digest import check_position
from tokenloom.run.lock import BLOCK_DOCUMENTS, RunLock
from tokenloom.run.lock_file import lock_of, members_of_lock
from tokenloom.run.lock_rows import RowReader
from tokenloom.storage.json_files import MOST_BYTES, UnusableJsonError, parse_json
from tokenloom.storage.typed_json import MAY_BE_MISSING, from_members, members_of

FORMAT, VERSION = "tokenloom run proof", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a proof is of.

    Attributes:
        source: name of a source.
        document: number of a document in it.
        begin, end: positions [begin, end) of the run.
        read: those of them at which the document is read, rising.
        denied: those at which it would be, but is denied.
    """

    source: str
    document: int
    begin: int
    end: int
    read: tuple[int, ...]
    denied: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBlock:
    """What a proof tells of the pair of a document.

    Attributes:
        sums: tokens that are read of each of its blocks.
        lengths: of the documents of the document's own block.
        sha256: of the document's tokens, see `document_digest`.
        document_path: from the document up to the root over those of its block.
        block_path: from the block up to the root over those of the pair.
    """

    sums: tuple[int, ...]
    lengths: tuple[int, ...]
    sha256: str
    document_path: tuple[str, ...]
    block_path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A proof, see above.

    Attributes:
        claim: what it is of.
        lock: the lock as far as it decides the source, see `reduced`.
        roots: of each pair of the source.
        source_path: from the source up to the root over the sources.
        block: what is told of the document's pair.
        tokens: those of the document; None if they are not told.
    """

    claim: Claim
    lock: RunLock
    roots: tuple[PairRoots, ...]
    source_path: tuple[str, ...]
    block: KnownBlock
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Members:
    """Members of a proof but the lock."""

    format: str
    version: int
    claim: Claim
    roots: tuple[PairRoots, ...]
    source_path: tuple[str, ...]
    block: KnownBlock
    tokens: tuple[int, ...] | None = field(default=None, metadata=MAY_BE_MISSING)


def prove(
    lock: RunLock,
    commitment: Commitment,
    *,
    source: str,
    document: int,
    begin: int,
    end: int,
    with_tokens: bool = False,
    tree_file: str | None = None,
    progress: Callable[[int], None] | None = None,
    num_threads: int = NUM_THREADS,
) -> Proof:
    """Returns a proof of where a document is read at positions [begin, end); reads the pair that it lies in.

    Args:
        lock: the run.
        commitment: the commitment to it.
        source: name of the source.
        document: number of the document in it.
        begin, end: the positions.
        with_tokens: whether to tell the tokens of the document.
        tree_file: path of a file that keeps the hashes of the pair, and is written if it is not there; with it, only
            the block of the document is read the next time.
        progress: called with the bytes read since the last call, by several threads.
        num_threads: threads that hash at the same time.

    Raises:
        ConfigError: there is no such document or position, the commitment is to another state of the run, or where a
            document is read depends on more than such a proof can tell.
        DatasetFormatError, DatasetNotFoundError, StorageError: the pair is not what was committed to, or not there.
    """
    check_readable(lock)
    check_position(lock, end)
    if not 0 <= begin < end:
        message = f"expected a range of positions, found [{begin}, {end})"
        raise ConfigError(message)
    names = [each.name for each in lock.sources]
    if source not in names:
        message = f"expected a source of this run, found {source!r}"
        raise ConfigError(message, hint=f"it has {', '.join(names[:20])}")
    number = names.index(source)
    owner, own = own_pair(lock.sources[number], document)
    _check_committed(lock, commitment)
    locked = lock.sources[number].pairs[owner]
    if locked.num_documents > MOST_DOCUMENTS:
        message = f"`{locked.prefix}`: expected at most {MOST_DOCUMENTS} documents, found {locked.num_documents}"
        raise ConfigError(message, hint="proofs about larger pairs take too much memory to check")
    roots = tuple(pair.roots for pair in commitment.pairs if pair.source == source)
    hashed = None if tree_file is None else read_tree(tree_file)
    if hashed is None:
        with task("hashing", unit="bytes", total=locked.num_token_bytes) as advance:
            hashed = hash_locked_pair(
                lock, number, owner, progress=also_told(advance, progress), num_threads=num_threads
            )
        _check_same(hashed.roots, roots[owner], locked.prefix)
        if tree_file is not None:
            write_tree(tree_file, hashed)
    elif hashed.roots != roots[owner]:
        message = f"`{tree_file}`: expected the hashes of `{locked.prefix}`, as it was committed to, found others"
        raise ConfigError(message, hint="remove it, or name another file")
    pair, block = IndexedDataset(locked.prefix), own // BLOCK_DOCUMENTS
    check_opened(pair, locked)
    tokens, documents = pair.get(own), hash_documents(pair, block)
    lengths = lengths_of_block(pair.sequence_lengths, block)
    _check_same(hash_of_block(block, lengths, root_of(documents)), hashed.blocks[block], locked.prefix)
    reading = reading_of(lock, number, document, pair.sequence_lengths, start=begin, stop=end)
    return Proof(
        claim=Claim(source=source, document=document, begin=begin, end=end, read=reading.read, denied=reading.denied),
        lock=reduced(lock, number),
        roots=roots,
        source_path=_hex(path_to(source_hashes(lock, commitment), number)),
        block=KnownBlock(
            sums=tuple(hashed.sums.tolist()),
            lengths=tuple(lengths.tolist()),
            sha256=document_digest(tokens).hex(),
            document_path=_hex(path_to(documents, own % BLOCK_DOCUMENTS)),
            block_path=_hex(path_to(hashed.blocks, block)),
        ),
        tokens=tuple(tokens.tolist()) if with_tokens else None,
    )


def proof_bytes(proof: Proof) -> bytes:
    """Returns the file of a proof: JSON with a line per member."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in _members(proof).items()
    )
    return ("{" + ",\n".join(lines) + "}\n").encode()


def parse_proof(data: bytes, *, path: str) -> Proof:
    """Returns the proof that a file holds; nothing of it is checked but its form.

    Args:
        data: the whole file.
        path: where it is, for messages.

    Raises:
        ConfigError: it is none, or says more than a proof does.
    """
    try:
        return _parsed(data)
    except UnusableJsonError as error:
        message = f"`{path}`{error}" if str(error).startswith((":", " in ")) else f"`{path}`: {error}"
        raise ConfigError(message, hint="`tokenloom prove` writes proofs") from error


def read_proof(path: str) -> Proof:
    """Returns the proof that a local file holds, see `parse_proof`.

    Raises:
        ConfigError: there is none, it is none, or it is larger than any.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        message = f"cannot read `{path}`: {error.strerror}"
        raise ConfigError(message) from error
    return parse_proof(data, path=path)


def _parsed(data: bytes) -> Proof:
    members = parse_json(data, object_hook=RowReader("").read)
    if type(members) is not dict or members.get("format") != FORMAT or type(members.get("lock")) is not dict:
        message = f": expected an object whose `format` is {FORMAT!r}, with a lock, found something else"
        raise UnusableJsonError(message)
    rest = from_members(_Members, members)
    if rest.version != VERSION:
        message = f": expected version {VERSION} of a proof, found {rest.version}"
        raise UnusableJsonError(message)
    proof = Proof(
        claim=rest.claim,
        lock=lock_of(members["lock"]),
        roots=rest.roots,
        source_path=rest.source_path,
        block=rest.block,
        tokens=rest.tokens,
    )
    try:
        is_all = _members(proof) == parse_json(data)
    except ValueError as error:  # numbers that JSON does not have
        raise UnusableJsonError(f": {error}") from error  # noqa: EM102 - no literal
    if not is_all:
        message = ": expected what a proof has and nothing else, found other members"
        raise UnusableJsonError(message)
    return proof


def _check_committed(lock: RunLock, commitment: Commitment) -> None:
    if root_of_run(lock, commitment) != commitment.root:
        message = f"expected the commitment to this run, found {commitment.root[:16]}…, to another state of it"
        hint = "commit again after the run has changed, or name the lock that was committed to"
        raise ConfigError(message, hint=hint)


def _check_same(found: object, expected: object, prefix: str) -> None:
    if found != expected:
        message = f"`{prefix}`: expected the tokens that were committed to, found others"
        raise DatasetFormatError(message, hint="restore the data; a proof about others is none about what was read")


def _hex(hashes: list[bytes]) -> tuple[str, ...]:
    return tuple(each.hex() for each in hashes)


def _members(proof: Proof) -> dict[str, Any]:
    members = _Members(
        format=FORMAT,
        version=VERSION,
        claim=proof.claim,
        roots=proof.roots,
        source_path=proof.source_path,
        block=proof.block,
        tokens=proof.tokens,
    )
    return {**members_of(members), "lock": members_of_lock(proof.lock, path="")}
