"""Values of options that are more than a number or a word."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 1} | {
    f"{letter}{kind}B": base ** (power + 1)
    for power, letter in enumerate("KMGT")
    for kind, base in (("", 1000), ("i", 1024))
}


def byte_count(text: str) -> int:
    """Returns the bytes that a text such as 500MB or 10GiB stands for.

    Raises:
        argparse.ArgumentTypeError: it is none, or less than one byte.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B)?", text)
    if match is None or (count := int(float(match[1]) * _UNITS[match[2] or ""])) < 1:
        message = f"expected a number of bytes such as 500MB or 10GiB, found {text!r}"
        raise argparse.ArgumentTypeError(message)
    return count


def count(text: str) -> int:
    """Returns a number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        message = f"expected a number from 1 on, found {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


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
