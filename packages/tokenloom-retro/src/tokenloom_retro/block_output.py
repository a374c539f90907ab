"""A task whose blocks are its output: each a file `START-STOP.hdf5` of one folder."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tokenloom.jobs.running import Runner
from tokenloom_retro.block_files import planned_blocks
from tokenloom_retro.block_job import MadeBlock, make_blocks
from tokenloom_retro.block_plan import BlockTask
from tokenloom_retro.output import NewOutput, OutputManifest, finished_output

_ENDING = ".hdf5"


def make_block_files(
    task: BlockTask, folder: str, *, runner: Runner | None = None, restart: bool = False, overwrite: bool = False
) -> OutputManifest:
    """Makes what of a task is missing, and returns the manifest of its files, which appear together.

    Args:
        task: what is made.
        folder: folder of the files; the job's folder is beside it, `FOLDER.job`.
        runner: makes the blocks; None for processes of this machine.
        restart: gives up blocks that were made of an output that is not finished.
        overwrite: whether files that were made of something else are replaced.

    Raises:
        OutputExistsError: such files are there, and no `overwrite`.
        TokenloomError: a block cannot be made; what was made is kept.
    """
    identity = {**task.identity(), "num_rows": task.num_rows}

    def assemble(made: Sequence[MadeBlock]) -> OutputManifest:
        planned = planned_blocks(folder, task.num_rows, task.block_size)
        with NewOutput(folder, task.name, ending=_ENDING) as output:
            for block, target in zip(made, planned, strict=True):
                output.take(block.path, os.path.basename(target.path), crc32=block.report.crc32)
            blocks = [block.report.arrays_crc32 for block in made]
            return output.publish(identity, {task.unit: task.num_rows}, blocks=blocks, overwrite=overwrite)

    return make_blocks(
        task,
        f"{folder}.job",
        assemble,
        finished=lambda: finished_output(folder, task.name, identity, ending=_ENDING, overwrite=overwrite),
        pending=[os.path.join(folder, "")],
        runner=runner,
        restart=restart,
    )
