"""Numbers of a training loop as lines of JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from tokenloom.errors import ConfigError


class JsonLinesWriter:
    """Appends numbers of a training loop to a file, a line of JSON for each call.

    `tokenloom report --statistics FILE` draws them over the steps, `tokenloom explore --follow FILE` while they are
    written. One rank writes a file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write = JsonLinesWriter(f"{folder}/train.jsonl")
        ...     write(unix_seconds=0, step=1, loss={"web": 2.5, "code": float("nan")})
        ...     Path(folder, "train.jsonl").read_text()
        '{"unix_seconds": 0, "step": 1, "loss": {"web": 2.5, "code": "nan"}}\\n'

    Args:
        path: path of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)

    def __call__(self, **values: Any) -> None:
        """Writes one line.

        Args:
            values: what it says: `step`, and numbers, arrays or tensors of one number, text, dataclasses such as
                `ThreadLoader.wait`, and mappings of these by name. `unix_seconds` is the time of the call unless given.
        """
        line = {"unix_seconds": time.time()} | {name: _plain(value, name) for name, value in values.items()}
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, allow_nan=False) + "\n")


def _plain(value: Any, name: str) -> Any:
    """Returns a value as JSON has it; NaN and infinities as text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each, f"{name}[{key!r}]") for key, each in value.items()}
    if getattr(value, "size", None) == 1 or (hasattr(value, "numel") and value.numel() == 1):
        return _plain(value.item(), name)
    message = f"cannot write `{name}`: expected a number, text, a dataclass or a mapping, got {type(value).__name__}"
    raise ConfigError(message, hint="write one number for each name, such as `loss={'web': 2.5}`")
