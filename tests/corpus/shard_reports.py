"""Reports of shards that nobody worked on."""

import os
from pathlib import Path
from typing import Any

from tokenloom.preprocess.shard import ShardReport

EXAMPLE: dict[str, Any] = {
    "slice_rows": (5,),
    "num_documents": 3,
    "num_blank_lines": 1,
    "num_rejected": 1,
    "num_text_bytes": 100,
    "num_tokens": 40,
    "arrays": {},
    "numbers": {},
    "engine": "numpy",
    "engine_reason": "",
    "seconds": 10.0,
    "boot_id": "elsewhere",
}


def key_of(number: int) -> str:
    return f"{number:024x}"


def write_report(folder: Path, number: int, *, written: float, **changed: Any) -> None:
    """Puts the report of a shard into the folder of a job, as if it had been written at a time."""
    path = folder / f"{key_of(number)}.json"
    path.write_bytes(ShardReport(key=key_of(number), **EXAMPLE | changed).to_json())
    os.utime(path, (written, written))
