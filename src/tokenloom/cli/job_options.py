"""The options of all commands that do a job of shards, and what they stand for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tokenloom.cli.values import byte_count, number, signed_number
from tokenloom.inputs.limits import LEAST_SHARD_BYTES
from tokenloom.numbers import bytes_text
from tokenloom.preprocess.settings import RECORD_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from tokenloom.preprocess.sharded import Runner


def add_job_options(
    parser: argparse.ArgumentParser, *, threads: int, shard_bytes: int | None, shards: str = ""
) -> argparse._ArgumentGroup:
    """Declares how a job is done; `job_of` reads it.

    Args:
        parser: parser of the command.
        threads: number of threads that one process feeds where nobody says how many.
        shard_bytes: size where nobody says; None if it depends on the input.
        shards: how it depends on it, in words.
    """
    group = add_runner_options(parser, threads=threads)
    group.add_argument(
        "--shard-size",
        type=byte_count,
        default=shard_bytes,
        metavar="SIZE",
        help=f"bytes of input per shard, {bytes_text(LEAST_SHARD_BYTES)} at least (default "
        f"{shards if shard_bytes is None else bytes_text(shard_bytes)})",
    )
    group.add_argument("--work-folder", metavar="FOLDER", help="folder of what is not finished (default PREFIX.job)")
    return group


def add_record_timeout(group: argparse._ArgumentGroup) -> None:
    """Declares how long a record may take."""
    group.add_argument(
        "--record-timeout",
        type=number,
        default=RECORD_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="most time for the records that a thread takes at once, and for one alone; one that takes longer is bad "
        "(default %(default)g)",
    )


def add_runner_options(parser: argparse.ArgumentParser, *, threads: int) -> argparse._ArgumentGroup:
    """Declares by whom a job is done; `runner_options_of` reads it.

    Args:
        parser: parser of the command.
        threads: number of threads that one process feeds where nobody says how many.
    """
    group = parser.add_argument_group("how the work is done")
    group.add_argument(
        "--processes",
        type=signed_number,
        metavar="N",
        help=f"number of processes on this machine (default one per {threads} processors)",
    )
    group.add_argument(
        "--runner",
        choices=("local", "ray"),
        default="local",
        help="what does the work: this machine, or a Ray cluster (default local)",
    )
    group.add_argument(
        "--ray-address", metavar="ADDRESS", help="address of the cluster (default: one that runs here, or a new one)"
    )
    group.add_argument("--restart", action="store_true", help="drop what an earlier run did")
    return group


def job_of(options: argparse.Namespace) -> dict[str, Any]:
    """Returns what `add_job_options` and `add_tokenising_options` ask for, but for the size of shards."""
    return {
        **runner_options_of(options),
        "work_folder": options.work_folder,
        "overwrite": options.overwrite,
    }


def runner_options_of(options: argparse.Namespace) -> dict[str, Any]:
    """Returns what `add_runner_options` and `--workers` ask for."""
    return {
        "num_processes": options.processes,
        "num_workers": options.workers,
        "runner": _runner(options),
        "restart": options.restart,
    }


def _runner(options: argparse.Namespace) -> Runner | None:
    if options.runner == "local":
        return None
    from tokenloom.preprocess.ray_runner import RayRunner

    return RayRunner(address=options.ray_address, num_workers=options.workers or 1)
