"""Processes that are started afresh get our modules too, before they import the main module of the program."""

from __future__ import annotations

import multiprocessing.spawn
import sys
from collections.abc import Callable
from typing import Any

_KEY = "tokenloom_megatron"
_FUNCTION = "get_preparation_data"


class _Installs:
    """Installs where it is unpickled: children unpickle what they need to know before they import anything."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, Any]]]:
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "import tokenloom.megatron; tokenloom.megatron.install(unchecked=True)"
        )
        return exec, (code, {})


class Preparation:
    """What children are told: what the original function says, and to install, as long as that is wanted."""

    def __init__(self) -> None:
        self.original: Callable[[str], dict[str, Any]] = multiprocessing.spawn.get_preparation_data
        self.is_wanted = True

    def __call__(self, name: str) -> dict[str, Any]:
        found = self.original(name)
        return {_KEY: _Installs(), **found} if self.is_wanted else found


def also_in_children() -> Preparation:
    """Lets processes that `multiprocessing` spawns install too; forked ones have it from this one."""
    preparation = Preparation()
    setattr(multiprocessing.spawn, _FUNCTION, preparation)
    return preparation


def no_longer_in_children(preparation: Preparation) -> None:
    """Undoes it; what somebody else put in front of it meanwhile stays."""
    preparation.is_wanted = False
    if vars(multiprocessing.spawn)[_FUNCTION] is preparation:
        setattr(multiprocessing.spawn, _FUNCTION, preparation.original)
