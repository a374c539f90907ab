"""`megatron.training.datasets.utils`: reads records of JSON-lines and Parquet files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenloom.errors import InputError
from tokenloom.optional import require
from tokenloom.storage.local import MappedFile


def load_json_arg(spec: str | None) -> Any:
    """Parses a JSON string, or the JSON file at a path; returns None for None.

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


_NUM_PROBED = 1000


class JsonRecords(Sequence[dict[str, Any]]):
    """The records of a JSON-lines file, parsed on access; needs 16 bytes of memory per record.

    A file that contains one JSON list is parsed as a whole. A pickle contains only the path. A record that is not a
    JSON object raises `InputError` on access.
    """

    def __init__(self, path: str) -> None:
        self.path: str = path
        self._file = MappedFile(path)
        with open(path, "rb") as stream:  # blank lines get negative sizes
            sizes = np.fromiter((-len(line) if line.isspace() else len(line) for line in stream), dtype=np.int64)
        self._sizes, self._stops = sizes[sizes > 0], np.abs(sizes).cumsum()[sizes > 0]
        self._listed: list[Any] | None = None
        if len(self._sizes) and self._bytes(0).startswith(b"["):
            self._listed = self._parse(bytes(self._file.read(0, self._file.num_bytes)), "the file")

    def _bytes(self, number: int) -> bytes:
        size = int(self._sizes[number])
        return bytes(self._file.read(int(self._stops[number]) - size, size)).strip()

    def _parse(self, text: bytes, where: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise InputError(f"`{self.path}`: {where} is not JSON: {error}") from error

    @property
    def column_names(self) -> list[str]:
        """The distinct keys of the first 1,000 records, in order of first appearance."""
        return list(dict.fromkeys(key for k in range(min(len(self), _NUM_PROBED)) for key in self[k]))

    def __len__(self) -> int:
        return len(self._sizes if self._listed is None else self._listed)

    def __getitem__(self, number: Any) -> Any:
        number = range(len(self))[number]
        listed = self._listed
        record = listed[number] if listed else self._parse(self._bytes(number), f"record {number}")
        if not isinstance(record, dict):
            raise InputError(f"`{self.path}`: record {number} must be a JSON object, got {type(record).__name__}")
        return record

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)


class ParquetRecords(Sequence[dict[str, Any]]):
    """The rows of a Parquet file as dicts. A pickle contains only the path."""

    def __init__(self, path: str) -> None:
        self.path = path
        parquet = require("pyarrow.parquet", extra="parquet")
        self._table = parquet.read_table(path, memory_map=True)
        self.column_names: list[str] = list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, number: Any) -> Any:
        (row,) = self._table.slice(range(len(self))[number], 1).to_pylist()
        return row

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)
