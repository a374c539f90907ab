"""`tokenloom retro verify`: whether a project is what was made."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.values import number, whole_number
from tokenloom.rendering.words import counted


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "verify",
        description="Compare all files of a project with their checksums, and what it was made of with what is there "
        "now; then make a part of its blocks again (chunks, vectors, codes, neighbors) and compare these bit for bit. "
        "Nothing is written. The exit status is 1 if anything differs.",
    )
    parser.add_argument("project", metavar="PROJECT", help="the project folder")
    parser.add_argument(
        "--task-validate",
        type=number,
        default=0.01,
        metavar="SHARE",
        help="share of the blocks of each task that is made again, at least one block (default 0.01; 1 for all)",
    )
    parser.add_argument("--seed", type=whole_number, default=0, help="decides which blocks (default 0)")
    parser.add_argument("--tokenizer", metavar="PATH", help="tokenizer of the data (default: what the project names)")
    parser.add_argument("--embedder", metavar="NAME", help="what it was made with (default: what the project names)")
    add_json(parser, "project, ok, problems")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints what is wrong, and returns 1 if anything is."""
    from tokenloom_retro.project import RetroProject
    from tokenloom_retro.settings import embedder_of_project, recorded_settings, tokenizer_of_project
    from tokenloom_retro.verify import verify_retro

    project = RetroProject(options.project)
    recorded = recorded_settings(project)
    problems = verify_retro(
        options.project,
        recorded.build,
        tokenizer=tokenizer_of_project(project, recorded, options.tokenizer),
        embedder=embedder_of_project(project, recorded, options.embedder),
        fraction=options.task_validate,
        seed=options.seed,
    )
    if options.json:
        print_json({"project": options.project, "ok": not problems, "problems": problems})
        return 1 if problems else 0
    for problem in problems:
        print(f"{options.project}: {problem}")
    share = "some" if options.task_validate < 1 else "all"
    ok = f"ok: all files, and {share} blocks that were made again, are what they were"
    print(f"{options.project}: {counted(len(problems), 'problem') if problems else ok}")
    return 1 if problems else 0
