"""Which tokens of a `.bin`/`.idx` pair are prompts and which are answers: `PREFIX.roles`, a file beside the pair.

Readers that do not know the file read the pair as before. FORMAT.md describes the bytes; this module is their owner.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError, DatasetNotFoundError, StorageError
from tokenloom.indexed.checksums import FileTally
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest.contents import FileChecksum
from tokenloom.kernels import RoleParts, Watch
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.copies import PendingObject, local_copy
from tokenloom.storage.local import ByteSource, map_file
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import exists, open_pending
from tokenloom.storage.sampling import sampled_hash_in, sampled_hash_of

MAGIC = b"TLROLES\x00"
VERSION = 1
_HEADER = struct.Struct("<8sIIQQ32s32s")
HEADER_BYTES = _HEADER.size  # 96
_UNKNOWN = bytes(32)


class PartKind(IntEnum):
    """What a part of a sequence is."""

    prompt = 0
    """System and user turns, tool results, and what the template puts around all turns."""
    answer = 1
    """What the assistant says, with the tokens that end its turn."""
    text = 2
    """Text that is no conversation."""


def roles_path(prefix: str) -> str:
    """Returns the path of the roles of a prefix."""
    return prefix + ".roles"


class SequenceRoles:
    """The parts of all sequences: where each ends, and of which kind it is. The parts of a sequence cover it.

    Safe from several threads; not picklable (owners open it again).

    Attributes:
        offsets: int64[num_sequences + 1]; sequence s has parts [offsets[s], offsets[s + 1]).
        stops: int32[num_parts], one past the last token of each part, from the start of its sequence.
        kinds: uint8[num_parts], see `PartKind`.
        tokenizer_sha256: hash of the tokenizer that made the tokens, in hex; None if it is not known.
        remote: the object that holds them, as it was when it was opened; None for local ones.
        parts: the same for the kernels.
    """

    def __init__(
        self,
        offsets: NDArray[np.int64],
        stops: NDArray[np.int32],
        kinds: NDArray[np.uint8],
        *,
        tokenizer_sha256: str | None = None,
        remote: RemoteFile | None = None,
    ) -> None:
        self.offsets = offsets
        self.stops = stops
        self.kinds = kinds
        self.tokenizer_sha256 = tokenizer_sha256
        self.remote = remote
        self.parts: RoleParts = RoleParts(offsets, stops, kinds)
        self._watch = Watch([offsets, stops, kinds])

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self.offsets) - 1

    def of(self, sequence: int) -> list[tuple[int, int, PartKind]]:
        """Returns the parts of a sequence: (start, stop, kind), in tokens from its start."""
        first, last = int(self.offsets[sequence]), int(self.offsets[sequence + 1])
        stops, kinds = self.stops[first:last].tolist(), self.kinds[first:last].tolist()
        self.check()
        return [(start, stop, PartKind(kind)) for start, stop, kind in zip([0, *stops], stops, kinds, strict=False)]

    def identity(self) -> str:
        """Returns a hash of pieces of the arrays, to tell these roles from others; reads a fixed number of bytes."""
        digest = hashlib.sha256()
        for array in (self.offsets, self.stops, self.kinds):
            digest.update(sampled_hash_in(array.view(np.uint8)).encode())
        self.check()
        return digest.hexdigest()

    def check(self) -> None:
        """Makes sure that what was read is what the file held when it was opened; costs nothing.

        Raises:
            ChangedFileError: it was truncated or overwritten meanwhile, or cannot be read any more.
        """
        self._watch.check()


def text_roles(num_sequences: int, lengths: NDArray[np.int32]) -> SequenceRoles:
    """Returns the roles of sequences that are plain text: one part each."""
    return SequenceRoles(
        np.arange(num_sequences + 1, dtype=np.int64),
        np.array(lengths, dtype=np.int32),
        np.full(num_sequences, PartKind.text, dtype=np.uint8),
    )


def has_roles(dataset: IndexedDataset) -> bool:
    """Whether there are roles beside a pair."""
    return exists(roles_path(dataset.path_prefix), settings=dataset.object_storage)


def read_roles(dataset: IndexedDataset, *, remote: RemoteFile | None = None) -> SequenceRoles:
    """Returns the roles beside a pair, as views of the mapped file, after checking in O(1) that they belong to it.

    Those in object storage are mapped from a local copy, as the index is.

    Args:
        dataset: the pair.
        remote: the object that holds them, where it was opened before; else what is there now.

    Raises:
        DatasetNotFoundError: there is no such file.
        DatasetFormatError: it is truncated, foreign, or was written for other data.
        StorageError: a store denies access, or does not answer.
    """
    path = roles_path(dataset.path_prefix)
    try:
        if dataset.is_remote and remote is None:
            remote = RemoteFile(path, dataset.object_storage)
        data = dataset.map_beside(path) if remote is None else map_file(local_copy(remote))
    except StorageError as error:
        if remote is not None or has_roles(dataset):
            raise
        message = f"no file `{path}`: nothing says which tokens of `{dataset.path_prefix}` are answers"
        raise DatasetNotFoundError(message, hint="tokenize conversations with `tokenloom preprocess-chat`") from error
    hint = "the file is truncated, or belongs to other data; tokenize the conversations again"
    if len(data) < HEADER_BYTES:
        message = f"`{path}`: expected a header of {HEADER_BYTES} bytes, found a file of {len(data)} bytes"
        raise DatasetFormatError(message, hint=hint)
    magic, version, _, num_sequences, num_parts, pair, tokenizer = _HEADER.unpack(data[:HEADER_BYTES].tobytes())
    if magic != MAGIC or version != VERSION:
        message = f"`{path}`: expected {MAGIC!r} and version {VERSION}, found {magic!r} and version {version}"
        raise DatasetFormatError(message, hint=hint)
    if num_sequences != len(dataset):
        message = f"`{path}`: expected the {len(dataset)} sequences of the pair, found {num_sequences}"
        raise DatasetFormatError(message, hint=hint)
    expected = HEADER_BYTES + 8 * (num_sequences + 1) + 5 * num_parts
    if len(data) != expected:
        message = f"`{path}`: {num_sequences} sequences and {num_parts} parts need {expected} bytes, found {len(data)}"
        raise DatasetFormatError(message, hint=hint)
    if pair != _pair_hash(dataset.index_source(), dataset.byte_source):
        message = f"`{path}` was written for another pair than the one that is there"
        raise DatasetFormatError(message, hint=hint)
    stops_at = HEADER_BYTES + 8 * (num_sequences + 1)
    kinds_at = stops_at + 4 * num_parts
    offsets: NDArray[np.int64] = data[HEADER_BYTES:stops_at].view(np.int64)
    if (int(offsets[0]), int(offsets[-1])) != (0, num_parts):
        message = f"`{path}`: expected parts from 0 to {num_parts}, found {offsets[0]} to {offsets[-1]}"
        raise DatasetFormatError(message, hint=hint)
    stops: NDArray[np.int32] = data[stops_at:kinds_at].view(np.int32)
    return SequenceRoles(
        offsets,
        stops,
        data[kinds_at:],
        tokenizer_sha256=None if tokenizer == _UNKNOWN else tokenizer.hex(),
        remote=remote,
    )


def role_problems(dataset: IndexedDataset) -> Iterator[str]:
    """Yields one sentence for each array of the roles beside a pair that is inconsistent; one pass over them."""
    roles = read_roles(dataset)
    path = roles_path(dataset.path_prefix)
    for problem in part_problems(dataset.sequence_lengths, roles.offsets, roles.stops, roles.kinds):
        yield f"`{path}`: {problem}"


def part_problems(
    lengths: NDArray[np.int32] | None, offsets: NDArray[np.int64], stops: NDArray[np.int32], kinds: NDArray[np.uint8]
) -> Iterator[str]:
    """Yields one phrase for each array that is not of parts that make up the sequences; one pass over them.

    Args:
        lengths: int32[num_sequences], tokens of each; None if they are not known.
        offsets, stops, kinds: see `SequenceRoles`.
    """
    counts = np.diff(offsets)
    if len(falling := np.flatnonzero(offsets[1:] < offsets[:-1])):  # differences may wrap around
        first = falling[0]
        yield f"expected offsets that do not fall, found sequence {first} with {counts[first]} parts"
        return
    num_sequences = len(counts) if lengths is None else len(lengths)
    if (len(counts), offsets[-1], offsets[-1]) != (num_sequences, len(stops), len(kinds)):
        found = f"{len(counts)} sequences, {len(stops)} stops and {len(kinds)} kinds"
        yield f"expected {num_sequences} sequences and {offsets[-1]} parts, found {found}"
        return
    held = counts > 0
    starts = np.concatenate([np.zeros(1, dtype=np.int32), stops])[: len(stops)]
    starts[offsets[:-1][held]] = 0
    if len(empty := np.flatnonzero(stops <= starts)):
        yield f"expected parts of at least one token, found {stops[empty[0]]} after {starts[empty[0]]}"
    ends = np.zeros(num_sequences, dtype=np.int64)
    ends[held] = stops[offsets[1:][held] - 1]
    if lengths is not None and len(uncovered := np.flatnonzero(ends != lengths)):
        first = uncovered[0]
        yield f"expected parts that cover the {lengths[first]} tokens of sequence {first}, found {ends[first]}"
    if len(strange := np.flatnonzero(kinds > max(PartKind))):
        yield f"expected kinds up to {max(PartKind)}, found {kinds[strange[0]]} for part {strange[0]}"


def _pair_hash(index: ByteSource, tokens: ByteSource) -> bytes:
    """Returns a hash of pieces of both files."""
    samples = [sampled_hash_of(source) for source in (index, tokens)]
    return hashlib.sha256(" ".join(samples).encode()).digest()


class RolesWriter:
    """Collects the parts of sequences, to be written once the pair is complete.

    Memory: 8 bytes per sequence, 5 per part.

    Args:
        prefix: prefix of the pair.
        tokenizer_sha256: hash of the tokenizer, in hex.
    """

    def __init__(self, prefix: str, *, tokenizer_sha256: str | None = None) -> None:
        self._prefix = prefix
        self._tokenizer = _UNKNOWN if tokenizer_sha256 is None else bytes.fromhex(tokenizer_sha256)
        self._counts: list[NDArray[np.int64]] = []
        self._stops: list[NDArray[np.int32]] = []
        self._kinds: list[NDArray[np.uint8]] = []

    def append(
        self,
        counts: NDArray[np.int64],
        stops: NDArray[np.int32],
        kinds: NDArray[np.uint8],
        *,
        lengths: NDArray[np.int32] | None = None,
    ) -> None:
        """Appends sequences.

        Args:
            counts: int64[num_sequences], parts of each.
            stops: int32[sum(counts)], see `SequenceRoles`.
            kinds: uint8[sum(counts)].
            lengths: int32[num_sequences], tokens of each, as the pair has them; None where the pair is checked later.

        Raises:
            DatasetFormatError: these are not the parts of such sequences.
        """
        first = sum(map(len, self._counts))
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])
        found = next(part_problems(lengths, offsets, stops, kinds), None)
        if found is not None:
            message = f"cannot write the roles of `{self._prefix}`, from sequence {first} on: {found}"
            raise DatasetFormatError(message)
        self._counts.append(counts)
        self._stops.append(stops)
        self._kinds.append(kinds)

    def write(
        self, num_sequences: int, tokens: ByteSource, index: ByteSource
    ) -> tuple[PendingFile | PendingObject, FileChecksum]:
        """Returns the file, written and without its name yet, and its checksum.

        Args:
            num_sequences: number of sequences of the pair.
            tokens: the bytes that its pointers lead into, complete.
            index: the bytes of its index, complete.

        Raises:
            DatasetFormatError: the parts are not those of as many sequences as the pair has.
            StorageError: writing failed.
        """
        counts = _joined(self._counts, np.int64)
        if len(counts) != num_sequences:
            message = f"`{self._prefix}`: expected the parts of {num_sequences} sequences, found those of {len(counts)}"
            raise DatasetFormatError(message)
        num_parts = int(counts.sum())
        pair = _pair_hash(index, tokens)
        header = _HEADER.pack(MAGIC, VERSION, 0, len(counts), num_parts, pair, self._tokenizer)
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])
        file, tally = open_pending(roles_path(self._prefix)), FileTally()
        try:
            parts: list[NDArray[Any]] = [*self._stops, *self._kinds]
            for part in (np.frombuffer(header, dtype=np.uint8), offsets, *parts):
                data = np.ascontiguousarray(part).data
                file.write(data)
                tally.add(data)
            file.sync()
        except BaseException:
            file.discard()
            raise
        return file, tally.checksum()


def _joined(arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype=dtype), *arrays])
