"""Threads that read while a process forks: no child finds a lock held by a thread that it does not have."""

from __future__ import annotations

import concurrent.futures.thread
import functools
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

# A fork takes locks from the one that was registered last to the first. These two modules have their own, which may be
# taken under ours, so theirs are registered before.
_BEFORE_OURS = (logging, concurrent.futures.thread)

READING_LOCK = threading.RLock()
"""Held over a fork, so that children find what it protects complete: for brief work on the way to a sample.

One lock for all, which may be taken again by who holds it: several would need an order in which a fork takes them.
"""

os.register_at_fork(
    before=READING_LOCK.acquire, after_in_parent=READING_LOCK.release, after_in_child=READING_LOCK.release
)


if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` of Python 3.12: the older one holds one lock for all objects of a class.

        Several threads at once may compute the value; each gets its own, and the last one is kept.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
