"""What came out of a shard: written last, so that a part with a report is whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from tokenloom.errors import StorageError
from tokenloom.numbers import check_count
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.typed_json import MAY_BE_MISSING, from_versioned, versioned_members_of

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What came out of a shard.

    Attributes:
        key: key of the shard.
        slice_rows: records in each of its slices, blank lines and bad records included.
        num_documents: number of documents in each pair, those without tokens included.
        num_blank_lines: lines of nothing but white space.
        num_rejected: bad records set aside.
        num_doubled: documents whose text already spells out a token that was added to it.
        num_text_bytes: read, after decompression.
        num_tokens: number of tokens under all keys.
        hashes_crc32: checksum of the hashes of its documents, see `part_hashes`; None without.
        records_crc32: checksum of the list of its records that gave no document, see `part_left_out`; None without:
            there are none such, or the version that did the shard kept no list.
        text_hashes_crc32: checksums of the hashes of the texts under each key; None without.
        engine, engine_reason: what tokenized, and why.
        seconds: the shard took.
        boot_id: boot id of the machine that did it, see `damaged_parts`.
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
    numbers: Mapping[str, int] = field(default_factory=dict, metadata=MAY_BE_MISSING)
    records_crc32: int | None = field(default=None, metadata=MAY_BE_MISSING)
    text_hashes_crc32: tuple[int, ...] | None = field(default=None, metadata=MAY_BE_MISSING)

    def __post_init__(self) -> None:
        """Checks that numbers of things fit 63 bits."""
        for name, value in asdict(self).items():
            counts = value if type(value) is tuple else value.values() if type(value) is dict else [value]
            for count in counts:
                if type(count) is int:
                    check_count(name, count)

    def to_json(self) -> bytes:
        """Returns the report as a file holds it."""
        return json.dumps(versioned_members_of(self, _VERSION), indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, *, path: str) -> ShardReport:
        """Returns the report in a file.

        Raises:
            StorageError: it is not one.
        """
        try:
            members = parse_json(data)
            report = from_versioned(cls, members, _VERSION)
            if strange := members.keys() - versioned_members_of(report, _VERSION).keys():
                raise UnusableJsonError(f"found {min(strange)!r}, which nobody knows")  # noqa: TRY301, EM102
        except UnusableJsonError as error:
            message = f"`{path}` is not the report of a shard: {str(error).removeprefix(': ')}"
            raise StorageError(message, hint="remove it; the shard is then done again") from error
        return report
