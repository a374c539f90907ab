"""Optional dependencies: imported where they are used, and by this function only."""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

from tokenloom.errors import MissingExtraError


def is_installed(module: str) -> bool:
    """Whether a library is there, without importing it."""
    return importlib.util.find_spec(module) is not None


def folder_of(package: str, *, extra: str) -> str:
    """Returns the folder of an installed package, without importing it: for files that it brings.

    Raises:
        MissingExtraError: the package is not installed.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        message = f"`{package}` is not installed"
        raise MissingExtraError(message, hint=f"run `pip install 'tokenloom[{extra}]'`")
    return os.path.dirname(found.origin)


def require(module: str, *, extra: str) -> ModuleType:
    """Returns the imported module, or raises with the command that installs the extra which brings it.

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        needed_by = "" if module.split(".")[0] == missing.split(".")[0] else f", but `{module}` needs it"
        message = f"`{missing}` is not installed{needed_by}"
        raise MissingExtraError(message, hint=f"run `pip install 'tokenloom[{extra}]'`") from error
