"""Whether tokenloom can run here: what `import tokenloom` asks first, so that nobody meets the answer deep in a job.

This module and `__init__.py` are read by Pythons that are too old, which must get as far as the message.
"""

import os
import sys

_OLDEST_PYTHON = (3, 11)


def check_python() -> None:
    """Raises if this Python cannot run tokenloom, whatever is installed.

    Raises:
        ImportError: it is too old, or the machine has another word size or byte order than files and kernels.
    """
    if sys.version_info < _OLDEST_PYTHON:
        message = f"tokenloom needs Python 3.11 or newer, found {'.'.join(map(str, sys.version_info[:3]))}"
        raise ImportError(_with_hint(message, "install it into an environment of a newer Python"))
    if sys.maxsize < 2**32:
        message = "tokenloom needs a Python of 64 bits, found one of 32: corpora have more tokens than those count"
        raise ImportError(_with_hint(message, "install a Python of 64 bits"))
    if sys.byteorder != "little":
        message = f"tokenloom needs a little-endian machine, as its files are, found a {sys.byteorder}-endian one"
        raise ImportError(_with_hint(message, "use a machine of x86-64 or aarch64"))


def check_native(version: str) -> None:
    """Raises if the compiled module is not there, cannot be loaded, or is not of these Python files.

    Args:
        version: that of the Python files.

    Raises:
        ImportError: one of these.
    """
    try:
        from tokenloom import _native
    except ImportError as error:
        raise _not_loaded(error) from error
    # A module that was built before it told its version passes: no release has one.
    built = _native.version() if hasattr(_native, "version") else version
    if built != version:
        message = f"expected the compiled module of tokenloom {version}, found that of {built}: `{_native.__file__}`"
        hint = "install tokenloom anew: `pip install --force-reinstall tokenloom`, or `pip install .` in a clone"
        raise ImportError(_with_hint(message, hint))


def _not_loaded(error: ImportError) -> ImportError:
    import platform  # milliseconds, which only this message needs

    folder = os.path.dirname(__file__)
    found = sorted(name for name in os.listdir(folder) if name.startswith("_native.") and not name.endswith(".pyi"))
    here = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    build = "`pip install --no-binary tokenloom tokenloom`, which needs a C++ compiler"
    if found and "cannot import name" not in str(error):
        message = f"the compiled module of tokenloom cannot be loaded by {here}: {error}"
        return ImportError(_with_hint(message, f"build it on this machine: {build}"))
    message = f"tokenloom has no compiled module for {here}, found {', '.join(found) or 'none'} in `{folder}`"
    if sys.platform != "linux":
        return ImportError(_with_hint(message, "use Linux: tokenloom is built and tested there alone"))
    return ImportError(_with_hint(message, f"install tokenloom with this Python: `pip install tokenloom`, or {build}"))


def _with_hint(message: str, hint: str) -> str:
    return f"{message}\nhint: {hint}"
