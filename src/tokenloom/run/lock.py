"""What a start knows of a run: sources with their pairs, and segments; and `run.lock`, the file that holds them.

All that decides which tokens stand at which position is in here, and all that tells changed data from those that were
locked; a start reads nothing else.

Numbers of sources are places in `RunLock.sources` and never change: new sources are appended, old ones stay even if no
stage names them any more. Pairs of a source are appended too. Numbers of documents count over its pairs in this order.

The file is JSON with a line for each pair, segment and denial, so that a diff shows what changed. Its first line has a
checksum of all that follows, which tells what was edited by hand or lost on the way. Local pairs below its folder are
named from there on, so that a run may be moved with its data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import operator
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np

from tokenloom.errors import ConfigError, StorageError
from tokenloom.indexed.layout import DType
from tokenloom.run.sample_settings import KINDS
from tokenloom.storage.addresses import can_be_path, is_remote, path_of_name, relative_name
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.publishing import recover
from tokenloom.storage.resolve import is_missing, map_whole, open_pending
from tokenloom.storage.secrets import admit
from tokenloom.storage.typed_json import MAY_BE_MISSING, Crc32, from_members, members_of

VERSION = 1
"""Of the file."""

MEGATRON_ORDER = 0
"""`RunLock.order` of a run whose order is the reference's, which has no versions."""

BLOCK_DOCUMENTS = 256
"""Documents in a block: what a holdout takes as a whole, and what is shuffled together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPair:
    """A pair as it was when it was locked.

    Attributes:
        prefix: its prefix; of local pairs as it is to be opened from the working directory.
        num_documents: its sequences, each of which is a document here.
        num_tokens: tokens of all.
        dtype: name of the dtype of the tokens.
        idx_bytes: size of the `.idx` file.
        index_start_crc32: checksum of the start of the `.idx` file, see `manifest.contents.index_start_crc32`.
        tokens_crc32: checksum of the `.bin` file; None if there is no manifest that tells it.
        index_crc32: checksum of the `.idx` file; likewise.
        fingerprint: fingerprint of the tokenizer; likewise.
        held_blocks: blocks of `BLOCK_DOCUMENTS` documents that are held out.
        held_documents: single documents that are held out; this or `held_blocks` is 0.
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

    @property
    def num_token_bytes(self) -> int:
        """Size of its tokens in bytes."""
        return self.num_tokens * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSource:
    """The pairs under one name, in the order in which they were added.

    Attributes:
        name: its name in `run.toml`.
        pairs: its pairs; the first have `since` 0, or the position from which on there is such a source.
        max_passes: most walks through it; None for any number.
    """

    name: str
    pairs: tuple[LockedPair, ...]
    max_passes: int | None = None


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
    """

    stage: str
    start: int
    num_samples: int | None
    mixed_as: int | None = None
    sequence_length: int
    weights: tuple[tuple[int, int], ...]

    @property
    def stop(self) -> int | None:
        """One past its last position; None for an endless one."""
        return None if self.num_samples is None else self.start + self.num_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedDenial:
    """Documents that are padding from a position on.

    Attributes:
        start: the first position at which they are.
        documents: (number of a source, numbers of its documents, rising), by number.
    """

    start: int
    documents: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedTokenizer:
    """The tokenizer that `run.toml` names.

    Attributes:
        name: as it stands there.
        fingerprint: tells it from others, see `TokenizerIdentity`.
        eod, pad: ids of the end of a document and of padding; None if it has none.
        vocab_size: number of its ids.
    """

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
        seed: seed of the order.
        documents, windows: how documents become windows: "shuffled" or "file", "concat" or "best_fit".
        mixing_block: positions that are permuted among themselves; 1 for none.
        dataset: kind of the samples: "gpt", "fim", "sft" or "varlen".
        samples: settings of the dataset, by name.
        tokenizer: the tokenizer of the run; None if it names none.
        sources: its sources, by number.
        segments: its segments, in the order of their positions, without gaps.
        denials: documents that are no longer read, by `start`.
        consumed: positions that training is known to have read: what lies before it may not move.
        amended: where the latest amendment begins: what lies before it stays as it is, read or not, until `run.toml`
            says otherwise.
        cut_short: the source whose `max_passes` end the run before its stages end; None for none.
        settings_sha256: hash of the `run.toml` that this was made from.
        content_sha256: hash of what that says, which comments and layout do not change.
        version: version of the file.
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
    version: int = VERSION

    @property
    def is_megatron(self) -> bool:
        """Whether the order is the reference's."""
        return self.order == MEGATRON_ORDER

    @property
    def num_samples(self) -> int | None:
        """Positions of the run; None if its last stage is endless."""
        return self.segments[-1].stop

    @property
    def early_end(self) -> str | None:
        """Says that the run ends before its stages do, and why; None if it does not."""
        if self.cut_short is None:
            return None
        return (
            f"the run ends at position {self.num_samples}, before its stages do: source {self.cut_short!r} has been "
            "read `max_passes` times there; raise that, make the stages shorter, or set `on_exhausted` of the stage"
        )


