"""What meetings need of `torch.distributed`: the store, and whether the process group is still there."""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from typing import Any

_PROBE_TAG = 7_410_002  # nobody receives it


class TorchSide:
    """The default process group of this process, as it is when this is made."""

    def __init__(self) -> None:
        self._dist = sys.modules["torch.distributed"]
        self._group = weakref.ref(self._dist.group.WORLD)
        self._carries_bytes = "cpu:gloo" in self._dist.get_backend_config().split(",")
        self._sent: list[Any] = []

    @property
    def is_current(self) -> bool:
        """Whether this is the default process group of now."""
        group = self._group()
        return group is not None and group is self._dist.group.WORLD

    @property
    def store(self) -> Any:
        """The store through which the group was formed; None once the group is gone. It is not kept."""
        with suppress(ValueError, KeyError, AssertionError):
            return sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
        return None

    def is_dead(self, rank: int) -> bool:
        """Whether the group knows that a rank ended: only gloo does, which has a connection to each.

        A message to a broken connection fails at once; one to a rank that lives just lies there.
        """
        if not self._carries_bytes or not self.is_current:
            return False
        torch = sys.modules["torch"]
        message = torch.zeros(1, dtype=torch.uint8, device="cpu")
        try:
            self._sent.append((self._dist.isend(message, rank, tag=_PROBE_TAG), message))
        except RuntimeError:
            return self.is_current
        except (ValueError, AttributeError):  # the group ended meanwhile
            return False
        return False
