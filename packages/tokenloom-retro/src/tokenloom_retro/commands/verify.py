"""`tokenloom retro verify`: compares a project with its checksums and recomputes some of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tokenloom.cli.options import Written
from tokenloom.cli.output import print_json
from tokenloom.rendering.words import counted
from tokenloom.setting_types import Number


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare all files of a project with their checksums, and the recorded settings and data with the current ones.
    Then recompute some blocks (chunks, vectors, codes, neighbors) and compare them bit for bit. Nothing is written.
    Exits with 1 if anything differs.

    Attributes:
        project: the project folder.
        task_validate: share of the blocks of each task to recompute, at least one block (default 0.01; 1 for all).
        seed: seed for choosing the blocks (default 0).
        tokenizer: tokenizer of the data (default: the recorded one).
        embedder: embedder of the build (default: the recorded one).
        json: print one JSON object: project, ok, and problems, a list of sentences.
    """

    project: Annotated[str, Written(metavar="PROJECT", is_positional=True)]
    task_validate: Annotated[float, Written(metavar="SHARE")] = 0.01
    seed: Number = 0
    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None
    embedder: Annotated[str | None, Written(metavar="NAME")] = None
    json: bool = False


def run(options: Options) -> int:
    """Prints the problems; returns 1 if there are any."""
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
    ok = f"ok: all files and {share} recomputed blocks are unchanged"
    print(f"{options.project}: {counted(len(problems), 'problem') if problems else ok}")
    return 1 if problems else 0
