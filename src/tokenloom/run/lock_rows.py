"""The rows of `run.lock`, one for each pair, source, segment and denial: written, and read with checks.

40,000 sources are read at every start, by every process. What there are as many of is therefore checked by hand, not
field by field as `typed_json` does, which takes three times as long.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from tokenloom.indexed.layout import DType
from tokenloom.run.lock import BLOCK_DOCUMENTS, LockedDenial, LockedPair, LockedSegment, LockedSource, RunLock
from tokenloom.run.sample_settings import KINDS
from tokenloom.storage.addresses import can_be_path, is_remote, path_of_name, relative_name
from tokenloom.storage.json_files import UnusableJsonError
from tokenloom.storage.typed_json import members_of

MOST = 1 << 60
"""Above all counts, positions and weights."""

_DTYPES = tuple(name for name in DType.__members__ if not name.startswith("float"))
_FIELDS = [(field.name, field.default) for field in dataclasses.fields(LockedPair)]
_SETTERS = [getattr(LockedPair, name).__set__ for name, _ in _FIELDS]
"""What sets the slots of a pair: a third of what the constructor of a frozen dataclass takes."""


def pair_members(locked: LockedPair, *, path: str) -> dict[str, Any]:
    """Returns what the row of a pair holds, which leaves out what is as it is by default.

    Args:
        locked: the pair.
        path: path of the lock, from which it is named.

    Raises:
        ConfigError: a lock in object storage would name a local pair.
    """
    written = members_of(locked)
    members = {name: written[name] for name, default in _FIELDS if getattr(locked, name) != default}
    return {**members, "prefix": _name_of(locked.prefix, path)}


def _name_of(prefix: str, path: str) -> str:
    """Returns how a lock names a pair: from its folder on, also above it if `data` does."""
    name, folder = relative_name(prefix, owner=path), os.path.join(os.path.dirname(path), "")
    return prefix.removeprefix(folder) if os.path.isabs(name) and prefix.startswith(folder) else name


class RowReader:
    """Makes dataclasses of objects of JSON as soon as these are read, so that few objects are there at a time.

    Args:
        path: path of the lock.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = None if is_remote(path) else os.path.join(os.path.dirname(path), "")
        self._texts: dict[str, str] = {}

    def read(self, members: dict[str, Any]) -> Any:
        """Returns what an object stands for; one that is no row, as it is.

        Raises:
            UnusableJsonError: a member is missing, of another type, or out of range.
        """
        try:
            if "prefix" in members and "suffix" not in members:  # else tokens of fill in the middle
                return self._pair(members)
            if "pairs" in members:
                return _source(members)
            if "stage" in members:
                return _segment(members)
            return _denial(members) if "start" in members else members
        except KeyError as error:
            _refuse(f"a member {error} of each such object", members)
        except (TypeError, AttributeError) as error:
            raise UnusableJsonError(f": {error} in {_shown(members)}") from error  # noqa: EM102 - no literal

    def _pair(self, members: dict[str, Any]) -> LockedPair:
        get, name, dtype = members.get, members["prefix"], members["dtype"]
        counts = (
            members["num_documents"],
            members["num_tokens"],
            members["idx_bytes"],
            get("held_blocks", 0),
            get("held_documents", 0),
            get("held_tokens", 0),
            get("since", 0),
        )
        if {*map(type, counts)} != _ONLY_INTEGERS or min(counts) < 0 or max(counts) >= MOST:
            _refuse(f"counts of {_shown(name)} in [0, 2**60)", counts)
        if dtype not in _DTYPES:
            _refuse(f"the dtype of {_shown(name)} to be one of {', '.join(_DTYPES)}", dtype)
        num_documents, num_tokens, idx_bytes, held_blocks, held_documents, held_tokens, since = counts
        if held_blocks or held_documents or held_tokens:
            is_possible = held_tokens <= num_tokens and held_documents <= num_documents
            is_possible = is_possible and held_blocks <= -(-num_documents // BLOCK_DOCUMENTS)
            if not is_possible or (held_blocks > 0) == (held_documents > 0):
                _refuse(f"blocks or documents of {_shown(name)} that are held out", counts)
        fingerprint = get("fingerprint")
        if fingerprint is not None:
            fingerprint = self._texts.setdefault(fingerprint, _text(fingerprint))
        values = (
            self._prefix(name),
            num_documents,
            num_tokens,
            self._texts.setdefault(dtype, dtype),
            idx_bytes,
            _crc32(members["index_start_crc32"]),
            _crc32(get("tokens_crc32")),
            _crc32(get("index_crc32")),
            fingerprint,
            held_blocks,
            held_documents,
            held_tokens,
            _numbered(packs, name) if (packs := get("packs")) else (),
            since,
        )
        pair = object.__new__(LockedPair)
        for set_slot, value in zip(_SETTERS, values):  # noqa: B905 - costs
            set_slot(pair, value)
        return pair

    def _prefix(self, name: str) -> str:
        """Returns the prefix that a name in the lock stands for."""
        if not can_be_path(_text(name)):
            _refuse("the prefix of a pair", name)
        if self._folder is not None and not is_remote(name):
            return name if name.startswith("/") else self._folder + name
        try:
            return path_of_name(name, owner=self._path)
        except ValueError as error:
            raise UnusableJsonError(f": {error}") from error  # noqa: EM102 - no literal


_ONLY_INTEGERS = {int}


def _text(value: object) -> str:
    if not isinstance(value, str):
        _refuse("a text", value)
    return value


def _crc32(text: Any) -> int | None:
    if text is None:
        return None
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if number < 0 or len(text) != 8:
        _refuse("a checksum of 8 hexadecimal digits", text)
    return number


def _source(members: dict[str, Any]) -> LockedSource:
    name, most = _text(members["name"]), members["max_passes"]
    if most is not None and (type(most) is not int or not 1 <= most < MOST):
        _refuse(f"`max_passes` of {name!r} in [1, 2**60)", most)
    return LockedSource(name=name, pairs=rows_of(LockedPair, members, "pairs"), max_passes=most)


def _segment(members: dict[str, Any]) -> LockedSegment:
    stage, size, mixed_as = _text(members["stage"]), members["num_samples"], members["mixed_as"]
    start, sequence_length = members["start"], members["sequence_length"]
    numbers = [start, sequence_length, *(each for each in (size, mixed_as) if each is not None)]
    if {*map(type, numbers)} != _ONLY_INTEGERS or start < 0 or min(numbers[1:]) < 1 or max(numbers) >= MOST:
        _refuse(f"a segment of {stage!r} with a start and sizes below 2**60", numbers)
    if mixed_as is not None and size is not None and mixed_as < size:
        _refuse(f"a segment of {stage!r} that is mixed as {size} samples or more", mixed_as)
    weights = _numbered(members["weights"], stage)
    values = [weight for _, weight in weights]
    if not weights or min(values) < 1 or sum(values) > MOST:
        _refuse(f"weights of {stage!r} with a sum in [1, 2**60]", weights)
    return LockedSegment(
        stage=stage,
        start=start,
        num_samples=size,
        mixed_as=mixed_as,
        sequence_length=sequence_length,
        weights=weights,
    )


def _denial(members: dict[str, Any]) -> LockedDenial:
    start, rows = members["start"], members["documents"]
    if type(start) is not int or not 0 <= start < MOST or type(rows) is not list:
        _refuse("a denial with start and documents", members)
    documents = []
    for row in rows:
        if type(row) is not list or len(row) != 2 or type(row[1]) is not list:
            _refuse("a source with documents", row)
        documents.append((row[0], _rising(row[1])))
    _rising([source for source, _ in documents])
    return LockedDenial(start=start, documents=tuple(documents))


def _numbered(rows: Any, name: str) -> tuple[tuple[int, int], ...]:
    """Returns pairs of integers, of which the first rise."""
    if type(rows) is not list or not all(type(row) is list and len(row) == 2 for row in rows):
        _refuse(f"pairs of integers for {_shown(name)}", rows)
    values = [value for _, value in rows]
    if rows and ({*map(type, values)} != _ONLY_INTEGERS or min(values) < 0 or max(values) >= MOST):
        _refuse(f"integers in [0, 2**60) for {_shown(name)}", values)
    return tuple(zip(_rising([number for number, _ in rows]), values, strict=True))


def _rising(numbers: list[Any]) -> tuple[int, ...]:
    if numbers and {*map(type, numbers)} != _ONLY_INTEGERS:
        _refuse("integers", numbers)
    if min(numbers, default=0) < 0 or not all(map(operator.lt, numbers, numbers[1:])):
        _refuse("rising numbers from 0 on", numbers)
    return tuple(numbers)


def rows_of(kind: type[Any], members: dict[str, Any], name: str) -> tuple[Any, ...]:
    """Returns the rows of a kind that an array holds, after `RowReader` has read each.

    Raises:
        UnusableJsonError: there is no such array, or something else in it.
    """
    rows = members.get(name)
    if type(rows) is not list or (rows and {*map(type, rows)} != {kind}):
        _refuse(f"`{name}` to be an array of {_PLURALS[kind]}", rows)
    return tuple(rows)


_PLURALS = {LockedPair: "pairs", LockedSource: "sources", LockedSegment: "segments", LockedDenial: "denials"}
_RANGES = (
    ("order", 0, MOST),
    ("seed", 0, 1 << 63),
    ("mixing_block", 1, MOST),
    ("consumed", 0, MOST),
    ("amended", 0, MOST),
)
_CHOICES = (("documents", ("shuffled", "file")), ("windows", ("concat", "best_fit")), ("dataset", tuple(KINDS)))


def check_parts(lock: RunLock) -> None:
    """Checks that the parts of a lock fit together.

    Raises:
        UnusableJsonError: they do not.
    """
    names = [source.name for source in lock.sources]
    if len(set(names)) != len(names):
        _refuse("each source once", next(name for name in names if names.count(name) > 1))
    for name, least, below in _RANGES:
        if not least <= (found := getattr(lock, name)) < below:
            _refuse(f"{name} in [{least}, {below})", found)
    for name, options in _CHOICES:
        if (found := getattr(lock, name)) not in options:
            _refuse(f"`{name}` to be one of {', '.join(options)}", found)
    known = {field.name for field in dataclasses.fields(KINDS[lock.dataset])}
    for name, value in lock.samples.items():
        if name not in known or not _is_plain(value):
            _refuse(f"settings of {lock.dataset} samples", {name: value})
    if not lock.segments:
        _refuse("a segment", lock.segments)
    end: float = 0
    for segment in lock.segments:
        if segment.start != end:
            _refuse(f"a segment from position {end} on", segment.start)
        end = math.inf if segment.num_samples is None else segment.start + segment.num_samples
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
