"""`tokenloom contamination`, the whole command: start-up, reading and decoding included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

from serve import Outcome, PeakOfTree, serve
from texts import text_megabytes, tokenizer_path, whole_path


def prepare(*, folder: str, megabytes: int, workers: int) -> Callable[[], Outcome]:
    prefix, items = os.path.join(folder, f"searched-{megabytes}"), os.path.join(folder, f"items-{megabytes}.jsonl")
    made = ["preprocess", whole_path(folder, megabytes), "--output-prefix", prefix, "--restart"]
    made += ["--tokenizer", tokenizer_path(folder)]
    search = ["contamination", items, "--data", f"{prefix}_text_document", "--threads", str(workers), "--json"]
    own = [sys.executable, "-m", "tokenloom"]
    subprocess.run([*own, *made], check=True, stdout=subprocess.DEVNULL)
    with open(items, encoding="utf-8") as lines:
        num_items = sum(1 for _ in lines)

    def round_() -> Outcome:
        with PeakOfTree() as tree:
            found = json.loads(subprocess.run([*own, *search], stdout=subprocess.PIPE).stdout)
        whole = [item for item in found["items"] if item["coverage"] == 1]
        if len(whole) < num_items // 10:
            raise ValueError(f"expected {num_items // 10} items that stand in the text, found {len(whole)}")
        return {"work": text_megabytes(folder, megabytes), "memory_bytes": tree.peak_bytes}

    return round_


if __name__ == "__main__":
    serve(prepare)
