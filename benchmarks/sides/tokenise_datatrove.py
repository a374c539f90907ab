"""datatrove's pipeline: its reader of JSON lines and its tokenizer, one task and one process per part of the text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from serve import Outcome, PeakOfTree, serve
from texts import EOD, digest, part_paths, text_megabytes, tokenizer_path


def prepare(*, folder: str, megabytes: int, workers: int) -> Callable[[], Outcome]:
    parts = part_paths(folder, megabytes)
    output = os.path.join(folder, "datatrove")

    def round_() -> Outcome:
        shutil.rmtree(output, ignore_errors=True)
        pipeline = [
            JsonlReader(os.path.dirname(parts[0])),
            DocumentTokenizer(
                f"{output}/tokens",
                tokenizer_name_or_path=tokenizer_path(folder),
                eos_token=EOD,
                shuffle_documents=False,
            ),
        ]
        with PeakOfTree() as tree:
            LocalPipelineExecutor(pipeline, tasks=workers, workers=workers, logging_dir=f"{output}/logs").run()
        files = sorted(Path(output, "tokens").glob("*.ds"))
        return {
            "work": text_megabytes(folder, megabytes),
            "memory_bytes": tree.peak_bytes,
            "digest": lambda: digest(file.read_bytes() for file in files),
        }

    return round_


if __name__ == "__main__":
    serve(prepare)
