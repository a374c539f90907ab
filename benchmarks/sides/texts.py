"""The text that all tokenize: JSON lines in parts, one per process, and what their tokens amount to."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator

EOD = "<|endoftext|>"


def tokenizer_path(folder: str) -> str:
    return os.path.join(folder, "tokenizer.json")


def whole_path(folder: str, megabytes: int) -> str:
    return os.path.join(folder, f"text-{megabytes}.jsonl")


def part_paths(folder: str, megabytes: int) -> list[str]:
    """Returns the same text in as many files as there are processes to share it, in order."""
    parts = os.path.join(folder, f"text-{megabytes}-parts")
    return [os.path.join(parts, name) for name in sorted(os.listdir(parts))]


def text_megabytes(folder: str, megabytes: int) -> float:
    """Returns the exact size of the text, in UTF-8, without what JSON adds."""
    with open(os.path.join(folder, f"text-{megabytes}.size")) as file:
        return int(file.read()) / 1e6


def texts_of(path: str) -> Iterator[str]:
    """Yields texts that are not empty: of an empty one nothing is written, its end neither."""
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            if text := json.loads(line)["text"]:
                yield text


def digest(blocks: Iterable[bytes]) -> str:
    """Returns the hash of tokens, as unsigned 16-bit integers back to back."""
    state = hashlib.sha256()
    for block in blocks:
        state.update(block)
    return state.hexdigest()
