"""The exact data and segments of a run, and their file `run.lock`.

New sources are appended to `RunLock.sources`, new pairs to their source. Nothing is removed, so no index changes.
Documents are numbered across all pairs of a source. In `run.lock`, paths of local pairs below the folder of the file
are relative to that folder, so a run can be moved together with its data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, StorageError
from tokenloom.kernels.mixture import smallest_weights
from tokenloom.storage.addresses import is_remote, path_of_name, relative_name
from tokenloom.storage.json_files import MAY_BE_MISSING, Crc32, members_of, parse_json
from tokenloom.storage.publishing import recover
from tokenloom.storage.resolve import is_missing, map_whole, open_pending
from tokenloom.storage.secrets import admit

Int64s = NDArray[np.int64]
Integers = Sequence[int] | NDArray[np.integer[Any]]
VERSION = 1  # version of the `run.lock` format
MEGATRON_ORDER = 0  # `RunLock.order` of a run in the reference's order, which has no versions
MOST_SAMPLES = 1 << 60  # maximum number of positions of a run; sums of a few such numbers fit into 64 bits
BLOCK_DOCUMENTS = 256  # documents per block. Whole blocks are held out; shuffling permutes blocks and their documents


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPair:
    """A pair as it was when the run was locked.

    Attributes:
        prefix: path prefix; relative to the working directory if local.
        num_documents: number of sequences, each a document of the run.
        index_start_crc32: checksum of the start of the `.idx` file; see `manifests.index_start_crc32`.
        tokens_crc32, index_crc32, fingerprint: checksums of both files and fingerprint of the tokenizer, from the
            manifest of the pair; None if unknown.
        held_blocks, held_documents: numbers of held-out blocks and of held-out single documents; one or both are 0.
        held_tokens: number of tokens in held-out documents.
        packs: (sequence length, number of packs per walk) for each sequence length; empty if samples are no packs.
        since: first position at which the source has this pair.
    """

    prefix: str
    num_documents: int
    num_tokens: int
    dtype: str
    idx_bytes: int
    index_start_crc32: Crc32
    tokens_crc32: Crc32 | None = field(default=None, metadata=MAY_BE_MISSING)
    index_crc32: Crc32 | None = field(default=None, metadata=MAY_BE_MISSING)
    fingerprint: str | None = field(default=None, metadata=MAY_BE_MISSING)
    held_blocks: int = field(default=0, metadata=MAY_BE_MISSING)
    held_documents: int = field(default=0, metadata=MAY_BE_MISSING)
    held_tokens: int = field(default=0, metadata=MAY_BE_MISSING)
    packs: tuple[tuple[int, int], ...] = field(default=(), metadata=MAY_BE_MISSING)
    since: int = field(default=0, metadata=MAY_BE_MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSource:
    """The pairs of one source in the order in which they were added."""

    name: str
    pairs: tuple[LockedPair, ...]
    max_passes: int | None = None

    @property
    def num_documents(self) -> int:
        return sum(pair.num_documents for pair in self.pairs)

    @property
    def num_tokens(self) -> int:
        return sum(pair.num_tokens for pair in self.pairs)

    def locate(self, documents: Sequence[int] | Int64s) -> tuple[Int64s, Int64s]:
        """Returns, for each document, the index of its pair and its row in this pair, both int64[num_documents]."""
        documents = np.asarray(documents, dtype=np.int64)
        bounds = np.cumsum([0, *(pair.num_documents for pair in self.pairs)], dtype=np.int64)
        numbers: Int64s = np.searchsorted(bounds, documents, side="right") - 1
        return numbers, documents - bounds[numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSegment:
    """Consecutive positions with one mixture: a stage or a part of a stage.

    Attributes:
        stage: name of the stage.
        start: first position.
        num_samples: number of positions; None if endless, which only the last segment may be.
        mixed_as: number of positions that the mixture was made for, if the segment was cut shorter later; else None.
        sequence_length: tokens per sample.
        weights: (index of the source, weight above 0) in ascending order of sources.
        stretch_length: tokens per stretch of a pass (see `PassPart`); None if no later segment of another
            sequence length continues the passes.
        planned: `num_samples` when the segment began, which decides the stretches; None if unchanged or no stretches.
        exhausted: indices of the stage's sources that reached `max_passes` earlier; None if no source has `max_passes`.
    """

    stage: str
    start: int
    num_samples: int | None
    mixed_as: int | None = None
    sequence_length: int
    weights: tuple[tuple[int, int], ...]
    stretch_length: int | None = field(default=None, metadata=MAY_BE_MISSING)
    planned: int | None = field(default=None, metadata=MAY_BE_MISSING)
    exhausted: tuple[int, ...] | None = field(default=None, metadata=MAY_BE_MISSING)

    @property
    def stop(self) -> int | None:
        return None if self.num_samples is None else self.start + self.num_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedDenial:
    """Documents that are padding from position `start` on: (index of the source, indices of documents), ascending."""

    start: int
    documents: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedTokenizer:
    """The tokenizer named in `run.toml`, with its fingerprint (see `TokenizerIdentity`)."""

    name: str
    fingerprint: str
    eod: int | None
    pad: int | None
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLock:
    """Everything that determines the samples of a run, except the tokens.

    Attributes:
        order: version of the order; `MEGATRON_ORDER` for the reference's order.
        seed, documents, windows, mixing_block, dataset, samples: see `RunSettings`.
        segments: segments in ascending order of positions, without gaps.
        denials: denied documents, ascending by `start`.
        consumed: number of positions that training has read; their samples must not change.
        amended: first position of the latest amendment; locking keeps earlier segments whose stage is in `run.toml`.
        cut_short: name of the source that ends the run early because it reaches `max_passes`; None if no source does.
        settings_sha256, content_sha256: hash of the bytes of `run.toml`; hash of the settings in it.
    """

    order: int
    seed: int
    documents: str
    windows: str
    mixing_block: int
    dataset: str
    samples: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: LockedTokenizer | None = None
    sources: tuple[LockedSource, ...]
    segments: tuple[LockedSegment, ...]
    denials: tuple[LockedDenial, ...] = ()
    consumed: int = 0
    amended: int = field(default=0, metadata=MAY_BE_MISSING)
    cut_short: str | None = field(default=None, metadata=MAY_BE_MISSING)
    settings_sha256: str
    content_sha256: str = ""

    @property
    def is_megatron(self) -> bool:
        """Whether the order is the reference's."""
        return self.order == MEGATRON_ORDER

    @property
    def order_name(self) -> str:
        """The order as written in `run.toml`: a version, or "megatron"."""
        return "megatron" if self.order == MEGATRON_ORDER else str(self.order)

    @property
    def num_samples(self) -> int | None:
        """Number of positions; None if the last stage is endless."""
        return self.segments[-1].stop

    @property
    def end(self) -> int:
        """Number of positions; `MOST_SAMPLES` if the last stage is endless."""
        return MOST_SAMPLES if self.num_samples is None else self.num_samples

    def ratio_of(self, segment: LockedSegment) -> list[tuple[str, int]]:
        """Returns (source name, weight) per source of a segment, in the smallest integers of the same ratio."""
        ratio = smallest_weights(weight for _, weight in segment.weights)
        return [(self.sources[source].name, share) for (source, _), share in zip(segment.weights, ratio, strict=True)]

    @property
    def early_end(self) -> str | None:
        """A warning if the run ends before its stages do; else None."""
        if self.cut_short is None:
            return None
        return (
            f"the run ends at position {self.num_samples}, before its stages do: source {self.cut_short!r} reaches "
            "`max_passes` there; raise `max_passes`, shorten the stages, or set `on_exhausted` of the stage"
        )


