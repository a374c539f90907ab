"""A description of the measuring machine, without host names and paths."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe_machine() -> dict[str, str | int]:
    """Returns processor, available cores, bytes of memory, system and Python version."""
    return {
        "processor": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(_field(Path("/proc/meminfo"), "MemTotal").split()[0]) * 1024,
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])} {platform.machine()}",
        "python": platform.python_version(),
    }


def _field(path: Path, name: str) -> str:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
