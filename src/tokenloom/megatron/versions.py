"""Which version of the reference is followed where versions differ."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from importlib import metadata, util
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
    said = vars(core).get("__version__") if core is not None else None
    if isinstance(said, str):
        return said
    origin = vars(core).get("__file__") if core is not None else _origin_of_core()
    if origin is None:
        return None
    return _written_version(str(Path(origin).with_name("package_info.py"))) or _listed_version() or ""


def version_numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers that a version begins with: (0, 19, 2) for "0.19.2rc1"."""
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def _origin_of_core() -> str | None:
    """Returns the file of `megatron.core`, importing no more than the namespace above it."""
    try:
        spec = util.find_spec("megatron.core")
    except (ModuleNotFoundError, ValueError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


@lru_cache
def _written_version(path: str) -> str | None:
    try:
        fields = dict(_FIELD.findall(Path(path).read_text()))
    except OSError:
        return None
    if not {"MAJOR", "MINOR", "PATCH"} <= set(fields):
        return None
    return f"{fields['MAJOR']}.{fields['MINOR']}.{fields['PATCH']}{fields.get('PRE_RELEASE', '')}"


@lru_cache
def _listed_version() -> str | None:
    try:
        return metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        return None
