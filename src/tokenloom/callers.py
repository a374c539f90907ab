"""Who called: the line of a user's program that a warning is about."""

from __future__ import annotations

import sys


def level_outside() -> int:
    """Returns how many calls lie between the caller and the first line outside of this package: a `stacklevel`.

    What `contextlib` calls on the way counts as ours.
    """
    level, frame = 1, sys._getframe(1)
    ours = (__name__.partition(".")[0], "contextlib")
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ours:
        level, frame = level + 1, frame.f_back
    return level
