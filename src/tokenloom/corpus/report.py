"""What came out of a shard: written last, so that a part with a report is whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenloom.errors import StorageError
from tokenloom.storage.json_files import parse_json

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What came out of a shard.

    Attributes:
        key: of the shard.
        slice_rows: records in each of its slices, blank lines and bad records included.
        num_documents: in each pair, those without tokens included.
        num_blank_lines: lines of nothing but white space.
        num_rejected: bad records set aside.
        num_doubled: documents whose text already spells out a token that was added to it.
        num_text_bytes: read, after decompression.
        num_tokens: over all keys.
        hashes_crc32: of the hashes of its documents, see `part_hashes`; None without.
        engine, engine_reason: what tokenised, and why.
        seconds: the shard took.
        boot_id: of the machine that did it, see `parts`.
        numbers: further ones of the recipe, by name.
    """

    key: str
    slice_rows: tuple[int, ...]
    num_documents: int
    num_blank_lines: int
    num_rejected: int
    num_doubled: int
    num_text_bytes: int
    num_tokens: int
    hashes_crc32: int | None
    engine: str
    engine_reason: str
    seconds: float
    boot_id: str
    numbers: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Returns the report as a file holds it."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, *, path: str) -> ShardReport:
        """Returns the report in a file.

        Raises:
            StorageError: it is not one.
        """
        try:
            values: dict[str, Any] = parse_json(data)
            if values.pop("version") != _VERSION:
                raise ValueError("another version")  # noqa: TRY301, EM101 - worded below
            report = cls(slice_rows=tuple(values.pop("slice_rows")), **values)
            report.check()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"`{path}` is not the report of a shard: {error}"
            raise StorageError(message, hint="remove it; the shard is then done again") from error
        return report

    def check(self) -> None:
        """Checks that all members are what they are annotated with, and counts fit 63 bits.

        Raises:
            ValueError: one is not.
        """
        kinds: dict[str, tuple[type, ...]] = {
            "int": (int,),
            "str": (str,),
            "bool": (bool,),
            "float": (float, int),
            "int | None": (int, type(None)),
        }
        for name, value in asdict(self).items():
            if name == "slice_rows":
                fits = all(_is_count(rows) for rows in value)
            elif name == "numbers":
                fits = type(value) is dict and all(_is_count(number) for number in value.values())
            else:
                fits = type(value) in kinds[self.__annotations__[name]] and (type(value) is not int or _is_count(value))
            if not fits:
                message = f"expected {name} to be {self.__annotations__[name]}, found {str(value)[:40]}"
                raise ValueError(message)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63