_FIRST_LINE = re.compile(rb'\{"format": "tokenloom run lock", "version": (\d{1,9}), "sha256": "([0-9a-f]{64})",\r?\n')
_LOCK_AGAIN = "restore the lock; or remove it and run `tokenloom run lock`, which forgets the consumed positions"


def lock_path(run_path: str) -> str:
    folder, name = os.path.split(run_path)
    return os.path.join(folder, f"{os.path.splitext(name)[0]}.lock")


def write_lock(path: str, lock: RunLock) -> None:
    """Writes a lock atomically; replaces an existing lock."""
    data = lock_bytes(lock, path=path)
    with open_pending(path) as file:
        file.write(data)


def read_lock(path: str) -> RunLock:
    """Reads the lock at a path or address; raises `ConfigError` if the lock is missing."""
    if (lock := read_lock_if_there(path)) is None:
        raise ConfigError(f"no lock `{path}`", hint="create it with `tokenloom run lock`")
    return lock


def read_lock_if_there(path: str) -> RunLock | None:
    """Reads the lock at a path or address; returns None if the file does not exist.

    Raises:
        ConfigError: the lock was edited or truncated, or a newer version of tokenloom wrote it.
    """
    recover(path)
    try:
        data = map_whole(path).data
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    return parse_lock(data, path=path)