FORMAT = "tokenloom run lock"

_FIRST_LINE = re.compile(rb'\{"format": "tokenloom run lock", "version": (\d{1,9}), "sha256": "([0-9a-f]{64})",\r?\n')

_MOST_BYTES = 1 << 29
"""More is refused: room for more than a million pairs."""

_LOCK_AGAIN = (
    "restore the lock that was there, or remove it and run `tokenloom run lock` again, which knows nothing of what was "
    "trained on"
)


def lock_path(run_path: str) -> str:
    """Returns the path of the lock of a run, from that of its `run.toml`."""
    folder, name = os.path.split(run_path)
    return os.path.join(folder, f"{os.path.splitext(name)[0]}.lock")


def write_lock(path: str, lock: RunLock) -> None:
    """Writes a lock, which appears whole in place of the one that was there.

    Args:
        path: path or address of the file.
        lock: the lock.

    Raises:
        ConfigError: a lock in object storage would name local pairs.
        StorageError: it cannot be written.
    """
    data = lock_bytes(lock, path=path)
    with open_pending(path) as file:
        file.write(data)


def read_lock(path: str) -> RunLock:
    """Returns the lock that a file holds.

    Args:
        path: path or address of the file.

    Raises:
        ConfigError: there is none; or it was edited, truncated, is foreign, or was written by something newer.
        StorageError: it cannot be read.
    """
    if (lock := read_lock_if_there(path)) is None:
        message = f"no file `{path}`, which says what the run reads"
        raise ConfigError(message, hint="run `tokenloom run lock`")
    return lock


def read_lock_if_there(path: str) -> RunLock | None:
    """Returns the same, None if there is no file.

    Raises:
        ConfigError, StorageError: as `read_lock`.
    """
    recover(path)
    try:
        data = map_whole(path).data
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    if len(data) > _MOST_BYTES:
        message = f"`{path}`: expected a lock of at most {_MOST_BYTES} bytes, found {len(data)}"
        raise ConfigError(message, hint="make catalogues of so many pairs, and name these")
    return parse_lock(data, path=path)


def lock_bytes(lock: RunLock, *, path: str) -> bytes:
    """Returns the file of a lock.

    Args:
        lock: the lock.
        path: where the file will be, from which pairs are named.

    Raises:
        ConfigError: a lock in object storage would name local pairs.
    """
    content = "\n".join(_lines(lock, path)).encode()
    digest = hashlib.sha256(content).hexdigest()
    first = json.dumps({"format": FORMAT, "version": lock.version, "sha256": digest})
    return f"{first[:-1]},\n".encode() + content


def parse_lock(data: bytes | memoryview, *, path: str) -> RunLock:
    """Returns the lock that some bytes hold.

    Args:
        data: the whole file.
        path: where it is, for the names of pairs, and for messages.

    Raises:
        ConfigError: see `read_lock`.
    """
    _check_whole(data, path)
    try:
        return _lock_of(parse_json(_text_of(data), most_bytes=_MOST_BYTES, object_hook=_RowReader(path).read))
    except UnusableJsonError as error:
        message = f"`{path}`{error}"
        raise ConfigError(message, hint=_LOCK_AGAIN) from error


