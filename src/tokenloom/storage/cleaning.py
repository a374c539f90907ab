"""Clean-up after a failure, which must not take the place of what failed."""

from __future__ import annotations

import logging
import os

_LOGGER = logging.getLogger(__name__)


def remove_leftover(path: str) -> None:
    """Removes a file that nobody needs; what cannot be removed stays and is logged, so that the first error is told."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        _LOGGER.warning("cannot remove `%s`, which stays: %s", path, error.strerror or error)
