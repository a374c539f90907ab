"""The frameworks that adapters are tested with: they may be missing, but not in the environment of `make adapters`."""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType

import pytest

MUST_BE_THERE = os.environ.get("TOKENLOOM_ADAPTERS") == "all"


def library(module: str) -> ModuleType:
    """Returns an imported module; the tests that ask are skipped where it is missing, and may be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module) if MUST_BE_THERE else pytest.importorskip(module)
