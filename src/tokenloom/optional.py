"""Optional dependencies: imported where they are used, and by this function only."""

from __future__ import annotations

import importlib
from types import ModuleType

from tokenloom.errors import MissingExtraError


def require(module: str, *, extra: str) -> ModuleType:
    """Returns the imported module, or raises with the command that installs the extra which brings it.

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        message = f"`{module}` is not installed"
        raise MissingExtraError(message, hint=f"run `pip install tokenloom[{extra}]`") from error
