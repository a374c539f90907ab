"""`megatron.training.datasets.utils`: what several datasets of the trainer share."""

from __future__ import annotations

import json
import os
from typing import Any

__all__ = ["load_json_arg"]


def load_json_arg(spec: str | None) -> Any:
    """Returns what JSON says, which is given as such or as the path of a file; None for None.

    Example:
        >>> load_json_arg('{"mode": "distribution"}')
        {'mode': 'distribution'}
    """
    if spec is None:
        return None
    if os.path.isfile(spec):
        with open(spec, encoding="utf-8") as stream:
            return json.load(stream)
    return json.loads(spec)
