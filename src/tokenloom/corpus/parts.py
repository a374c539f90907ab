"""Whether the part of a shard is still what its report says.

Parts are not flushed to the disk one by one, which would cost more than doing a few again after a loss of power.
"""

from __future__ import annotations

from tokenloom.corpus.folder import JobFolder
from tokenloom.corpus.plan import CorpusPlan, PlannedShard
from tokenloom.corpus.report import ShardReport, boot_id
from tokenloom.corpus.shard import part_pair
from tokenloom.errors import TokenloomError
from tokenloom.indexed.checksums import FileTally
from tokenloom.indexed.dataset import IndexedDataset


def damaged_parts(plan: CorpusPlan, folder: JobFolder) -> list[tuple[PlannedShard, str]]:
    """Returns the shards whose files are not what their reports say, and in what.

    Sizes are compared for all; the bytes are read only of parts that this machine, as it runs now, did not write: what
    it wrote it still has in memory, or on disk.
    """
    here = boot_id()
    problems = ((shard, _problem(plan, folder, shard, here)) for shard in plan.shards)
    return [(shard, problem) for shard, problem in problems if problem is not None]


def _problem(plan: CorpusPlan, folder: JobFolder, shard: PlannedShard, here: str) -> str | None:
    report = folder.report(shard)
    if report is None:
        return "its report is missing"
    try:
        return next(
            (
                problem
                for number in range(len(plan.settings.keys))
                if (problem := _pair_problem(report, number, folder.part_prefix(shard), reads=report.boot_id != here))
            ),
            None,
        )
    except TokenloomError as error:
        return error.message


def _pair_problem(report: ShardReport, number: int, part_prefix: str, *, reads: bool) -> str | None:
    prefix, expected = part_pair(part_prefix, number), report.columns[number]
    dataset = IndexedDataset(prefix)
    found = (dataset.num_documents, len(dataset), dataset.num_tokens)
    promised = (report.num_documents, expected.num_sequences, expected.num_tokens)
    if found != promised:
        return f"`{prefix}`: expected {promised} documents, sequences and tokens, found {found}"
    if reads:
        tally = FileTally()
        tally.add_source(dataset.bin_reader)
        if tally.crc32 != expected.bin_crc32:
            return f"`{prefix}`: expected tokens with the checksum {expected.bin_crc32:08x}, found {tally.crc32:08x}"
    return None