def lock_bytes(lock: RunLock, *, path: str) -> bytes:
    content = "\n".join(_lines(lock, path)).encode()
    digest = hashlib.sha256(content).hexdigest()
    first = json.dumps({"format": "tokenloom run lock", "version": VERSION, "sha256": digest})
    return f"{first[:-1]},\n".encode() + content


def parse_lock(data: bytes | memoryview, *, path: str) -> RunLock:
    _check_whole(data, path)
    try:
        # decodes without a copy of `data`: the system would never get back the memory of a copy
        text = str(data, "utf-8")
        members: dict[str, Any] = parse_json(text, most_bytes=len(data), object_hook=_RowReader(path).read)
        head = {name: members[name] for name in _HEAD if name in members}
        rows = {name: tuple(members[name]) for name in ("sources", "segments", "denials")}
        tokenizer = None if head["tokenizer"] is None else LockedTokenizer(**head["tokenizer"])
        return RunLock(**{**head, **rows, "tokenizer": tokenizer})
    except (KeyError, TypeError, ValueError) as error:  # written by another program
        message = f"`{path}` is not a valid lock of version {VERSION}: {type(error).__name__}: {error}"
        raise ConfigError(message, hint=_LOCK_AGAIN) from error


def _check_whole(data: bytes | memoryview, path: str) -> None:
    """Raises an error unless the checksum in the first line matches the other lines; validates nothing else."""
    if (first := _FIRST_LINE.match(data)) is None:
        message = f"`{path}` is not the lock of a run, or was edited: its first line has no checksum"
        raise ConfigError(message, hint=f"pass the lock of a run; if this is one, {_LOCK_AGAIN}")
    if (version := int(first[1])) != VERSION:
        message = f"`{path}` has format version {version}; this tokenloom reads version {VERSION}"
        raise ConfigError(message, hint="upgrade tokenloom to the version that wrote the lock")
    found, expected = hashlib.sha256(data[first.end() :]).hexdigest(), first[2].decode()
    if found != expected:
        is_merge = b"<<<<<<< " in bytes(data)
        how = "has merge conflicts" if is_merge else "was edited or truncated"
        message = f"`{path}` {how}: expected sha256 {expected[:12]}…, found {found[:12]}…"
        raise ConfigError(message, hint=f"edit only `run.toml`; {_LOCK_AGAIN}")


