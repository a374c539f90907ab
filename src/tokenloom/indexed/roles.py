"""Which tokens of a `.bin`/`.idx` pair are prompts and which are answers: `PREFIX.roles`, a file beside the pair.

FORMAT.md describes the columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError, DatasetNotFoundError, StorageError
from tokenloom.indexed.checksums import start_crc32_of
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import sidecar_path
from tokenloom.indexed.sidecars import Written, open_sidecar, write_sidecar
from tokenloom.kernels import RoleParts, Watch
from tokenloom.storage.json_files import UnusableJsonError, from_members, members_of
from tokenloom.storage.local import ByteSource, map_file, sampled_hash
from tokenloom.storage.objects import RemoteFile, local_copy
from tokenloom.storage.resolve import exists


class PartKind(IntEnum):
    """What a part of a sequence is."""

    prompt = 0
    """System and user turns, tool results, and what the template puts around all turns."""
    answer = 1
    """What the assistant says, with the tokens that end its turn."""
    text = 2
    """Text that is no conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """What the table of the file says.

    Attributes:
        pair: SHA-256 over the hashes of pieces of `.idx` and `.bin`, in hex.
        tokenizer: SHA-256 of its `tokenizer.json`, in hex; None where it is not known.
    """

    pair: str
    tokenizer: str | None


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
            digest.update(sampled_hash(array.view(np.uint8)).encode())
        self.check()
        return digest.hexdigest()

    def check(self) -> None:
        """Makes sure that what was read is what the file held when it was opened; costs nothing."""
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
    return exists(sidecar_path(dataset.path_prefix, "roles"), settings=dataset.object_storage)


def read_roles(dataset: IndexedDataset, *, remote: RemoteFile | None = None) -> SequenceRoles:
    """Returns the roles beside a pair, as views of the mapped file, after checking in O(1) that they belong to it.

    Those in object storage are mapped from a local copy, as the index is.

    Args:
        dataset: the pair.
        remote: the object that holds them, where it was opened before; else what is there now.
    """
    path = sidecar_path(dataset.path_prefix, "roles")
    try:
        if dataset.is_remote and remote is None:
            remote = RemoteFile(path, dataset.object_storage)
        data = dataset.map_beside(path) if remote is None else map_file(local_copy(remote))
    except StorageError as error:
        if remote is not None or has_roles(dataset):
            raise
        message = f"no file `{path}`: nothing says which tokens of `{dataset.path_prefix}` are answers"
        raise DatasetNotFoundError(message, hint="tokenize conversations with `tokenloom preprocess-chat`") from error
    found = open_sidecar(dataset, "roles", data)
    try:
        table = from_members(_Table, found.table)
    except UnusableJsonError as error:
        raise found.damaged(expected="a table of pair and tokenizer", found=str(error).removeprefix(": ")) from error
    if table.pair != _pair_hash(dataset.index_source(), dataset.byte_source):
        message = f"`{path}` was written for another pair than the one that is there"
        raise DatasetFormatError(message, hint="tokenize the conversations again")
    stops_at = 8 * (found.num_rows + 1)
    kinds_at = stops_at + 4 * found.count
    offsets: NDArray[np.int64] = found.data[:stops_at].view(np.int64)
    if (int(offsets[0]), int(offsets[-1])) != (0, found.count):
        raise found.damaged(expected=f"parts from 0 to {found.count}", found=f"{offsets[0]} to {offsets[-1]}")
    stops: NDArray[np.int32] = found.data[stops_at:kinds_at].view(np.int32)
    kinds = found.data[kinds_at:]
    return SequenceRoles(offsets, stops, kinds, tokenizer_sha256=table.tokenizer, remote=remote)


def role_problems(dataset: IndexedDataset) -> Iterator[str]:
    """Yields one sentence for each array of the roles beside a pair that is inconsistent; one pass over them."""
    roles = read_roles(dataset)
    path = sidecar_path(dataset.path_prefix, "roles")
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


def _pair_hash(index: ByteSource, tokens: ByteSource) -> str:
    """Returns a hash of pieces of both files."""
    samples = [sampled_hash(source) for source in (index, tokens)]
    return hashlib.sha256(" ".join(samples).encode()).hexdigest()


class RolesWriter:
    """Collects the parts of sequences, to be written once the pair is complete.

    Memory: 8 bytes per sequence, 5 per part.
    """

    def __init__(self, prefix: str, *, tokenizer_sha256: str | None = None) -> None:
        self._prefix = prefix
        self.tokenizer_sha256 = tokenizer_sha256
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

    def write(self, num_sequences: int, tokens: ByteSource, index: ByteSource, *, durable: bool = True) -> Written:
        """Returns the file, written and without its name yet, and its checksum."""
        counts = np.concatenate([np.empty(0, dtype=np.int64), *self._counts])
        if len(counts) != num_sequences:
            message = f"`{self._prefix}`: expected the parts of {num_sequences} sequences, found those of {len(counts)}"
            raise DatasetFormatError(message)
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])
        columns: list[NDArray[Any]] = [offsets, *self._stops, *self._kinds]
        table = members_of(_Table(pair=_pair_hash(index, tokens), tokenizer=self.tokenizer_sha256))
        return write_sidecar(
            self._prefix,
            "roles",
            columns,
            lambda _: (num_sequences, int(offsets[-1]), table),
            index_start_crc32=start_crc32_of(index),
            durable=durable,
        )
