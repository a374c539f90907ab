"""Who called: the line of a user's program that a warning is about."""

from __future__ import annotations

import sys


def level_outside() -> int:
    """Returns how many calls lie between the caller and the first line outside of this package: a `stacklevel`."""
    level, frame = 1, sys._getframe(1)
    package = __name__.partition(".")[0]
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == package:
        level, frame = level + 1, frame.f_back
    return level
