"""The facts of a run: sources with their pairs, and segments; and `run.lock`, their file.

Numbers of sources are places in `RunLock.sources` and never change: new sources are appended, old ones stay even if no
stage names them any more. Pairs of a source are appended too, and documents are numbered over its pairs in this order.
Local pairs below the folder of the file have relative names, so a run may be moved with its data.
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

VERSION = 1
"""Of the file."""

MEGATRON_ORDER = 0
"""`RunLock.order` of a run whose order is the reference's, which has no versions."""

MOST_SAMPLES = 1 << 60
"""Positions of a run; so many that no sum of theirs leaves 64 bits."""

BLOCK_DOCUMENTS = 256
"""Documents in a block, which is held out as a whole, and shuffled together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPair:
    """A pair as it was when it was locked.

    Attributes:
        prefix: its prefix; of local pairs relative to the working directory.
        num_documents: its sequences, each a document of the run.
        index_start_crc32: checksum of the start of the `.idx` file, see `manifests.index_start_crc32`.
        tokens_crc32, index_crc32, fingerprint: checksums of both files, and the tokenizer's fingerprint, from the
            manifest; None without one.
        held_blocks, held_documents: held-out blocks of `BLOCK_DOCUMENTS`, or single documents; one is 0.
        held_tokens: tokens of these.
        packs: (sequence length, packs in a pass), if windows are packs.
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
    """The pairs under one name, in the order in which they were added."""

    name: str
    pairs: tuple[LockedPair, ...]
    max_passes: int | None = None

    @property
    def num_documents(self) -> int:
        """Documents of all pairs."""
        return sum(pair.num_documents for pair in self.pairs)

    @property
    def num_tokens(self) -> int:
        """Tokens of all pairs."""
        return sum(pair.num_tokens for pair in self.pairs)

    def locate(self, documents: Sequence[int] | Int64s) -> tuple[Int64s, Int64s]:
        """Returns the pair of each document, and its row there: both int64[num_documents]."""
        asked = np.asarray(documents, dtype=np.int64)
        bounds = np.cumsum([0, *(pair.num_documents for pair in self.pairs)], dtype=np.int64)
        numbers: Int64s = np.searchsorted(bounds, asked, side="right") - 1
        return numbers, asked - bounds[numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSegment:
    """Positions with one mixture: a stage, or a part of one.

    Attributes:
        stage: name of the stage.
        start: its first position.
        num_samples: its positions; None for an endless one, which is the last.
        mixed_as: size of its mixture, larger than `num_samples` after a cut; None for the same.
        sequence_length: tokens in a sample.
        weights: (number of a source, weight above 0), by number.
        stretch_length: tokens of the stretches that its passes are cut into, if another length goes on with them.
        planned: positions that it was planned to have, which stretches go by; None for `num_samples`.
        exhausted: numbers of sources of its stage that had been read `max_passes` times; None for none.
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
        """One past its last position; None for an endless one."""
        return None if self.num_samples is None else self.start + self.num_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedDenial:
    """Documents that are padding from a position on: (source, numbers of its documents), rising."""

    start: int
    documents: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedTokenizer:
    """The tokenizer that `run.toml` names, with its fingerprint (see `TokenizerIdentity`); ids may be None."""

    name: str
    fingerprint: str
    eod: int | None
    pad: int | None
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLock:
    """All of a run but its tokens.

    Attributes:
        order: version of the order; `MEGATRON_ORDER` for the reference's.
        seed, documents, windows, mixing_block, dataset, samples: see `RunSettings`.
        segments: its segments, in the order of their positions, without gaps.
        denials: documents that are no longer read, by `start`.
        consumed: positions that training has read, which may not move.
        amended: first position of the latest amendment: positions before it stay, consumed or not, as long as
            `run.toml` agrees.
        cut_short: the source whose `max_passes` end the run before its stages end; None for none.
        settings_sha256, content_sha256: hashes of `run.toml`, and of its settings without comments and layout.
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
        """The order as `run.toml` has it: its version, or "megatron"."""
        return "megatron" if self.order == MEGATRON_ORDER else str(self.order)

    @property
    def num_samples(self) -> int | None:
        """Positions of the run; None if its last stage is endless."""
        return self.segments[-1].stop

    @property
    def end(self) -> int:
        """Positions of the run; `MOST_SAMPLES` if its last stage is endless."""
        return MOST_SAMPLES if self.num_samples is None else self.num_samples

    def ratio_of(self, segment: LockedSegment) -> list[tuple[str, int]]:
        """Returns the names of the sources of a segment, with weights as the smallest whole numbers of their ratio."""
        ratio = smallest_weights(weight for _, weight in segment.weights)
        return [(self.sources[source].name, share) for (source, _), share in zip(segment.weights, ratio, strict=True)]

    @property
    def early_end(self) -> str | None:
        """A warning that the run ends before its stages do, with the reason; None if it does not."""
        if self.cut_short is None:
            return None
        return (
            f"the run ends at position {self.num_samples}, before its stages do: source {self.cut_short!r} has been "
            "read `max_passes` times there; raise that, make the stages shorter, or set `on_exhausted` of the stage"
        )


_FIRST_LINE = re.compile(rb'\{"format": "tokenloom run lock", "version": (\d{1,9}), "sha256": "([0-9a-f]{64})",\r?\n')

_LOCK_AGAIN = "restore it, or remove it and run `tokenloom run lock` again, which does not know what was consumed"


def lock_path(run_path: str) -> str:
    """Returns the path of the lock of a run, from that of its `run.toml`."""
    folder, name = os.path.split(run_path)
    return os.path.join(folder, f"{os.path.splitext(name)[0]}.lock")


def write_lock(path: str, lock: RunLock) -> None:
    """Replaces a lock atomically."""
    data = lock_bytes(lock, path=path)
    with open_pending(path) as file:
        file.write(data)


def read_lock(path: str) -> RunLock:
    """Returns the lock of a path or address; a `ConfigError` if there is none."""
    if (lock := read_lock_if_there(path)) is None:
        raise ConfigError(f"no file `{path}`", hint="run `tokenloom run lock`")
    return lock


def read_lock_if_there(path: str) -> RunLock | None:
    """Returns the lock of a path or address, None if there is no file; an edited or newer one is a `ConfigError`."""
    recover(path)
    try:
        data = map_whole(path).data
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    return parse_lock(data, path=path)


def lock_bytes(lock: RunLock, *, path: str) -> bytes:
    """Returns the bytes of the file."""
    content = "\n".join(_lines(lock, path)).encode()
    digest = hashlib.sha256(content).hexdigest()
    first = json.dumps({"format": "tokenloom run lock", "version": VERSION, "sha256": digest})
    return f"{first[:-1]},\n".encode() + content


def parse_lock(data: bytes | memoryview, *, path: str) -> RunLock:
    """Returns the lock of the bytes of a file."""
    _check_whole(data, path)
    try:
        # no copy of the bytes, which would leave a hole in the memory of a run
        text = str(data, "utf-8")
        members: dict[str, Any] = parse_json(text, most_bytes=len(data), object_hook=_RowReader(path).read)
        head = {name: members[name] for name in _HEAD if name in members}
        rows = {name: tuple(members[name]) for name in ("sources", "segments", "denials")}
        tokenizer = None if head["tokenizer"] is None else LockedTokenizer(**head["tokenizer"])
        return RunLock(**{**head, **rows, "tokenizer": tokenizer})
    except (KeyError, TypeError, ValueError) as error:  # written by another program
        message = f"`{path}` is no lock of version {VERSION}: {type(error).__name__}: {error}"
        raise ConfigError(message, hint=_LOCK_AGAIN) from error


def _check_whole(data: bytes | memoryview, path: str) -> None:
    """Checks that bytes are a lock as it was written; nothing else is checked of them."""
    if (first := _FIRST_LINE.match(data)) is None:
        message = f"`{path}` is no lock of a run, or was edited: its first line has no checksum"
        raise ConfigError(message, hint=f"name the lock of a run; if it is one, {_LOCK_AGAIN}")
    if (version := int(first[1])) != VERSION:
        message = f"`{path}` is a lock of version {version}, which this tokenloom does not know"
        raise ConfigError(message, hint="use the newer tokenloom that wrote it")
    found, expected = hashlib.sha256(data[first.end() :]).hexdigest(), first[2].decode()
    if found != expected:
        is_merge = b"<<<<<<< " in bytes(data)
        how = "has two versions, left by a merge" if is_merge else "was edited by hand, or truncated"
        message = f"`{path}` {how}: expected sha256 {expected[:12]}…, found {found[:12]}…"
        raise ConfigError(message, hint=f"edit `run.toml` instead; {_LOCK_AGAIN}")


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
        yield from _separated([_json(_pair_members(pair, path)) for pair in source.pairs])
        yield "]}" if number == len(lock.sources) - 1 else "]},"
    yield '],\n"segments": ['
    yield from _separated([_json(members_of(segment)) for segment in lock.segments])
    yield '],\n"denials": ['
    yield from _separated([_json({"start": denial.start, "documents": denial.documents}) for denial in lock.denials])
    yield "]}\n"


_json = partial(json.dumps, allow_nan=False)


def _separated(rows: list[str]) -> list[str]:
    return [*(f"{row}," for row in rows[:-1]), *rows[-1:]]


_HEAD = (
    *("settings_sha256", "content_sha256", "order", "seed", "documents", "windows", "mixing_block", "dataset"),
    *("samples", "tokenizer", "consumed", "amended", "cut_short"),
)
"""Members of the file before its rows, in its order."""

_PAIR = {
    each.name: None if each.default is dataclasses.MISSING else each.default for each in dataclasses.fields(LockedPair)
}
_SETTERS = [(name, getattr(LockedPair, name).__set__) for name in _PAIR]
"""Setters of the slots of a pair, three times as fast as the constructor of a frozen dataclass."""


def _pair_members(pair: LockedPair, path: str) -> dict[str, Any]:
    """Returns the row of a pair, without members that have their default."""
    written = members_of(pair)
    members = {name: written[name] for name, default in _PAIR.items() if getattr(pair, name) != default}
    name, folder = relative_name(pair.prefix, owner=path), os.path.join(os.path.dirname(path), "")
    is_below = os.path.isabs(name) and pair.prefix.startswith(folder)  # `data` may lead above the folder
    return {**members, "prefix": pair.prefix.removeprefix(folder) if is_below else name}


class _RowReader:
    """Makes dataclasses of JSON objects while these are parsed: 40,000 sources at every start, by every process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = None if is_remote(path) else os.path.join(os.path.dirname(path), "")

    def read(self, members: dict[str, Any]) -> Any:
        """Returns the dataclass of an object; other objects as they are."""
        if "prefix" in members and "suffix" not in members:  # else tokens of fill in the middle
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
