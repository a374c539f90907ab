"""`tokenloom prove`: a proof that a document was, or was not, read at some steps of a run."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tokenloom.cli.check_proof import described, in_words
from tokenloom.cli.json_output import print_json
from tokenloom.cli.run_common import (
    add_batch_sizes,
    add_run_path,
    batch_sizes_of,
    commitment_path,
    lengths_of,
    lock_at,
    refuse_usage,
)
from tokenloom.cli.values import whole_number
from tokenloom.run.audit.commitment import read_commitment
from tokenloom.run.audit.proof import proof_bytes, prove
from tokenloom.run.audit.proof_check import check_proof
from tokenloom.run.denial_settings import parse_denied
from tokenloom.run.lock import RunLock
from tokenloom.storage.publishing import make_folder_of
from tokenloom.storage.resolve import open_pending


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "prove",
        description="Write a proof of where a document is read at a step of a run, or in a range of steps: for "
        "somebody who has the root that `run commit` printed, and none of the data. Reads the pair that the document "
        "lies in. A lock may be named instead of a run.toml. --json prints path, and what `check-proof --json` does.",
    )
    add_run_path(parser)
    parser.add_argument("--document", required=True, metavar="NAME:N", help="such as web:12345, as in denials")
    group = parser.add_argument_group("where")
    first = group.add_mutually_exclusive_group(required=True)
    first.add_argument("--step", type=whole_number, metavar="N", help="a step, from 0 on")
    first.add_argument("--position", type=whole_number, metavar="N", help="a position, from 0 on")
    last = group.add_mutually_exclusive_group()
    last.add_argument("--until-step", type=whole_number, metavar="N", help="from there on, up to the step before N")
    last.add_argument("--until-position", type=whole_number, metavar="N", help="or up to the position before N")
    add_batch_sizes(group)
    parser.add_argument("--commitment", metavar="FILE", help="what `run commit` wrote (default: beside the run)")
    parser.add_argument(
        "--tree-file", metavar="FILE", help="keep the hashes of the pair here: later proofs read one block of it"
    )
    parser.add_argument("--with-tokens", action="store_true", help="tell the tokens of the document, too")
    parser.add_argument("-o", "--output", default="proof.json", metavar="FILE", help="default: proof.json")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the proof, and prints what it proves."""
    lock = lock_at(options.run_path)
    commitment = read_commitment(options.commitment or commitment_path(options.run_path))
    source, document = parse_denied(options.document, [source.name for source in lock.sources])
    begin, end = _range_of(options, lock)
    proof = prove(
        lock,
        commitment,
        source=source,
        document=document,
        begin=begin,
        end=end,
        with_tokens=options.with_tokens,
        tree_file=options.tree_file,
    )
    proven = check_proof(proof, commitment.root)
    data = proof_bytes(proof)
    make_folder_of(options.output)
    with open_pending(options.output) as file:
        file.write(data)
    if options.json:
        print_json({"path": options.output, **described(proven)})
    else:
        print(in_words(proven))
        print(f"wrote {options.output}, {len(data):,} bytes", file=sys.stderr)
    return 0


def _range_of(options: argparse.Namespace, lock: RunLock) -> tuple[int, int]:
    sizes = batch_sizes_of(options, lengths_of(lock))
    if sizes is None and (options.step is not None or options.until_step is not None):
        refuse_usage(options, "a step needs --global-batch-size or --batch-size-schedule")
    begin: int = options.position
    if options.step is not None and sizes is not None:
        begin = sizes.position_of_step(options.step)
    end: int = begin + 1
    if options.until_position is not None:
        end = options.until_position
    elif options.until_step is not None and sizes is not None:
        end = sizes.position_of_step(options.until_step)
    elif options.step is not None and sizes is not None:
        end = sizes.position_of_step(options.step + 1)
    if begin >= end:
        refuse_usage(options, f"expected a range of positions, found those from {begin} up to before {end}")
    return begin, end
