"""The records of a file, by number: JSON lines, one JSON list, Parquet, or a dataset of the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from tokenloom.errors import InputError, MissingExtraError
from tokenloom.optional import require
from tokenloom.storage.local import MappedFile

_LOOKED_AT = 1000
"""Records whose keys are looked at to tell what a file holds."""

_AT_ONCE = 1 << 26
"""Bytes that are searched for ends of lines at once."""


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
        self._file = file = MappedFile(path)
        size, found = file.num_bytes, [np.empty(0, dtype=np.int64)]
        for offset in range(0, size, _AT_ONCE):
            block = file.read(offset, min(_AT_ONCE, size - offset))
            found.append(np.flatnonzero(block == ord("\n")) + offset)
        stops = np.concatenate([*found, [size]])
        starts = np.concatenate([[0], stops[:-1] + 1])
        short = np.flatnonzero(stops - starts < 3)  # shorter than most objects; the others are not blank
        blank = [k for k in short.tolist() if not self._bytes(starts[k], stops[k])]
        self._bounds = np.delete(np.stack([starts, stops], axis=1), blank, axis=0)
        self._listed: list[Any] | None = None
        if len(self._bounds) and self._bytes(*self._bounds[0]).startswith(b"["):
            self._listed = self._parse(self._bytes(0, size), "the file")

    def _bytes(self, start: Any, stop: Any) -> bytes:
        return bytes(self._file.read(int(start), int(stop - start))).strip()

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
        return len(self._bounds if self._listed is None else self._listed)

    def __getitem__(self, number: Any) -> Any:
        """Returns a record."""
        number = range(len(self))[number]
        listed = self._listed
        record = listed[number] if listed else self._parse(self._bytes(*self._bounds[number]), f"record {number}")
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
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        message = f"`{name}` names a dataset of the Hugging Face Hub, which `datasets` loads, and that is not installed"
        raise MissingExtraError(message, hint="run `pip install datasets`, or download it") from error
    return datasets.load_dataset(name, split="train")
