"""Kinds of object storage, one module each; a module put here is found, and its addresses are taken from then on.

A module has `SCHEMES`, those of its addresses, and `make_client(address, settings)`, which returns an `ObjectClient`.
It imports the library that it needs when a client is made.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any


@cache
def store_modules() -> dict[str, Any]:
    """Returns the module of every scheme."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {scheme: module for module in modules for scheme in module.SCHEMES}
