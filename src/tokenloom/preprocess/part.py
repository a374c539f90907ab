"""What a job's folder has of a shard that is done: its part, what lies beside that, and the report, written last."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import StorageError, TokenloomError
from tokenloom.indexed.checksums import pair_facts, path_checksum
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import sidecar_path
from tokenloom.indexed.manifests import PairFacts, manifest_of
from tokenloom.indexed.roles import read_roles
from tokenloom.inputs.records import LeftOut, none_left_out
from tokenloom.machine import boot_id
from tokenloom.numbers import check_count
from tokenloom.preprocess.blocks import rejected_path
from tokenloom.preprocess.recipe import Mask, Recipe
from tokenloom.preprocess.selection import DocumentHashes
from tokenloom.storage.json_files import (
    MAY_BE_MISSING,
    UnusableJsonError,
    from_versioned,
    parse_json,
    versioned_members_of,
)
from tokenloom.storage.local import map_file

if TYPE_CHECKING:
    from tokenloom.preprocess.folder import JobFolder
    from tokenloom.preprocess.plan import JobPlan, PlannedShard

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
        records_crc32: checksum of the list of its records that gave no document, see `part_left_out`; None without
            such.
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


def part_pair(part_prefix: str, column: int) -> str:
    """Returns the prefix of the pair of a key, by its number, in a part."""
    return f"{part_prefix}_{column}"


def records_path(part_prefix: str) -> str:
    """Returns the path of the records of a shard that gave no document, as they are in memory."""
    return f"{part_prefix}.records"


def part_hashes_path(part_prefix: str, column: int | None = None) -> str:
    """Returns the path of the hashes of a part's documents, as they are in memory.

    Args:
        part_prefix: what the names of the part's files begin with.
        column: number of the key whose texts are hashed; None for the texts under all keys together.
    """
    return f"{part_prefix}.hashes" if column is None else f"{part_prefix}.hashes_{column}"


def part_hashes(part_prefix: str, column: int | None = None) -> DocumentHashes:
    """Returns such hashes, mapped: uint64[num_documents, 2]."""
    return map_file(part_hashes_path(part_prefix, column)).view(np.uint64).reshape(-1, 2)


def part_left_out(part_prefix: str, report: ShardReport) -> LeftOut:
    """Returns the records of a shard that gave no document, numbered over all of its slices from 0.

    Args:
        part_prefix: what the names of the part's files begin with.
        report: report of the shard, whose part is not damaged.
    """
    if report.records_crc32 is None:
        return none_left_out()
    return map_file(records_path(part_prefix)).view(np.int64).reshape(-1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class DonePart:
    """A shard that is done.

    Attributes:
        shard: shard of the job.
        report: what came out.
        prefix: prefix of its files.
        kept: bool[num_documents], the documents that are no duplicates; None for all.
        splits: int8[num_documents], the number of the split of each; None without splits.
    """

    shard: PlannedShard
    report: ShardReport
    prefix: str
    kept: Mask | None
    splits: NDArray[np.int8] | None

    @property
    def num_duplicates(self) -> int:
        """Documents that are left out."""
        return 0 if self.kept is None else int(np.count_nonzero(~self.kept))

    def num_chosen(self, split: int | None) -> int:
        """Returns how many documents a dataset takes."""
        mask = self.chosen(split)
        return self.report.num_documents if mask is None else int(np.count_nonzero(mask))

    def chosen(self, split: int | None) -> Mask | None:
        """Returns the documents that a dataset takes: bool[num_documents], None for all."""
        if split is None or self.splits is None:
            return self.kept
        mine: Mask = self.splits == split
        return mine if self.kept is None else mine & self.kept


def damaged_parts(plan: JobPlan, folder: JobFolder) -> list[tuple[PlannedShard, str]]:
    """Returns the shards whose files are not what was written, and in what.

    Sizes are compared for all; the bytes are read only of parts that this machine, as it runs now, did not write: what
    it wrote it still has in memory, or on disk.
    """
    damaged: list[tuple[PlannedShard, str]] = []
    for shard in plan.shards:
        try:
            _check_part(plan, folder, shard)
        except TokenloomError as error:
            damaged.append((shard, error.message))
    return damaged


def _check_part(plan: JobPlan, folder: JobFolder, shard: PlannedShard) -> None:
    if (report := folder.report(shard)) is None:
        message = "its report is missing"
        raise StorageError(message)
    prefix, recipe, reads = folder.part_prefix(shard), plan.recipe, report.boot_id != boot_id()
    for number in range(len(plan.columns)):
        pair = part_pair(prefix, number)
        dataset = IndexedDataset(pair, multimodal=recipe.is_multimodal)
        manifest = manifest_of(dataset)
        if recipe.has_roles:
            read_roles(dataset)
        if manifest is None or (reads and _facts(dataset, recipe, manifest.pair) != manifest.pair):
            message = f"`{pair}` does not hold what its manifest says"
            raise StorageError(message)
    checksums = {part_hashes_path(prefix): report.hashes_crc32, records_path(prefix): report.records_crc32}
    for number, text_crc32 in enumerate(report.text_hashes_crc32 or ()):
        checksums[part_hashes_path(prefix, number)] = text_crc32
    for path, crc32 in checksums.items():
        if crc32 is not None and zlib.crc32(map_file(path).data) != crc32:
            message = f"`{path}` does not hold what its report says"
            raise StorageError(message)
    if report.num_rejected and not os.path.exists(rejected_path(prefix)):
        message = f"`{rejected_path(prefix)}` is missing"
        raise StorageError(message)


def _facts(dataset: IndexedDataset, recipe: Recipe, noted: PairFacts) -> PairFacts:
    """Returns what the files of a pair hold, which are read for that."""
    facts = pair_facts(dataset)
    if recipe.has_roles:
        facts = replace(facts, roles=path_checksum(sidecar_path(dataset.path_prefix, "roles")))
    return replace(facts, largest_token=noted.largest_token) if recipe.is_multimodal else facts  # of the texts alone
