"""`tokenloom retro build`: builds chunks, index and neighbors of a project."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tokenloom.cli.options import Written, split_weights
from tokenloom.cli.output import print_json, print_lines, table
from tokenloom.cli.preprocess import RunnerOptions, TokenizerOptions
from tokenloom.cli.run_options import SizeOptions
from tokenloom.numbers import items_of
from tokenloom_retro.settings import TASKS, RetroBuildSettings, RetroIndexSettings, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenloom_retro.output import OutputManifest


def _tasks(text: str) -> list[str]:
    return [item.text for item in items_of(text)]


_SETTINGS = Written(
    group="chunks, index and neighbors",
    fields={
        "sequence_length": Written(names=("--sequence-length", "--seq-length")),
        "split": Written(parse=split_weights),
        "index": Written(metavar="STRING"),
    },
)


@dataclass(frozen=True, kw_only=True)
class Options(SizeOptions, TokenizerOptions, RunnerOptions):
    """Build the missing parts of a project: cut documents into chunks (db-build), embed the chunks and build a vector
    index (index-build), and find the neighbors of all chunks of the training samples (query-neighbors). The same
    command resumes a stopped build, and machines that see the project folder can share the build.

    Attributes:
        project: the project folder, which is created if necessary.
        data: a weight before each prefix (or glob, or folder), or only one prefix; pairs outside of PROJECT/data are
            linked into that folder.
        overwrite: replace outputs that were made with other settings or data.
        embedder: wordllama, wordllama:DIMENSION or bert:PATH.
        tasks: tasks to run; tasks that these need also run (default db-build,index-build,query-neighbors).
        json: print one JSON object: project, data (a list with prefix and weight of each dataset), database (an object
            of counts), num_vectors (of the index, or null), neighbors (num_chunks by split, or null), seconds.
    """

    project: Annotated[str, Written(metavar="PROJECT", is_positional=True)]
    data: Annotated[tuple[str, ...], Written(names=("--data", "--data-path"), metavar="ENTRY")]
    overwrite: bool = False
    embedder: Annotated[str, Written(metavar="NAME")] = "wordllama"
    tasks: Annotated[Sequence[Task], Written(metavar="TASK,…", parse=_tasks)] = TASKS
    settings: Annotated[RetroIndexSettings, _SETTINGS]
    json: bool = False


def run(options: Options) -> int:
    from tokenloom_retro.build import build_retro
    from tokenloom_retro.project import RetroProject, linked_data

    started = time.monotonic()
    tokenizer, sizes = options.load_tokenizer(), tuple(options.wanted_sizes())
    data = linked_data(RetroProject(options.project), options.data)
    settings = RetroBuildSettings(**asdict(options.settings), data=data, sizes=sizes)
    made = build_retro(**options.job_arguments(build_retro, settings=settings, tokenizer=tokenizer))
    summary = _summary(options.project, settings.data, made, time.monotonic() - started)
    (print_json if options.json else _print)(summary)
    return 0


def _summary(project: str, data: Any, made: Mapping[str, OutputManifest], seconds: float) -> dict[str, Any]:
    index = made.get("index-build")
    return {
        "project": project,
        "data": [{"prefix": prefix, "weight": weight} for weight, prefix in data],
        "database": dict(made["db-build"].counts),
        "num_vectors": None if index is None else index.counts["vectors"],
        "neighbors": {
            task.removeprefix("query-neighbors "): {"num_chunks": manifest.counts["chunks"]}
            for task, manifest in made.items()
            if task.startswith("query-neighbors ")
        }
        or None,
        "seconds": seconds,
    }


def _print(summary: dict[str, Any]) -> None:
    numbers = {
        "documents": summary["database"]["num_docs"],
        "chunks": summary["database"]["num_chunks"],
        "chunks to retrieve": summary["database"]["num_chunks_train"],
        "chunks without text": summary["database"]["num_chunks_invalid"],
        "vectors in the index": summary["num_vectors"],
    }
    for split, each in (summary["neighbors"] or {}).items():
        numbers[f"{split} chunks with neighbors"] = each["num_chunks"]
    rows = [("datasets", ", ".join(each["prefix"] for each in summary["data"]))]
    rows += [(name, f"{number:,}") for name, number in numbers.items() if number is not None]
    print_lines(table((summary["project"], ""), [*rows, ("seconds", f"{summary['seconds']:.2f}")]))
