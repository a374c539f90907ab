"""Whether the compiled module loads, and gives what it must: a few literal results, each of another family of kernels.

Everything of it is imported when it is asked for: a machine that cannot load it is what this check is for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np

from tokenloom.doctor.check import Asked, Finding, Verdict

_MODULE = "tokenloom._native"
_REINSTALL = "install it again for this Python and machine: `pip install --force-reinstall --no-deps tokenloom`"


def check_native(_: Asked) -> Iterator[Finding]:
    """Yields whether it loads, and whether it computes what it must."""
    try:
        failed = [name for name, is_right in _TESTS.items() if not is_right()]
    except ImportError as error:
        text = f"cannot be loaded: {error}"
        yield Finding(subject="native", verdict=Verdict.problem, text=text, hint=_REINSTALL)
        return
    path = getattr(sys.modules.get(_MODULE), "__file__", None) or "built in"
    facts = {"path": path, "num_tests": len(_TESTS), "failed": failed}
    if failed:
        text = f"computes something else than it must: {', '.join(failed)}; {path}"
        yield Finding(subject="native", verdict=Verdict.problem, text=text, hint=_REINSTALL, facts=facts)
    else:
        yield Finding(subject="native", text=f"loads, and {len(_TESTS)} results are right; {path}", facts=facts)


def _checksums() -> bool:
    from tokenloom.kernels.checks import crc32

    return crc32(b"123456789") == 0xCBF43926  # the check value that CRC-32 is published with


def _permutations() -> bool:
    from tokenloom.kernels.permutation import Key, Permutation

    permutation, places = Permutation(5000, Key(1, 2)), np.arange(5000)
    things = permutation.forward(places)
    return bool(np.array_equal(permutation.inverse(things), places)) and not np.array_equal(things, places)


def _blends() -> bool:
    from tokenloom.kernels.blending import blending_counts

    found: list[int] = blending_counts(np.array([0.5, 0.25, 0.25]), 8).tolist()
    return found == [4, 2, 2]


def _packs() -> bool:
    from tokenloom.kernels.packs import next_fit

    starts, filled = next_fit(np.array([3, 3, 2], dtype=np.int32), capacity=6, filled=-1)
    return (starts.tolist(), filled) == ([0, 2], 2)


_TESTS: dict[str, Callable[[], bool]] = {
    "checksums": _checksums,
    "permutations": _permutations,
    "blends": _blends,
    "packs": _packs,
}
