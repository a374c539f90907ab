"""Values of options that are more than a number or a word."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?", re.IGNORECASE)


def byte_count(text: str) -> int:
    """Returns a number of bytes such as `256MB`, `1.5GiB` or `4096`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        message = f"expected a size such as 256MB or 1.5GiB, found {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(float(match[1]) * _UNITS[(match[2] or "").upper()])


def shares(text: str) -> dict[str, float]:
    """Returns shares by name, such as `train=0.99,valid=0.01`."""
    named: dict[str, float] = {}
    for entry in text.split(","):
        name, equals, share = entry.strip().partition("=")
        try:
            number = float(share)
        except ValueError:
            equals = ""
        if not equals or name in named:
            message = f"expected names and shares such as train=0.99,valid=0.01, found {text!r}"
            raise argparse.ArgumentTypeError(message)
        named[name] = number
    return named
