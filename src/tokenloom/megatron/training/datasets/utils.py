"""`megatron.training.datasets.utils`: what several datasets of the trainer share."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Sequence
from typing import Any

from tokenloom.errors import InputError
from tokenloom.optional import require
from tokenloom.storage.local import MappedFile


def load_json_arg(spec: str | None) -> Any:
    """Returns what JSON says, which is given as such or as the path of a file; None for None.

    Example:
        >>> load_json_arg('{"mode": "distribution"}')
        {'mode': 'distribution'}
    """
    if spec is None:
        return None
    if os.path.isfile(spec):
        with open(spec, encoding="utf-8") as stream:
            return json.load(stream)
    return json.loads(spec)


_LOOKED_AT = 1000
"""Records whose keys are looked at to tell what a file holds."""


class JsonRecords(Sequence[dict[str, Any]]):
    """The records of a file of JSON lines: found once, 16 bytes each in memory, and parsed when they are asked for.

    A file that is one JSON list of records is parsed whole. Picklable; the file is opened again.

    Args:
        path: the file.

    Raises:
        StorageError: it cannot be read.
        InputError: a record is asked for that is no JSON object.
    """

    def __init__(self, path: str) -> None:
        self.path: str = path
        self._file = MappedFile(path)
        self._starts, self._stops, offset = array("q"), array("q"), 0
        with open(path, "rb") as stream:
            for line in stream:
                if not line.isspace():
                    self._starts.append(offset)
                    self._stops.append(offset + len(line))
                offset += len(line)
        self._listed: list[Any] | None = None
        if self._starts and self._bytes(0).startswith(b"["):
            self._listed = self._parse(bytes(self._file.read(0, offset)), "the file")

    def _bytes(self, number: int) -> bytes:
        start = self._starts[number]
        return bytes(self._file.read(start, self._stops[number] - start)).strip()

    def _parse(self, text: bytes, where: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            message = f"`{self.path}`: {where} is no JSON: {error}"
            raise InputError(message) from error

    @property
    def column_names(self) -> list[str]:
        """The keys of the first 1,000 records, in the order of their first appearance."""
        return list(dict.fromkeys(key for k in range(min(len(self), _LOOKED_AT)) for key in self[k]))

    def __len__(self) -> int:
        return len(self._starts if self._listed is None else self._listed)

    def __getitem__(self, number: Any) -> Any:
        """Returns a record."""
        number = range(len(self))[number]
        listed = self._listed
        record = listed[number] if listed else self._parse(self._bytes(number), f"record {number}")
        if not isinstance(record, dict):
            message = f"`{self.path}`: expected a JSON object as record {number}, found {type(record).__name__}"
            raise InputError(message)
        return record

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)


class ParquetRecords(Sequence[dict[str, Any]]):
    """The rows of a Parquet file, as dicts. Picklable; the file is opened again."""

    def __init__(self, path: str) -> None:
        self.path = path
        parquet = require("pyarrow.parquet", extra="parquet")
        self._table = parquet.read_table(path, memory_map=True)
        self.column_names: list[str] = list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, number: Any) -> Any:
        """Returns a row."""
        (row,) = self._table.slice(range(len(self))[number], 1).to_pylist()
        return row

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)


def hub_records(name: str) -> Any:
    """Returns the split "train" of a dataset of the Hugging Face Hub, which its own library loads.

    Raises:
        MissingExtraError: that library is not installed.
    """
    return require("datasets", extra="hf").load_dataset(name, split="train")
