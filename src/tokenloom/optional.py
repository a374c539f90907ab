"""Imports optional dependencies, where they are used."""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

from tokenloom.errors import MissingExtraError


def is_installed(module: str) -> bool:
    """Whether a library is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def folder_of(package: str, *, extra: str) -> str:
    """Returns the folder of an installed package, without importing it.

    Raises:
        MissingExtraError: the package is not installed.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise MissingExtraError(f"`{package}` is not installed", hint=f"run `pip install 'tokenloom[{extra}]'`")
    return os.path.dirname(found.origin)


def require(module: str, *, extra: str) -> ModuleType:
    """Returns the imported module.

    Raises:
        MissingExtraError: the module is not installed; the hint is the command that installs its extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        needed_by = "" if module.split(".")[0] == missing.split(".")[0] else f", but `{module}` needs it"
        message = f"`{missing}` is not installed{needed_by}"
        raise MissingExtraError(message, hint=f"run `pip install 'tokenloom[{extra}]'`") from error
