"""Why records were set aside: those of `PREFIX.rejected.jsonl` by reason, with a few of each, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tokenloom.preprocess.blocks import rejected_path
from tokenloom.storage.json_files import parse_json
from tokenloom.storage.resolve import exists, read_start
from tokenloom.storage.settings import ObjectStorageSettings

MOST_BYTES = 64 << 20
"""Of one file; of a larger one the beginning is read, and the rest is not counted."""

_NUM_EXAMPLES = 3
_MOST_CHARACTERS = 500
_NUMBER = re.compile(r"\d+")
_QUOTED = re.compile(r"'[^']*'|`[^`]*`|\"[^\"]*\"")


class RejectedRecord(NamedTuple):
    """A record that was set aside: its place as "FILE:N", why, and how its text begins. All are texts of strangers."""

    place: str
    reason: str
    text: str | None


@dataclass(slots=True)
class RejectedReason:
    """How many records were set aside for reasons that differ in numbers and names only, and the first of them."""

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
        for record in map(_record, data.splitlines()):
            self.num_records += 1
            kind = _NUMBER.sub("#", _QUOTED.sub("'...'", record.reason))
            found = self._reasons.setdefault(kind, RejectedReason())
            found.count += 1
            if len(found.examples) < _NUM_EXAMPLES:
                found.examples.append(record)


def find_rejected(
    prefix: str, options: Mapping[str, Any] | None = None, *, settings: ObjectStorageSettings | None = None
) -> str | None:
    """Returns the path of the records that were set aside when a pair was made; None if there is none.

    Args:
        prefix: prefix of the pair.
        options: options of its manifest: they tell the prefix of the job, which names the file.
        settings: settings of object storage.
    """
    options = {} if options is None else options
    level = "sentence" if options.get("split_sentences") else "document"
    name = prefix  # see `PlannedDataset`
    if isinstance(key := options.get("key"), str):
        name = name.removesuffix(f"_{key.replace('/', '_')}_{level}")
    if isinstance(split := options.get("split"), str):
        name = name.removesuffix(f"_{split}")
    found = map(rejected_path, dict.fromkeys((prefix, name)))
    return next((path for path in found if exists(path, settings=settings)), None)


def _record(line: bytes) -> RejectedRecord:
    """Returns the record of a line."""
    try:
        members = parse_json(line)
    except ValueError:
        members = None
    if not isinstance(members, dict) or not isinstance(reason := members.get("reason"), str):
        return RejectedRecord("", "lines of the file that are none of ours", None)
    number = next((f":{members[unit]}" for unit in ("line", "row") if type(members.get(unit)) is int), "")
    text = members.get("text")
    return RejectedRecord(
        place=f"{str(members.get('file', ''))[:_MOST_CHARACTERS]}{number}",
        reason=reason[:_MOST_CHARACTERS],
        text=text[:_MOST_CHARACTERS] if isinstance(text, str) else None,
    )
