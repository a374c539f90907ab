"""`tokenloom verify-resume`: kills and resumes a loader, and compares its samples with an uninterrupted reading."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from tokenloom.cli.options import JsonOption, Written, count, refuse_usage
from tokenloom.cli.output import Answer, say
from tokenloom.errors import ConformanceError
from tokenloom_check.resume import ORDERS, ResumeSettings, verify_resume
from tokenloom_check.resume_readings import FactoryProcesses, Program, Runner, is_function_name


def _world_sizes(text: str) -> tuple[tuple[int, int], ...]:
    """Parses `1,2:4` to ((1, 1), (2, 4))."""
    pairs = (item.strip().partition(":") for item in text.split(","))
    return tuple((count(before), count(after if colon else before)) for before, colon, after in pairs)


_CASES = {
    "num_batches": Written(names=("--batches",), metavar="N"),
    "world_sizes": Written(metavar="LIST", parse=_world_sizes),
    "order": Written(choices=ORDERS),
}
_COMPARISON = "comparison"


@dataclass(frozen=True, kw_only=True)
class Options(JsonOption):
    """Kill and resume a loader at many points and with different numbers of ranks, and compare the content of all its
    samples with an uninterrupted reading. Exits with 1 if samples are repeated, missing or out of order.

    LOADER names a function that returns the loader of a rank, any iterable of batches: loaders.py:make_loader or
    package.module:make_loader. Its parameters are any of rank, world_size, state (of this rank; None at the start),
    states (of all ranks), consumed (number of samples, all ranks) and num_batches (of this rank). LOADER may also be a
    training program: it is started with RANK, WORLD_SIZE and TOKENLOOM_RESUME_FOLDER (the folder for its checkpoints),
    and must call tokenloom_check.record_batch(batch) with every batch and record_checkpoint() after every checkpoint.

    Attributes:
        loader: FILE.py:FUNCTION, MODULE:FUNCTION or a program.
        arguments: arguments of the program, such as --arguments="--lr 1".
        settings: the cases to try.
        samples: FILE.py:FUNCTION that returns the samples of a batch; auto (default) takes the rows of its columns, or
            the items of a list.
        state_of: function that takes a loader and its number of batches and returns the state (default:
            loader.state_dict()).
        timeout: maximum seconds between two batches of a rank.
        json: print one JSON object: name, ok, seed, num_batches, order, epochs, left_out, and cases, a list of objects;
            or only name, ok, seed and error if the loader fails without a kill.
    """

    loader: Annotated[str, Written(metavar="LOADER", is_positional=True)]
    arguments: Annotated[Sequence[str], Written(metavar="TEXT", parse=shlex.split)] = ()
    settings: Annotated[ResumeSettings, Written(group="cases", fields=_CASES)] = field(default_factory=ResumeSettings)
    samples: Annotated[str, Written(metavar="FUNCTION", group=_COMPARISON)] = "auto"
    state_of: Annotated[str | None, Written(metavar="FUNCTION", group=_COMPARISON)] = None
    timeout: Annotated[float, Written(metavar="S")] = 60.0

    def __post_init__(self) -> None:
        is_factory = is_function_name(self.loader)
        if not is_factory and not os.path.isfile(self.loader):
            refuse_usage(f"no file {self.loader}: LOADER is FILE.py:FUNCTION, MODULE:FUNCTION or a program")
        if is_factory and self.arguments:
            refuse_usage("--arguments is for programs only")
        if not is_factory and (self.state_of or self.samples != "auto" or self.settings.epochs != 1):
            refuse_usage("--state-of, --samples and --epochs are for factories only")


def run(options: Options) -> Answer:
    settings = options.settings
    if settings.seed is None:
        settings = replace(settings, seed=secrets.randbelow(2**32))
        say(f"seed {settings.seed}")
    runner: Runner
    if is_function_name(options.loader):
        runner = FactoryProcesses(
            options.loader, state_of=options.state_of, samples=options.samples, timeout=options.timeout
        )
    else:
        command = [sys.executable] if options.loader.endswith(".py") else []
        runner = Program([*command, os.path.abspath(options.loader), *options.arguments], timeout=options.timeout)
    try:
        report = verify_resume(runner, options.loader, settings)
    except ConformanceError as error:
        if not options.json:
            raise
        failed = {"name": options.loader, "ok": False, "seed": settings.seed, "error": str(error)}
        return Answer(failed, "", status=1)
    return Answer(report.as_json(), str(report), status=0 if report.ok else 1)
