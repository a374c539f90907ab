"""Certificates: the code points that `gigatoken` puts in other classes than a tokenizer's own library.

Libraries know different versions of Unicode, so they cut a text with a new letter at other places. These classes do not
depend on the vocabulary: a sweep of all code points (`tokenloom.tokenizers.sweep`) finds the ranges that differ, once
per pair of library versions and per rules that cut texts, and `certificates.json` holds them.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLE = Path(__file__).with_name("certificates.json")
FAST_LIBRARY = "gigatoken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The result of a sweep.

    Attributes:
        name: name of the rules.
        libraries: the two libraries, each as `name version`.
        unicode: the version of Unicode that each of them knows, in the same order.
        rules: the normalisers and expressions that cut a text, as `FastEncodable.cutting_rules` words them.
        ranges: code points [start, stop) that the libraries treat differently, rising.
        identity: first digits of the hash of all of that.
    """

    name: str
    libraries: tuple[str, str]
    unicode: tuple[str, str]
    rules: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]
    identity: str = field(init=False)

    def __post_init__(self) -> None:
        held = json.dumps([self.libraries, self.rules, self.ranges]).encode()
        object.__setattr__(self, "identity", hashlib.sha256(held).hexdigest()[:12])

    @property
    def num_code_points(self) -> int:
        """How many code points differ."""
        return sum(stop - start for start, stop in self.ranges)

    def as_array(self) -> NDArray[np.uint32]:
        """Returns the ranges: uint32[num_ranges, 2], a copy."""
        return np.array(self.ranges, dtype=np.uint32).reshape(-1, 2)


def installed_libraries(truth: str) -> tuple[str, str]:
    """Returns `gigatoken` and the library of a truth, each with its version."""
    return _with_version(FAST_LIBRARY), _with_version(truth)


def _with_version(library: str) -> str:
    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return f"{library} of no known version"


def find_certificate(libraries: tuple[str, str], rules: Sequence[str]) -> Certificate | None:
    """Returns the certificate for two libraries and the rules that cut texts, None if there is none."""
    found = (each for each in read_table() if (each.libraries, each.rules) == (libraries, tuple(rules)))
    return next(found, None)


@functools.cache
def read_table() -> tuple[Certificate, ...]:
    """Returns the certificates that tokenloom ships."""
    return tuple(_from_row(row) for row in json.loads(TABLE.read_text(encoding="utf-8")))


def write_table(certificates: Sequence[Certificate]) -> None:
    """Writes the certificates that tokenloom ships."""
    rows = [json.dumps(_to_row(each)) for each in certificates]
    TABLE.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    read_table.cache_clear()


def _from_row(row: dict[str, Any]) -> Certificate:
    bounds = [[int(bound, 16) for bound in each.split("-")] for each in row["ranges"]]
    return Certificate(
        name=row["name"],
        libraries=tuple(row["libraries"]),
        unicode=tuple(row["unicode"]),
        rules=tuple(row["rules"]),
        ranges=tuple((each[0], each[-1] + 1) for each in bounds),
    )


def _to_row(certificate: Certificate) -> dict[str, Any]:
    ends = [(start, stop - 1) for start, stop in certificate.ranges]
    return {
        "name": certificate.name,
        "libraries": certificate.libraries,
        "unicode": certificate.unicode,
        "rules": certificate.rules,
        "ranges": [f"{first:X}" if first == last else f"{first:X}-{last:X}" for first, last in ends],
    }
