"""Bad lines: an error by default, or set aside in a file that appears with the outputs."""

from __future__ import annotations

import base64
import json

from tokenloom.indexed.writing.outputs import REJECTED_SUFFIX
from tokenloom.inputs.records import BadLine
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.resolve import open_pending, remove


def rejected_path(prefix: str) -> str:
    """Returns where the bad records of a prefix are."""
    return f"{prefix}{REJECTED_SUFFIX}"


def json_line(record: dict[str, object]) -> bytes:
    """Returns a record as a line of JSON in UTF-8; what of a path is not UTF-8 is escaped."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


class RejectedLines:
    """The records of a corpus that were set aside in `PREFIX.rejected.jsonl`.

    Args:
        prefix: prefix of the outputs.
        skip: whether bad records are set aside; an error otherwise.
    """

    def __init__(self, prefix: str, *, skip: bool) -> None:
        self._target = rejected_path(prefix)
        self._skip = skip
        self._file: PendingFile | PendingObject | None = None
        self.count: int = 0

    def add(self, bad_line: BadLine) -> None:
        """Sets a record aside.

        Raises:
            InputError: bad records are not to be skipped.
        """
        unit = bad_line.unit
        number = {} if unit == "file" else {unit: bad_line.line}
        if not self._skip:
            message = f"{bad_line.place}: {bad_line.reason}"
            hint = f"correct the {unit}, or let bad {unit}s be skipped: they are then set aside in a file"
            raise bad_line.error(message, hint=hint)
        if self._file is None:
            self._file = open_pending(self._target)
        record: dict[str, object] = {"file": bad_line.path, **number, "reason": bad_line.reason}
        try:
            record["text"] = bad_line.data.decode("utf-8")
        except UnicodeDecodeError:
            record["base64"] = base64.b64encode(bad_line.data).decode("ascii")
        self._file.write(json_line(record))
        self.count += 1

    def publish(self) -> None:
        """Makes the file appear; without bad records, removes that of an earlier run."""
        if self._file is not None:
            self._file.publish()
        else:
            remove(self._target)

    def close(self) -> None:
        """Removes what is not published."""
        if self._file is not None:
            self._file.discard()
