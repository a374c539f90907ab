"""Checks at `import tokenloom` that Python is new enough and that the compiled module has the version of the package.

This module and `__init__.py` use only syntax that old Python versions can parse, so those versions print our messages.
"""

import os
import sys

_OLDEST_PYTHON = (3, 11)


def check_python() -> None:
    """Raises `ImportError` if this Python is too old."""
    if sys.version_info < _OLDEST_PYTHON:
        message = f"tokenloom needs Python 3.11 or newer, found {'.'.join(map(str, sys.version_info[:3]))}"
        raise ImportError(_with_hint(message, "install tokenloom into an environment with a newer Python"))


def check_native(version: str) -> None:
    """Raises `ImportError` if the compiled module is missing, cannot be loaded, or is not of version `version`."""
    try:
        from tokenloom import _native
    except ImportError as error:
        raise _not_loaded(error) from error
    if (built := _native.version()) != version:
        message = f"expected the compiled module of tokenloom {version}, found version {built}: `{_native.__file__}`"
        hint = "run `pip install --force-reinstall tokenloom`, or `pip install .` in a clone"
        raise ImportError(_with_hint(message, hint))


def _not_loaded(error: ImportError) -> ImportError:
    import platform  # takes milliseconds to import

    folder = os.path.dirname(__file__)
    found = sorted(name for name in os.listdir(folder) if name.startswith("_native.") and not name.endswith(".pyi"))
    here = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    build = "`pip install --no-binary tokenloom tokenloom`, which needs a C++ compiler"
    if found and "cannot import name" not in str(error):
        message = f"the compiled module of tokenloom cannot be loaded by {here}: {error}"
        return ImportError(_with_hint(message, f"build it on this machine: {build}"))
    message = f"tokenloom has no compiled module for {here}, found {', '.join(found) or 'none'} in `{folder}`"
    if sys.platform != "linux":
        return ImportError(_with_hint(message, "use Linux: tokenloom supports no other system"))
    return ImportError(_with_hint(message, f"install tokenloom with this Python: `pip install tokenloom`, or {build}"))


def _with_hint(message: str, hint: str) -> str:
    return f"{message}\nhint: {hint}"
