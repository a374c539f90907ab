"""The records of a file, by number: JSON lines, one JSON list, Parquet, or a dataset of the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, MissingExtraError
from tokenloom.optional import require
from tokenloom.storage.local import MappedFile

_LOOKED_AT = 1000
"""Records whose keys are looked at to tell what a file holds."""

_AT_ONCE = 1 << 26
"""Bytes that are searched for ends of lines at once."""


class JsonRecords(Sequence[dict[str, Any]]):
    """The records of a file of JSON lines: found once, 8 bytes each in memory, and parsed when they are asked for.

    A file that is one JSON list of records is parsed whole. Picklable; the file is opened again.

    Args:
        path: the file.

    Raises:
        StorageError: it cannot be read.
        InputError: a record is asked for that is no JSON object.
    """

    def __init__(self, path: str) -> None:
        self.path: str = path
        self._open()

    def _open(self) -> None:
        self._file = MappedFile(self.path)
        self._listed: list[Any] | None = None
        self._starts, self._stops = _lines(self._file)
        if len(self._starts) and self._bytes(0).startswith(b"["):
            self._listed = self._parse(bytes(self._file.read(0, self._file.num_bytes)), "the file")

    def _bytes(self, number: int) -> bytes:
        start = int(self._starts[number])
        return bytes(self._file.read(start, int(self._stops[number]) - start)).strip()

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
        return len(self._starts) if self._listed is None else len(self._listed)

    def __getitem__(self, number: Any) -> Any:
        """Returns a record."""
        number = range(len(self))[number]
        record = self._parse(self._bytes(number), f"record {number}") if self._listed is None else self._listed[number]
        if not isinstance(record, dict):
            message = f"`{self.path}`: expected a JSON object as record {number}, found {type(record).__name__}"
            raise InputError(message)
        return record

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path = state["path"]
        self._open()


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


def _lines(file: MappedFile) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns where each line that is not blank begins, and where it ends: int64[num_lines]."""
    ends = np.concatenate([*_line_ends(file), np.array([file.num_bytes], dtype=np.int64)])
    starts = np.concatenate([[0], ends[:-1] + 1])
    short = np.flatnonzero(ends - starts < 3)  # shorter than any object; the others are not blank, or are no JSON
    blank = [k for k in short.tolist() if not bytes(file.read(int(starts[k]), int(ends[k] - starts[k]))).strip()]
    return np.delete(starts, blank), np.delete(ends, blank)


def _line_ends(file: MappedFile) -> Iterator[NDArray[np.int64]]:
    for offset in range(0, file.num_bytes, _AT_ONCE):
        block = file.read(offset, min(_AT_ONCE, file.num_bytes - offset))
        yield np.flatnonzero(block == ord("\n")) + offset
