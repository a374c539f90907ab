"""Whether the compiled module gives what it must on this machine: a few literal results, each of other kernels.

That it is there, loads and is of this version, `import tokenloom` has seen to (`supported.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np

from tokenloom.doctor.check import Asked, Finding, Verdict
from tokenloom.kernels.blending import blending_counts
from tokenloom.kernels.checks import crc32
from tokenloom.kernels.packs import next_fit
from tokenloom.kernels.permutation import Key, Permutation

_MODULE = "tokenloom._native"


def check_native(_: Asked) -> Iterator[Finding]:
    """Yields whether it computes what it must."""
    path = getattr(sys.modules.get(_MODULE), "__file__", None) or "built in"
    failed = [name for name, is_right in _TESTS.items() if not is_right()]
    facts = {"path": path, "num_tests": len(_TESTS), "failed": failed}
    if not failed:
        yield Finding(subject="native", text=f"loads, and {len(_TESTS)} results are right; {path}", facts=facts)
        return
    text = f"computes something else than it must: {', '.join(failed)}; {path}"
    hint = "build it on this machine: `pip install --force-reinstall --no-deps --no-binary tokenloom tokenloom`"
    yield Finding(subject="native", verdict=Verdict.problem, text=text, hint=hint, facts=facts)


def _checksums() -> bool:
    return crc32(b"123456789") == 0xCBF43926  # the check value that CRC-32 is published with


def _permutations() -> bool:
    permutation, places = Permutation(5000, Key(1, 2)), np.arange(5000)
    things = permutation.forward(places)
    return bool(np.array_equal(permutation.inverse(things), places)) and not np.array_equal(things, places)


def _blends() -> bool:
    found: list[int] = blending_counts(np.array([0.5, 0.25, 0.25]), 8).tolist()
    return found == [4, 2, 2]


def _packs() -> bool:
    starts, filled = next_fit(np.array([3, 3, 2], dtype=np.int32), capacity=6, filled=-1)
    return (starts.tolist(), filled) == ([0, 2], 2)


_TESTS: dict[str, Callable[[], bool]] = {
    "checksums": _checksums,
    "permutations": _permutations,
    "blends": _blends,
    "packs": _packs,
}