def _lines(lock: RunLock, path: str) -> Iterator[str]:
    for name in _HEAD:
        value = getattr(lock, name)
        if isinstance(value, LockedTokenizer):
            value = {**members_of(value), "name": admit(value.name)}
        if value or name not in ("amended", "cut_short"):
            yield f"{_json(name)}: {_json(dict(value) if isinstance(value, Mapping) else value)},"
    yield '"sources": ['
    for number, source in enumerate(lock.sources):
        yield f'{{"name": {_json(source.name)}, "max_passes": {_json(source.max_passes)}, "pairs": ['
        yield from _rows([_pair_members(pair, path) for pair in source.pairs])
        yield "]}" if number == len(lock.sources) - 1 else "]},"
    yield '],\n"segments": ['
    yield from _rows([members_of(segment) for segment in lock.segments])
    yield '],\n"denials": ['
    yield from _rows([members_of(denial) for denial in lock.denials])
    yield "]}\n"


_json = partial(json.dumps, allow_nan=False)


def _rows(rows: list[Any]) -> list[str]:
    return [",\n".join(map(_json, rows))] if rows else []


_HEAD = (
    *("settings_sha256", "content_sha256", "order", "seed", "documents", "windows", "mixing_block", "dataset"),
    *("samples", "tokenizer", "consumed", "amended", "cut_short"),
)
"""Members of `RunLock` written before sources, segments and denials, in the order of the file."""

_PAIR = {
    each.name: None if each.default is dataclasses.MISSING else each.default for each in dataclasses.fields(LockedPair)
}
_SETTERS = [(name, getattr(LockedPair, name).__set__) for name in _PAIR]
"""Slot setters of `LockedPair`: three times as fast as the constructor of a frozen dataclass."""


def _pair_members(pair: LockedPair, path: str) -> dict[str, Any]:
    written = members_of(pair)
    members = {name: written[name] for name, default in _PAIR.items() if getattr(pair, name) != default}
    name, folder = relative_name(pair.prefix, owner=path), os.path.join(os.path.dirname(path), "")
    is_below = os.path.isabs(name) and pair.prefix.startswith(folder)  # `data` may point above the folder
    return {**members, "prefix": pair.prefix.removeprefix(folder) if is_below else name}


class _RowReader:
    """Converts JSON objects to dataclasses while `json` parses them: a lock may have 40,000 sources."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = None if is_remote(path) else os.path.join(os.path.dirname(path), "")

    def read(self, members: dict[str, Any]) -> Any:
        """Converts a JSON object to its dataclass; returns objects without a dataclass unchanged."""
        if "prefix" in members and "suffix" not in members:  # with "suffix": fill-in-the-middle tokens
            return self._pair(members)
        if "pairs" in members:
            return LockedSource(**{**members, "pairs": tuple(members["pairs"])})
        if "stage" in members:
            exhausted = tuple(members["exhausted"]) if "exhausted" in members else None
            weights = tuple(map(tuple, members["weights"]))
            return LockedSegment(**{**members, "weights": weights, "exhausted": exhausted})
        if "start" in members:
            documents = tuple((source, tuple(chosen)) for source, chosen in members["documents"])
            return LockedDenial(start=members["start"], documents=documents)
        return members

    def _pair(self, members: dict[str, Any]) -> LockedPair:
        row, prefix = _PAIR | members, members["prefix"]
        if self._folder is None or is_remote(prefix):
            row["prefix"] = path_of_name(prefix, owner=self._path)
        elif not prefix.startswith("/"):
            row["prefix"] = self._folder + prefix
        row["dtype"] = sys.intern(members["dtype"])
        for name in ("index_start_crc32", "tokens_crc32", "index_crc32"):
            if (text := row[name]) is not None:
                row[name] = int(text, 16)
        if "fingerprint" in members:
            row["fingerprint"] = sys.intern(members["fingerprint"])
        if "packs" in members:
            row["packs"] = tuple(map(tuple, members["packs"]))
        pair = object.__new__(LockedPair)
        for name, set_slot in _SETTERS:
            set_slot(pair, row[name])
        return pair
