"""Whether the part of a shard is still what was written.

Parts are not flushed to the disk one by one, which would cost more than doing a few again after a loss of power.
"""

from __future__ import annotations

import os
from dataclasses import replace

from tokenloom.corpus.part_files import part_pair, problem_beside
from tokenloom.corpus.plan import CorpusFolder, JobPlan, PlannedShard
from tokenloom.corpus.recipe import Recipe
from tokenloom.corpus.report import ShardReport
from tokenloom.errors import TokenloomError
from tokenloom.indexed.checksums import pair_facts, path_checksum
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.roles import read_roles, roles_path
from tokenloom.machine import boot_id
from tokenloom.preprocess.rejected import rejected_path


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
