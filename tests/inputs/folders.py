"""Folders of input files, and what is found in them."""

from __future__ import annotations

import os
from pathlib import Path

from tokenloom.inputs.find import FoundInputs

LINE = b'{"text": "a"}\n'


def write(folder: Path, *names: str, data: bytes = LINE) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def found_in(folder: Path, found: FoundInputs) -> tuple[list[str], list[str]]:
    """Returns the paths below a folder."""
    below = [str(os.path.relpath(file.path, folder)) for file in found.files]
    return below, [str(os.path.relpath(path, folder)) for path in found.ignored]
