"""Files of lines, and the blocks that are read of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tokenloom.inputs.cut import whole_file
from tokenloom.inputs.detect import inspect_input
from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.inputs.reading import open_slice

LINES = b"one\ntwo\n\nfour\n"


def blocks_of(path: Path, block_bytes: int = 6, **options: int) -> list[JsonLineBlock]:
    slice_ = whole_file(inspect_input(str(path), input_format="jsonl"))
    with closing(open_slice(slice_, block_bytes=block_bytes, **options)) as reader:
        return list(reader.blocks())


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
