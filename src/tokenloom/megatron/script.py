"""Runs a program as `python` itself would."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType


def search_beside(path: str) -> None:
    """Lets imports look beside a script first, as `python PATH` would, and not in the current folder."""
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))


def run_script(path: str, arguments: list[str]) -> None:
    """Runs a file as `python PATH ARGUMENTS…` would, after `search_beside`.

    The module stays the main one when it has ended, for what outlives it: threads, functions called at exit.

    Args:
        path: a file of Python code; a folder or an archive with a `__main__.py` will do.
        arguments: what follows it.

    Raises:
        OSError: it cannot be read.
    """
    sys.argv[:] = [path, *arguments]
    if os.path.isdir(path) or path.endswith((".pyc", ".pyz", ".zip")):
        runpy.run_path(path, run_name="__main__")
        return
    full = os.path.abspath(path)
    loader = SourceFileLoader("__main__", full)
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=full, __loader__=loader, __spec__=None, __package__=None, __cached__=None, __builtins__=builtins
    )
    code = compile(loader.get_data(full), full, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def run_module(name: str, arguments: list[str]) -> None:
    """Runs a module as `python -m NAME ARGUMENTS…` would.

    Raises:
        ImportError: there is no such module.
    """
    sys.argv[:] = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
