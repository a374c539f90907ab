"""Locks across forks: no child finds a lock held by a thread that it does not have."""

from __future__ import annotations

import concurrent.futures.thread
import functools
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

# A fork takes locks in reverse order of registration. These two modules have locks that may be taken under ours, so
# they register first.
_BEFORE_OURS = (logging, concurrent.futures.thread)

READING_LOCK = threading.RLock()
"""A lock for brief work on the way to a sample, held over a fork, so that children find that work complete.

It is one reentrant lock, since several would need an order in which a fork takes them.
"""

os.register_at_fork(
    before=READING_LOCK.acquire, after_in_parent=READING_LOCK.release, after_in_child=READING_LOCK.release
)


if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` as of Python 3.12; before, all objects of a class share one lock.

        Several threads may compute the value at once; the last one is kept.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
