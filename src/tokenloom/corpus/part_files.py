"""A shard that is done, and what lies beside the pairs of its part.

That is which of its records gave no document, and the hashes of its documents.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tokenloom.corpus.plan import CorpusFolder, JobPlan, PlannedShard
from tokenloom.corpus.recipe import Mask, Recipe
from tokenloom.corpus.report import ShardReport
from tokenloom.errors import TokenloomError
from tokenloom.indexed.checksums import pair_facts, path_checksum
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.roles import read_roles, roles_path
from tokenloom.inputs.left_out import LeftOut, joined_left_out, none_left_out, num_left_out
from tokenloom.machine import boot_id
from tokenloom.preprocess.blocks import TokenizedBlock
from tokenloom.preprocess.rejected import rejected_path
from tokenloom.preprocess.selection import DocumentHashes
from tokenloom.storage.atomic import publish_bytes
from tokenloom.storage.local import map_file


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
        report: report of the shard, which `problem_beside` has passed.
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


@dataclass(slots=True, kw_only=True)
class FilesBeside:
    """What goes beside the pairs of a part, collected block by block, and written in the end.

    Attributes:
        num_columns: pairs of the part.
        hashes_records: whether the texts of a document under all keys are hashed.
        hashes_texts: whether the texts under each key are.
        records_crc32, hashes_crc32, text_hashes_crc32: see `ShardReport`; set by `publish`.
    """

    num_columns: int
    hashes_records: bool
    hashes_texts: bool
    records_crc32: int | None = None
    hashes_crc32: int | None = None
    text_hashes_crc32: tuple[int, ...] | None = None
    num_records: int = 0
    _left_out: list[tuple[LeftOut, int]] = field(default_factory=list)
    _hashes: list[DocumentHashes] = field(default_factory=list)
    _text_hashes: list[tuple[DocumentHashes, ...]] = field(default_factory=list)

    def add(self, block: TokenizedBlock) -> None:
        """Takes note of the next block."""
        num_records = block.num_records
        assert num_left_out(block.left_out) == block.num_blank_lines + len(block.bad_lines)
        if len(block.left_out) or not self._left_out:
            self._left_out.append((block.left_out, num_records))
        else:  # which keeps nothing of blocks with nothing unusual
            left_out, num_before = self._left_out[-1]
            self._left_out[-1] = (left_out, num_before + num_records)
        self.num_records += num_records
        if self.hashes_records and block.hashes is not None:
            self._hashes.append(block.hashes)
        if self.hashes_texts:
            self._text_hashes.append(tuple(column.hashes for column in block.columns if column.hashes is not None))

    def publish(self, part_prefix: str) -> None:
        """Makes the files appear."""
        left_out = joined_left_out(self._left_out)
        if len(left_out):
            self.records_crc32 = _published(records_path(part_prefix), [left_out])
        if self.hashes_records:
            self.hashes_crc32 = _published(part_hashes_path(part_prefix), self._hashes)
        if self.hashes_texts:
            self.text_hashes_crc32 = tuple(
                _published(part_hashes_path(part_prefix, number), [each[number] for each in self._text_hashes])
                for number in range(self.num_columns)
            )


def problem_beside(part_prefix: str, report: ShardReport, *, needs_records: bool) -> str | None:
    """Returns what is wrong with these files of a part; None for nothing.

    Args:
        part_prefix: what the names of the part's files begin with.
        report: report of the shard.
        needs_records: whether it must be known which records gave no document.

    Raises:
        StorageError: one of them is missing.
    """
    expected: dict[str, int | None] = {
        part_hashes_path(part_prefix): report.hashes_crc32,
        records_path(part_prefix): report.records_crc32,
    }
    for number, text_crc32 in enumerate(report.text_hashes_crc32 or ()):
        expected[part_hashes_path(part_prefix, number)] = text_crc32
    for path, crc32 in expected.items():
        if crc32 is not None and zlib.crc32(map_file(path).data) != crc32:
            return f"`{path}` does not hold what its report says"
    has_records = report.records_crc32 is not None or not (report.num_blank_lines or report.num_rejected)
    if needs_records and not has_records:  # the version that did the shard kept no such list
        return "which of its records gave no document was not noted"
    return None


def _published(path: str, arrays: Sequence[LeftOut | DocumentHashes]) -> int:
    """Writes arrays as one file, and returns its checksum."""
    data = b"".join(each.tobytes() for each in arrays)
    publish_bytes(path, data)
    return zlib.crc32(data)


def damaged_parts(plan: JobPlan, folder: CorpusFolder) -> list[tuple[PlannedShard, str]]:
    """Returns the shards whose files are not what was written, and in what.

    Sizes are compared for all; the bytes are read only of parts that this machine, as it runs now, did not write: what
    it wrote it still has in memory, or on disk.
    """
    here = boot_id()
    problems = ((shard, _problem(plan, folder, shard, here)) for shard in plan.shards)
    return [(shard, problem) for shard, problem in problems if problem is not None]


def _problem(plan: JobPlan, folder: CorpusFolder, shard: PlannedShard, here: str) -> str | None:
    report = folder.report(shard)
    if report is None:
        return "its report is missing"
    try:
        for number in range(len(plan.columns)):
            prefix = part_pair(folder.part_prefix(shard), number)
            problem = _pair_problem(prefix, plan.recipe, reads=report.boot_id != here)
            if problem is not None:
                return problem
        return _problem_beside(plan, report, folder.part_prefix(shard))
    except TokenloomError as error:
        return error.message


def _problem_beside(plan: JobPlan, report: ShardReport, prefix: str) -> str | None:
    """Returns what is wrong with the files beside the pairs."""
    problem = problem_beside(prefix, report, needs_records=plan.settings.origins)
    if problem is not None:
        return problem
    if report.num_rejected and not os.path.exists(rejected_path(prefix)):
        return f"`{rejected_path(prefix)}` is missing"
    return None


def _pair_problem(prefix: str, recipe: Recipe, *, reads: bool) -> str | None:
    dataset = IndexedDataset(prefix, multimodal=recipe.is_multimodal)
    manifest = manifest_of(dataset)
    if manifest is None:
        return f"`{prefix}` has no manifest"
    if recipe.has_roles:
        read_roles(dataset)
    if reads:
        facts = pair_facts(dataset)
        if recipe.has_roles:
            facts = replace(facts, roles=path_checksum(roles_path(prefix)))
        if recipe.is_multimodal:  # of the texts alone
            facts = replace(facts, largest_token=manifest.pair.largest_token)
        if facts != manifest.pair:
            return f"`{prefix}` does not hold what its manifest says"
    return None
