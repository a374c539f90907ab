"""Why records were set aside: those of `PREFIX.rejected.jsonl` by reason, with a few of each, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenloom.preprocess.bad_records import rejected_path
from tokenloom.storage.json_files import parse_json
from tokenloom.storage.resolve import exists, read_start
from tokenloom.storage.settings import ObjectStorageSettings

MOST_BYTES = 64 << 20
"""Of one file; of a larger one the beginning is read, and the rest is not counted."""

_MOST_REASONS = 1000
_NUM_EXAMPLES = 3
_MOST_TEXT = 300
_NUMBER = re.compile(r"\d+")
_QUOTED = re.compile(r"'[^']*'|`[^`]*`|\"[^\"]*\"")
_MOST_REASON = 500

_OTHER = "other reasons"
_UNREADABLE = "lines of the file that are none of ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRecord:
    """A record that was set aside. All texts are those of strangers.

    Attributes:
        place: where it was, as "FILE:N", or the file.
        reason: why.
        text: how it begins; None where it is not text.
    """

    place: str
    reason: str
    text: str | None


@dataclass(slots=True, kw_only=True)
class RejectedReason:
    """Records that were set aside for reasons that differ in numbers and names only.

    Attributes:
        count: how many.
        examples: the first of them.
    """

    count: int = 0
    examples: list[RejectedRecord] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RejectedReasons:
    """Records that were set aside, by reason.

    Attributes:
        num_records: all that were read.
        is_whole: whether all of every file was read.
    """

    num_records: int = 0
    is_whole: bool = True
    _reasons: dict[str, RejectedReason] = field(default_factory=dict)

    def ranked(self) -> list[RejectedReason]:
        """Returns the reasons, the most frequent first."""
        return sorted(self._reasons.values(), key=lambda each: -each.count)

    def add_file(
        self, path: str, *, most_bytes: int = MOST_BYTES, settings: ObjectStorageSettings | None = None
    ) -> None:
        """Counts the records of a file.

        Args:
            path: path of the file.
            most_bytes: read at most.
            settings: settings of object storage.

        Raises:
            StorageError: it cannot be read.
        """
        data = read_start(path, most_bytes + 1, settings=settings)
        if len(data) > most_bytes:
            self.is_whole = False
            data = data[: data.rfind(b"\n", 0, most_bytes) + 1]
        for line in data.splitlines():
            self._add(_record(line))

    def _add(self, record: RejectedRecord | None) -> None:
        self.num_records += 1
        kind = _UNREADABLE if record is None else _kind(record.reason)
        if kind not in self._reasons and len(self._reasons) >= _MOST_REASONS:
            kind = _OTHER
        found = self._reasons.setdefault(kind, RejectedReason())
        found.count += 1
        if len(found.examples) < _NUM_EXAMPLES:
            found.examples.append(record or RejectedRecord(place="", reason=_UNREADABLE, text=None))


def find_rejected(
    prefix: str, options: Mapping[str, Any] | None = None, *, settings: ObjectStorageSettings | None = None
) -> str | None:
    """Returns the path of the records that were set aside when a pair was made; None if there is none.

    Args:
        prefix: prefix of the pair.
        options: options of its manifest: they tell the prefix of the job, which names the file.
        settings: settings of object storage.
    """
    found = (rejected_path(name) for name in _names(prefix, {} if options is None else options))
    return next((path for path in found if exists(path, settings=settings)), None)


def _names(prefix: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Yields prefixes of jobs that may have made a pair, see `PlannedDataset`."""
    yield prefix
    level = "sentence" if options.get("split_sentences") else "document"
    key, split = options.get("key"), options.get("split")
    name = prefix
    if isinstance(key, str):
        name = name.removesuffix(f"_{key.replace('/', '_')}_{level}")
    if isinstance(split, str):
        name = name.removesuffix(f"_{split}")
    if name != prefix:
        yield name


def _record(line: bytes) -> RejectedRecord | None:
    """Returns the record of a line; None if it is none of ours."""
    try:
        members = parse_json(line)
    except ValueError:
        return None
    if not isinstance(members, dict) or not isinstance(reason := members.get("reason"), str):
        return None
    number = next((members[unit] for unit in ("line", "row") if type(members.get(unit)) is int), None)
    place = str(members.get("file", ""))[:_MOST_TEXT]
    text = members.get("text")
    return RejectedRecord(
        place=place if number is None else f"{place}:{number}",
        reason=reason[:_MOST_REASON],
        text=text[:_MOST_TEXT] if isinstance(text, str) else None,
    )


def _kind(reason: str) -> str:
    """Returns what reasons have in common that differ in numbers and names only."""
    return _NUMBER.sub("#", _QUOTED.sub("'...'", reason))