def _check_whole(data: bytes | memoryview, path: str) -> None:
    """Checks that bytes are those of a lock as it was written."""
    if (first := _FIRST_LINE.match(data)) is None:
        raise _foreign(bytes(data), path)
    if int(first[1]) != VERSION:
        raise _newer(int(first[1]), path)
    found, expected = hashlib.sha256(data[first.end() :]).hexdigest(), first[2].decode()
    if found == expected:
        return
    data = bytes(data)
    if b"\n<<<<<<< " in data and b"\n>>>>>>> " in data:
        message = f"`{path}` holds two versions of a lock, as a merge has left them"
        raise ConfigError(message, hint="take one of them, and run `tokenloom run lock` again")
    if not data.rstrip().endswith(b"]}"):
        message = f"`{path}` is truncated: expected `]}}` at its end, found {data[-20:]!r}"
        raise ConfigError(message, hint=_LOCK_AGAIN)
    how = "with other ends of lines" if b"\r\n" in data else "by hand"
    message = (
        f"`{path}` was edited {how}: expected content with sha256 {expected[:12]}…, as its first line says, found "
        f"{found[:12]}…"
    )
    raise ConfigError(message, hint=f"what people change is `run.toml`; {_LOCK_AGAIN}")


def _text_of(data: bytes | memoryview) -> str:
    """Returns the text of a file without a copy of its bytes, which would leave a hole in the memory of a run."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        message = f": expected UTF-8, found something else ({error})"
        raise UnusableJsonError(message) from error


def _foreign(data: bytes, path: str) -> ConfigError:
    """Returns the error for what does not begin as locks do."""
    try:
        content = parse_json(data, most_bytes=_MOST_BYTES)
    except UnusableJsonError as error:
        message = f"`{path}`: expected the JSON of a lock, found {len(data)} bytes that are none: {error}"
        return ConfigError(message, hint=_LOCK_AGAIN)
    if type(content) is not dict or content.get("format") != FORMAT:
        message = f"`{path}`: expected an object whose `format` is {FORMAT!r}, found something else"
        return ConfigError(message, hint="this is not the lock of a run; name another file")
    if type(version := content.get("version")) is int and version != VERSION:
        return _newer(version, path)
    message = f"`{path}` was edited or formatted: expected its checksum in the first line, found none"
    return ConfigError(message, hint=_LOCK_AGAIN)


def _newer(version: int, path: str) -> ConfigError:
    message = f"`{path}`: expected version {VERSION} of a lock, found {version}"
    return ConfigError(message, hint="it was written by a newer tokenloom; use that")


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


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def _separated(rows: list[str]) -> list[str]:
    return [*(f"{row}," for row in rows[:-1]), *rows[-1:]]


MOST = 1 << 60
"""Above all counts, positions and weights."""

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

    40,000 sources are read at every start, by every process: most numbers and texts are checked later, by column.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = None if is_remote(path) else os.path.join(os.path.dirname(path), "")

    def read(self, members: dict[str, Any]) -> Any:
        """Returns what an object stands for; one that is no row, as it is.

        Raises:
            UnusableJsonError: a member is missing, or cannot be one of such a row.
        """
        try:
            if "prefix" in members and "suffix" not in members:  # else tokens of fill in the middle
                return self._pair(members)
            if "pairs" in members:
                pairs = _rows(LockedPair, members, "pairs")
                return LockedSource(name=members["name"], pairs=pairs, max_passes=members["max_passes"])
            if "stage" in members:
                weights = _numbered(members["weights"])
                others = {name: members[name] for name in LockedSegment.__slots__ if name != "weights"}
                return LockedSegment(**others, weights=weights)
            if "start" in members:
                documents = tuple((source, _rising(chosen)) for source, chosen in _array(members["documents"]))
                _rising([source for source, _ in documents])
                return LockedDenial(start=members["start"], documents=documents)
        except UnusableJsonError:
            raise
        except KeyError as error:
            _refuse(f"a member {error} of each such object", members)
        except (TypeError, ValueError, AttributeError) as error:
            raise UnusableJsonError(f": {error} in {_shown(members)}") from error  # noqa: EM102 - no literal
        return members

    def _pair(self, members: dict[str, Any]) -> LockedPair:
        row = _PAIR | members
        row["prefix"] = self._prefix(members["prefix"])
        row["dtype"] = sys.intern(members["dtype"])
        for name in ("index_start_crc32", "tokens_crc32", "index_crc32"):
            if (text := row[name]) is not None:
                row[name] = _crc32(text)
        if "fingerprint" in members:
            row["fingerprint"] = sys.intern(members["fingerprint"])
        if "packs" in members:
            row["packs"] = _numbered(members["packs"])
        pair = object.__new__(LockedPair)
        for name, set_slot in _SETTERS:
            set_slot(pair, row[name])
        return pair

    def _prefix(self, name: Any) -> str:
        """Returns the prefix that a name in the lock stands for."""
        if not isinstance(name, str) or not can_be_path(name):
            _refuse("the prefix of a pair", name)
        if self._folder is not None and not is_remote(name):
            return name if name.startswith("/") else self._folder + name
        return path_of_name(name, owner=self._path)


def _crc32(text: Any) -> int:
    number = int(text, 16)
    if number < 0 or len(text) != 8:
        _refuse("a checksum of 8 hexadecimal digits", text)
    return number


def _array(value: Any) -> list[Any]:
    if type(value) is not list:
        _refuse("an array", value)
    return value


def _numbered(rows: list[Any]) -> tuple[tuple[int, int], ...]:
    """Returns pairs of integers, of which the first rise."""
    numbers, values = [number for number, _ in _array(rows)], [value for _, value in rows]
    if not _are_integers(values):
        _refuse("integers in [0, 2**60)", values)
    return tuple(zip(_rising(numbers), values, strict=True))


def _rising(numbers: Any) -> tuple[int, ...]:
    if not {*map(type, _array(numbers))} <= {int}:
        _refuse("integers", numbers)
    if min(numbers, default=0) < 0 or not all(map(operator.lt, numbers, numbers[1:])):
        _refuse("rising numbers from 0 on", numbers)
    return tuple(numbers)


def _are_integers(values: Sequence[Any], least: int = 0, below: int = MOST) -> bool:
    return {*map(type, values)} <= {int} and (not values or (least <= min(values) and max(values) < below))


def _rows(kind: type[Any], members: dict[str, Any], name: str) -> tuple[Any, ...]:
    """Returns the rows of a kind that an array holds, after a `_RowReader` has read each.

    Raises:
        UnusableJsonError: there is no such array, or something else in it.
    """
    rows = members.get(name)
    if type(rows) is not list or not {*map(type, rows)} <= {kind}:
        _refuse(f"`{name}` to be an array of {name}", rows)
    return tuple(rows)


def _lock_of(members: Any) -> RunLock:
    """Returns the lock that an object of JSON holds, after a `_RowReader` has read the rows in it.

    Raises:
        UnusableJsonError: a member is missing, of another type or out of range, or does not fit the others.
    """
    if type(members) is not dict:
        _refuse("an object", members)
    rows: dict[str, Any] = {
        "sources": _rows(LockedSource, members, "sources"),
        "segments": _rows(LockedSegment, members, "segments"),
        "denials": _rows(LockedDenial, members, "denials"),
    }
    lock = replace(from_members(RunLock, {**members, "sources": [], "segments": [], "denials": []}), **rows)
    _check_columns(lock)
    _check_parts(lock)
    return lock


def _check_columns(lock: RunLock) -> None:
    """Checks types and ranges of what the rows and the head of a lock hold."""
    pairs = [pair for source in lock.sources for pair in source.pairs]
    numbers: list[tuple[Sequence[Any], str, int, int]] = [
        *(([lock], name, 0, MOST) for name in ("order", "consumed", "amended")),
        ([lock], "seed", 0, 1 << 63),
        ([lock], "mixing_block", 1, MOST),
        *((pairs, name, 0, MOST) for name in ("num_documents", "num_tokens", "idx_bytes", "since")),
        *((pairs, name, 0, MOST) for name in ("held_blocks", "held_documents", "held_tokens")),
        (pairs, "index_start_crc32", 0, 1 << 32),
        ([each for each in lock.sources if each.max_passes is not None], "max_passes", 1, MOST),
        (lock.segments, "start", 0, MOST),
        ([each for each in lock.segments if each.num_samples is not None], "num_samples", 1, MOST),
        ([each for each in lock.segments if each.mixed_as is not None], "mixed_as", 1, MOST),
        (lock.segments, "sequence_length", 1, MOST),
        (lock.denials, "start", 0, MOST),
    ]
    for rows, name, least, below in numbers:
        values = [getattr(row, name) for row in rows]
        if not _are_integers(values, least, below):
            row = next(row for row in rows if not _are_integers([getattr(row, name)], least, below))
            owner = [f" of {getattr(row, each)!r}" for each in ("prefix", "name", "stage") if hasattr(row, each)]
            _refuse(f"`{name}`{''.join(owner)} in [{least}, 2**{below.bit_length() - 1})", getattr(row, name))
    choices: list[tuple[Sequence[Any], str, Sequence[str]]] = [
        (pairs, "dtype", [name for name in DType.__members__ if not name.startswith("float")]),
        ([lock], "documents", ("shuffled", "file")),
        ([lock], "windows", ("concat", "best_fit")),
        ([lock], "dataset", tuple(KINDS)),
    ]
    for rows, name, options in choices:
        if unknown := {getattr(row, name) for row in rows}.difference(options):
            _refuse(f"`{name}` to be one of {', '.join(options)}", unknown.pop())
    for text in (*(source.name for source in lock.sources), *(segment.stage for segment in lock.segments)):
        if type(text) is not str:
            _refuse("a text", text)


def _check_parts(lock: RunLock) -> None:
    """Checks that the parts of a lock fit together."""
    names = [source.name for source in lock.sources]
    if len(set(names)) != len(names):
        _refuse("each source once", next(name for name in names if names.count(name) > 1))
    for pair in (pair for source in lock.sources for pair in source.pairs):
        held = pair.held_blocks, pair.held_documents, pair.held_tokens
        if held != (0, 0, 0):
            is_possible = pair.held_tokens <= pair.num_tokens and pair.held_documents <= pair.num_documents
            is_possible = is_possible and pair.held_blocks <= -(-pair.num_documents // BLOCK_DOCUMENTS)
            if not is_possible or (pair.held_blocks > 0) == (pair.held_documents > 0):
                _refuse(f"blocks or documents of {pair.prefix!r} that are held out", held)
    known = {field.name for field in dataclasses.fields(KINDS[lock.dataset])}
    for name, value in lock.samples.items():
        if name not in known or not _is_plain(value):
            _refuse(f"settings of {lock.dataset} samples", {name: value})
    if not lock.segments:
        _refuse("a segment", lock.segments)
    end: float = 0
    for segment in lock.segments:
        size, weights = segment.num_samples, [weight for _, weight in segment.weights]
        if segment.start != end:
            _refuse(f"a segment from position {end} on", segment.start)
        if segment.mixed_as is not None and size is not None and segment.mixed_as < size:
            _refuse(f"a segment of {segment.stage!r} that is mixed as {size} samples or more", segment.mixed_as)
        if not weights or min(weights) < 1 or sum(weights) > MOST:
            _refuse(f"weights of {segment.stage!r} with a sum in [1, 2**60]", segment.weights)
        end = math.inf if size is None else segment.start + size
    last = [segment.weights[-1][0] for segment in lock.segments]
    last += [denial.documents[-1][0] for denial in lock.denials if denial.documents]
    if max(last, default=-1) >= len(names):
        _refuse(f"numbers of {len(names)} sources", max(last))
    for denial in lock.denials:
        for source, documents in denial.documents:
            count = sum(pair.num_documents for pair in lock.sources[source].pairs)
            if max(documents, default=-1) >= count:
                _refuse(f"numbers of the {count} documents of {names[source]!r}", max(documents))
    starts: Sequence[int] = [denial.start for denial in lock.denials]
    if starts != sorted(starts):
        _refuse("denials in the order of their positions", starts)


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (str, int, float))


def _refuse(expected: str, found: object) -> NoReturn:
    message = f": expected {expected}, found {_shown(found)}"
    raise UnusableJsonError(message)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
