"""`tokenloom preprocess`, the whole command: start-up, imports and reading included."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from serve import Outcome, PeakOfTree, serve
from texts import digest, text_megabytes, tokenizer_path, whole_path


def prepare(*, folder: str, megabytes: int, workers: int) -> Callable[[], Outcome]:
    output = os.path.join(folder, f"tokenised-{megabytes}-{workers}")
    command = [sys.executable, "-m", "tokenloom", "preprocess", whole_path(folder, megabytes), "--append-eod"]
    command += [
        "--output-prefix",
        output,
        "--tokenizer",
        tokenizer_path(folder),
        "--workers",
        str(workers),
        "--restart",
    ]

    def round_() -> Outcome:
        with PeakOfTree() as tree:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        work = text_megabytes(folder, megabytes)
        tokens = Path(f"{output}_text_document.bin")
        return {"work": work, "memory_bytes": tree.peak_bytes, "digest": lambda: digest([tokens.read_bytes()])}

    return round_


if __name__ == "__main__":
    serve(prepare)
