"""Runs one target under libFuzzer, guided by the coverage of its Python and of the extension: `python -m fuzz.engine`.

The extension is one with clang's counters and sanitizers, see `sanitize/build guided`; `fuzz.run` sets all of that up.
"""

from __future__ import annotations

import sys
import warnings

import atheris

INSTRUMENTED = ["tokenloom", "fuzz.targets", "tests.reference"]


def main() -> None:
    """Fuzzes the target that the first argument names; the others are libFuzzer's."""
    name = sys.argv.pop(1)
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
        from fuzz.targets import load

        target = load(name)
    atheris.Setup(sys.argv, target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
