"""A lock that is safe across `os.fork`: in the child process, no thread of the parent process holds the lock."""

from __future__ import annotations

import concurrent.futures.thread
import functools
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

# A fork acquires locks in reverse order of registration. Code that holds `READING_LOCK` may acquire the locks of these
# two modules, so these modules must register their locks first.
_IMPORTED_FIRST = (logging, concurrent.futures.thread)

READING_LOCK = threading.RLock()
"""A reentrant lock for short critical sections while reading a sample; `os.fork` waits until no thread holds the lock.

There is only one such lock, because several locks would need a fixed order of acquisition.
"""

os.register_at_fork(
    before=READING_LOCK.acquire, after_in_parent=READING_LOCK.release, after_in_child=READING_LOCK.release
)


if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` without a lock, as in Python 3.12; Python 3.11 has one lock for all instances.

        If several threads compute the value at the same time, the value computed last is stored.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
