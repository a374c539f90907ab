"""`tokenloom run commit`: a hash over all that a run reads, which proofs lead to."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tokenloom.cli.json_output import print_json
from tokenloom.cli.run_common import add_run_path, commitment_path, lock_at
from tokenloom.rendering.words import counted
from tokenloom.run.audit.commitment import check_committable, commit, write_commitment
from tokenloom.run.walk_sizes import are_packs


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "commit",
        description="Print the root of a run: a hash over its order, seed, stages, denials and every token of its "
        "data, wherever these lie. Whoever has it can be shown later that a document was or was not read at a step "
        "(`tokenloom prove`), without the data. Reads all data; refuses what is not as it was locked. A lock may be "
        "named instead of a run.toml. --json prints path, root, run and num_pairs.",
    )
    add_run_path(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to write the commitment (default: beside it, *.commitment.json)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the commitment, and prints its root."""
    lock = lock_at(options.run_path)
    check_committable(lock)
    path = commitment_path(options.run_path) if options.output is None else options.output
    commitment = commit(lock)
    write_commitment(path, commitment)
    if are_packs(lock):
        print("samples are packs: what a run reads is committed to, but no document can be proven", file=sys.stderr)
    if options.json:
        facts = {"path": path, "root": commitment.root, "run": commitment.run, "num_pairs": len(commitment.pairs)}
        print_json(facts)
    else:
        print(f"{commitment.root}  {path}")
        print(f"run {commitment.run}: {counted(len(commitment.pairs), 'pair')}")
    return 0
