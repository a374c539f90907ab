"""The frameworks that adapters are tested with; all must exist in the environment of `make adapters`."""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType

import pytest

MUST_BE_THERE = os.environ.get("TOKENLOOM_ADAPTERS") == "all"


def library(module: str) -> ModuleType:
    """Imports a module; skips the test if it is missing outside of `make adapters`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module) if MUST_BE_THERE else pytest.importorskip(module)
