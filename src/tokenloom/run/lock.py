"""What a start knows of a run: sources with their pairs, and segments; and `run.lock`, the file that holds them.

Numbers of sources are places in `RunLock.sources` and never change: new sources are appended, old ones stay even if no
stage names them any more. Pairs of a source are appended too. Numbers of documents count over its pairs in this order.
Local pairs below the folder of the file are named from there on, so that a run may be moved with its data.
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
"""Documents in a block: what a holdout takes as a whole, and what is shuffled together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPair:
    """A pair as it was when it was locked.

    Attributes:
        prefix: its prefix; of local pairs as it is to be opened from the working directory.
        num_documents: its sequences, each of which is a document here.
        index_start_crc32: checksum of the start of the `.idx` file, see `manifests.index_start_crc32`.
        tokens_crc32, index_crc32, fingerprint: checksums of both files, and the tokenizer's fingerprint, as the
            manifest has them; None without a manifest.
        held_blocks, held_documents: blocks of `BLOCK_DOCUMENTS`, or single documents, that are held out; one is 0.
        held_tokens: tokens of all that is held out.
        packs: (sequence length, packs in a pass), where a window is a pack.
        since: position from which on the source has this pair.
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
    """The pairs under one name, in the order in which they were added: first those that it began with."""

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
        """Returns the pair that each document lies in, and its row there: both int64[num_documents]."""
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
        num_samples: how many positions; None for an endless one, which is the last.
        mixed_as: size that its mixing blocks go by, at least `num_samples`, which a cut has left as it was; None if it
            is the same.
        sequence_length: tokens in a sample.
        weights: (number of a source, weight above 0), by number.
        stretch_length: tokens of the stretches that passes which begin here are cut into, since windows of another
            length are to go on with them; None where no other length follows.
        planned: positions that it was to have when it was begun, which stretches go by; None for `num_samples`.
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
    """Documents that are padding from a position on: of sources by number, numbers of their documents, rising."""

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
        consumed: positions that training is known to have read: what lies before it may not move.
        amended: where the latest amendment begins: what lies before it stays as it is, read or not, until `run.toml`
            says otherwise.
        cut_short: the source whose `max_passes` end the run before its stages end; None for none.
        settings_sha256, content_sha256: hashes of `run.toml`, and of what it says whatever its comments and layout.
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
        """Says that the run ends before its stages do, and why; None if it does not."""
        if self.cut_short is None:
            return None
        return (
            f"the run ends at position {self.num_samples}, before its stages do: source {self.cut_short!r} has been "
            "read `max_passes` times there; raise that, make the stages shorter, or set `on_exhausted` of the stage"
        )


_FIRST_LINE = re.compile(rb'\{"format": "tokenloom run lock", "version": (\d{1,9}), "sha256": "([0-9a-f]{64})",\r?\n')

_LOCK_AGAIN = (
    "restore the lock that was there, or remove it and run `tokenloom run lock` again, which knows nothing of what was "
    "trained on"
)


def lock_path(run_path: str) -> str:
    """Returns the path of the lock of a run, from that of its `run.toml`."""
    folder, name = os.path.split(run_path)
    return os.path.join(folder, f"{os.path.splitext(name)[0]}.lock")


def write_lock(path: str, lock: RunLock) -> None:
    """Writes a lock, which appears whole in place of the one that was there."""
    data = lock_bytes(lock, path=path)
    with open_pending(path) as file:
        file.write(data)


def read_lock(path: str) -> RunLock:
    """Returns the lock that a file holds, by its path or address; a `ConfigError` if there is none."""
    if (lock := read_lock_if_there(path)) is None:
        message = f"no file `{path}`, which says what the run reads"
        raise ConfigError(message, hint="run `tokenloom run lock`")
    return lock


def read_lock_if_there(path: str) -> RunLock | None:
    """Returns the lock that a file holds, None if there is no file; an edited or newer one is a `ConfigError`."""
    recover(path)
    try:
        data = map_whole(path).data
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    return parse_lock(data, path=path)


def lock_bytes(lock: RunLock, *, path: str) -> bytes:
    """Returns the file of a lock."""
    content = "\n".join(_lines(lock, path)).encode()
    digest = hashlib.sha256(content).hexdigest()
    first = json.dumps({"format": "tokenloom run lock", "version": VERSION, "sha256": digest})
    return f"{first[:-1]},\n".encode() + content


def parse_lock(data: bytes | memoryview, *, path: str) -> RunLock:
    """Returns the lock that some bytes hold."""
    _check_whole(data, path)
    try:
        # no copy of the bytes, which would leave a hole in the memory of a run
        text = str(data, "utf-8")
        members: dict[str, Any] = parse_json(text, most_bytes=len(data), object_hook=_RowReader(path).read)
        head = {name: members[name] for name in _HEAD if name in members}
        rows = {name: tuple(members[name]) for name in ("sources", "segments", "denials")}
        tokenizer = None if head["tokenizer"] is None else LockedTokenizer(**head["tokenizer"])
        return RunLock(**{**head, **rows, "tokenizer": tokenizer})
    except (KeyError, TypeError, ValueError) as error:  # a writer that is none of ours
        message = f"`{path}` does not hold what a lock of version {VERSION} does: {type(error).__name__}: {error}"
        raise ConfigError(message, hint=_LOCK_AGAIN) from error


def _check_whole(data: bytes | memoryview, path: str) -> None:
    """Checks that bytes are those of a lock as it was written, which is all that is checked of them."""
    if (first := _FIRST_LINE.match(data)) is None:
        message = f"`{path}` is no lock of a run, or was edited: expected its checksum in the first line, found none"
        raise ConfigError(message, hint=f"name the lock of a run; if it is one, {_LOCK_AGAIN}")
    if (version := int(first[1])) != VERSION:
        message = f"`{path}`: expected version {VERSION} of a lock, found {version}"
        raise ConfigError(message, hint="it was written by a newer tokenloom; use that")
    found, expected = hashlib.sha256(data[first.end() :]).hexdigest(), first[2].decode()
    if found == expected:
        return
    is_merge = b"<<<<<<< " in bytes(data)
    how = "holds two versions, as a merge has left them" if is_merge else "was edited by hand, or truncated"
    message = f"`{path}` {how}: expected content with sha256 {expected[:12]}…, as its first line says, found "
    raise ConfigError(message + f"{found[:12]}…", hint=f"what people change is `run.toml`; {_LOCK_AGAIN}")


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
"""What sets the slots of a pair: a third of what the constructor of a frozen dataclass takes."""


def _pair_members(pair: LockedPair, path: str) -> dict[str, Any]:
    """Returns what the row of a pair holds, which leaves out what is as it is by default."""
    written = members_of(pair)
    members = {name: written[name] for name, default in _PAIR.items() if getattr(pair, name) != default}
    name, folder = relative_name(pair.prefix, owner=path), os.path.join(os.path.dirname(path), "")
    is_below = os.path.isabs(name) and pair.prefix.startswith(folder)  # `data` may lead above the folder
    return {**members, "prefix": pair.prefix.removeprefix(folder) if is_below else name}


class _RowReader:
    """Makes dataclasses of objects of JSON as soon as these are read, so that few objects are there at a time.

    40,000 sources are read at every start, by every process: that the bytes are as they were written is checked, not
    each row.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = None if is_remote(path) else os.path.join(os.path.dirname(path), "")

    def read(self, members: dict[str, Any]) -> Any:
        """Returns what an object stands for; one that is no row, as it is."""
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
