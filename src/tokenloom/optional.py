"""Imports optional dependencies; if a dependency is missing, the error names the install command."""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

from tokenloom.errors import MissingExtraError


def is_installed(module: str) -> bool:
    """Returns whether a module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def folder_of(package: str, *, extra: str) -> str:
    """Returns the folder of a package without importing it; raises `MissingExtraError` if the package is missing."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise MissingExtraError(f"`{package}` is not installed", hint=f"run `pip install 'tokenloom[{extra}]'`")
    return os.path.dirname(found.origin)


def require(module: str, *, extra: str) -> ModuleType:
    """Imports a module; raises `MissingExtraError` if the module, or a module that it imports, is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        needed_by = "" if module.split(".")[0] == missing.split(".")[0] else f", but `{module}` needs it"
        message = f"`{missing}` is not installed{needed_by}"
        raise MissingExtraError(message, hint=f"run `pip install 'tokenloom[{extra}]'`") from error
