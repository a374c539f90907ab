"""`tokenloom verify-resume`: kill and resume any loader, and compare what it gives."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from typing import Any

from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.stopping import say
from tokenloom.cli.values import count, number, whole_number, words
from tokenloom.errors import ConformanceError
from tokenloom_check.fingerprints import WAYS
from tokenloom_check.resume import ResumeSettings, verify_resume
from tokenloom_check.resume_factory import is_function_name
from tokenloom_check.resume_runners import Processes, Program, Runner
from tokenloom_check.resume_streams import ORDERS

_DESCRIPTION = """\
Kill and resume a loader at many points, with other numbers of ranks, and compare all that it gives with an unbroken
reading, by the content of samples. Exits with 1 if samples are repeated, missing, or in another order.

LOADER is a function that makes the loader of a rank, any iterable of batches: loaders.py:make_loader or
package.module:make_loader. It takes, by name, what it needs of rank, world_size, state (of this rank; None at the
start), states (of all ranks), consumed (samples of all ranks) and num_batches (of this rank). Or LOADER is a training
program, which is started with RANK, WORLD_SIZE and TOKENLOOM_RESUME_FOLDER (for its checkpoints), and calls
tokenloom_check.record_batch(batch) with every batch and record_checkpoint() after every checkpoint.
"""


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser("verify-resume", description=_DESCRIPTION)
    parser.add_argument("loader", metavar="LOADER", help="FILE.py:FUNCTION, MODULE:FUNCTION or a program")
    parser.add_argument(
        "--arguments", type=words, default=[], metavar="TEXT", help='of the program, such as --arguments="--lr 1"'
    )
    tried = parser.add_argument_group("what is tried")
    tried.add_argument("--batches", type=count, default=24, metavar="N", help="global batches to compare (default 24)")
    tried.add_argument(
        "--kill-at",
        type=whole_number,
        nargs="+",
        default=[],
        metavar="N",
        help="batches before a kill (default: none, all but one, ends of epochs, some at random)",
    )
    tried.add_argument(
        "--world-sizes",
        type=_world_sizes,
        default=[(1, 1), (2, 2)],
        metavar="LIST",
        help='ranks, before:after a kill where they change, such as "1,2:4" (default 1,2)',
    )
    tried.add_argument("--epochs", type=count, default=1, metavar="N", help="iterations of a loader (default 1)")
    tried.add_argument("--seed", type=whole_number, metavar="N", help="of the points that are random; it is printed")
    compared = parser.add_argument_group("how it is compared")
    compared.add_argument(
        "--order",
        choices=ORDERS,
        default="batch",
        help="what order must be kept: of samples, rank after rank; of global batches (default); none",
    )
    compared.add_argument(
        "--samples",
        type=_samples,
        default="auto",
        metavar="WAY",
        help="samples of a batch: its rows, a list of them, one, auto (default), or FILE.py:FUNCTION that returns them",
    )
    compared.add_argument(
        "--state-of",
        type=_function_name,
        metavar="FUNCTION",
        help="takes the state, of loader and number of batches (default: loader.state_dict())",
    )
    processes = parser.add_argument_group("processes")
    processes.add_argument(
        "--timeout", type=number, default=60.0, metavar="S", help="seconds that a rank may give nothing (default 60)"
    )
    processes.add_argument(
        "--fresh", action="store_true", help="import the factory in every process, instead of forking one that has"
    )
    add_json(parser, "name, ok, seed, num_batches, order, epochs, left_out, cases; or name, ok, seed, error")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints a table and what is wrong; 1 if anything is."""
    is_factory = is_function_name(options.loader)
    _check_usage(options, is_factory=is_factory)
    settings = ResumeSettings(
        num_batches=options.batches,
        kill_at=tuple(sorted(set(options.kill_at))),
        world_sizes=tuple(options.world_sizes),
        epochs=options.epochs,
        order=options.order,
        seed=secrets.randbelow(2**32) if options.seed is None else options.seed,
    )
    if options.seed is None:
        say(f"seed {settings.seed}")
    runner: Runner
    if is_factory:
        runner = Processes(
            options.loader,
            state_of=options.state_of,
            samples=options.samples,
            timeout=options.timeout,
            fresh=options.fresh,
        )
    else:
        command = [sys.executable] if options.loader.endswith(".py") else []
        runner = Program([*command, os.path.abspath(options.loader), *options.arguments], timeout=options.timeout)
    try:
        report = verify_resume(runner, options.loader, settings)
    except ConformanceError as error:
        if not options.json:
            raise
        print_json({"name": options.loader, "ok": False, "seed": settings.seed, "error": str(error)})
        return 1
    if options.json:
        print_json(report.as_json())
    else:
        print(report)
    return 0 if report.ok else 1


def _check_usage(options: argparse.Namespace, *, is_factory: bool) -> None:
    """Stops with wrong usage where options contradict each other."""
    wrong: str | None = None
    source = options.loader.rpartition(":")[0] if is_factory else options.loader
    if (not is_factory or source.endswith(".py")) and not os.path.isfile(source):
        wrong = f"expected FILE.py:FUNCTION, MODULE:FUNCTION or a program as LOADER, found no file {source}"
    elif is_factory and options.arguments:
        wrong = "expected --arguments for a program only: a factory takes what it needs by name"
    elif not is_factory and (options.state_of or options.fresh or options.samples != "auto" or options.epochs != 1):
        wrong = "expected --state-of, --samples, --epochs and --fresh for a factory only: the program decides these"
    elif options.timeout <= 0:
        wrong = f"expected seconds above 0 as --timeout, found {options.timeout:g}"
    elif late := [point for point in options.kill_at if point >= options.batches]:
        wrong = f"expected --kill-at below --batches {options.batches}, found {late[0]}"
    if wrong is not None:
        options.parser.error(wrong)


def _world_sizes(text: str) -> list[tuple[int, int]]:
    """Returns pairs such as (1, 1) and (2, 4) of `1,2:4`."""
    pairs = []
    for item in text.split(","):
        before, colon, after = item.strip().partition(":")
        size = count(before)
        pairs.append((size, count(after) if colon else size))
    return pairs


def _samples(text: str) -> str:
    return text if text in WAYS else _function_name(text)


def _function_name(text: str) -> str:
    if not is_function_name(text):
        message = f"expected FILE.py:FUNCTION or MODULE:FUNCTION, found {text!r}"
        raise argparse.ArgumentTypeError(message)
    return text
