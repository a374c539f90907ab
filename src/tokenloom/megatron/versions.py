"""Which version of the reference is followed where versions differ."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from importlib import util
from pathlib import Path

CHECKED = ("0.16.1", "0.19.2", "0.20.0")
"""The versions of megatron-core that this package is compared with, old to new; the last is a branch."""

NEWEST = (0, 20)
"""The newest version that is known."""

_FIELD = re.compile(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE)\s*=\s*['\"]?([^'\"\s#]*)", re.MULTILINE)


def reference_version() -> tuple[int, ...]:
    """Returns the version of the reference here as numbers, such as (0, 16, 1); without one, the newest known."""
    text = installed_version()
    return (version_numbers(text) if text else ()) or NEWEST


def installed_version() -> str | None:
    """Returns the version of the megatron-core that this process has or would import, such as "0.16.1".

    It is read from its file, without importing it; a checkout that lies before an installed package counts.

    Returns:
        The version; an empty text if the package is there and does not say; None if there is none.
    """
    core = sys.modules.get("megatron.core")
    if core is not None and isinstance(said := vars(core).get("__version__"), str):
        return said
    try:  # which imports no more than the namespace above it
        spec = util.find_spec("megatron.core") if core is None else None
        origin = getattr(spec, "origin", None) if core is None else vars(core).get("__file__")
    except (ModuleNotFoundError, ValueError):
        return None
    return None if origin is None else _written_version(str(Path(origin).with_name("package_info.py"))) or ""


def version_numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers that a version begins with: (0, 19, 2) for "0.19.2rc1"."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


@lru_cache
def _written_version(path: str) -> str | None:
    try:
        fields = dict(_FIELD.findall(Path(path).read_text()))
    except OSError:
        return None
    if not {"MAJOR", "MINOR", "PATCH"} <= set(fields):
        return None
    return f"{fields['MAJOR']}.{fields['MINOR']}.{fields['PATCH']}{fields.get('PRE_RELEASE', '')}"
