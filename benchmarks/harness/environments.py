"""Virtual environments of peers, one each, as their dependencies fight; made when first needed, versions pinned."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from harness.child import BENCHMARKS, without_paths

FOLDER = BENCHMARKS / ".venvs"
TORCH = "torch==2.13.0"  # named always: the newest one would bring gigabytes of CUDA packages
TOKENIZERS = "tokenizers==0.23.3"
REQUIREMENTS = {
    "mosaicml-streaming": ("mosaicml-streaming==0.13.0", TORCH, "tokenizers==0.22.2"),  # it accepts no newer ones
    "litdata": ("litdata==0.2.76", TORCH, TOKENIZERS),
    "grain": ("grain==0.2.18",),  # neither of these two needs torch
    "datatrove": ("datatrove==0.10.1", TOKENIZERS, "orjson"),
}
"""By the name of the peer, which comes first."""

INSTALL_SECONDS = 900


class EnvironmentMissingError(RuntimeError):
    """A peer cannot be installed here; the message says why."""


def python_of(name: str | None) -> Path:
    """Returns the interpreter of an environment, made if it is not there; None is this one.

    Raises:
        EnvironmentMissingError: it cannot be installed.
    """
    if name is None:
        return Path(sys.executable)
    folder, wanted = FOLDER / name, json.dumps(REQUIREMENTS[name])
    stamp = folder / "installed.json"  # written last: an install that was cut off is begun anew
    if not stamp.exists() or stamp.read_text() != wanted:
        install(name, folder)
        stamp.write_text(wanted)
    return folder / "bin" / "python"


def install(name: str, folder: Path) -> None:
    """Makes an environment from nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing {name} into an environment of its own", file=sys.stderr, flush=True)
    make = [sys.executable, "-m", "venv", str(folder)]
    fill = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *REQUIREMENTS[name]]
    for command in (make, fill):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            raise EnvironmentMissingError(f"installing took more than {INSTALL_SECONDS} seconds") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise EnvironmentMissingError(without_paths(lines[-1], [folder, Path.home()]))


def versions(names: list[str]) -> dict[str, str]:
    """Returns the versions of the libraries that were compared, by name."""
    found = {name: metadata.version(name) for name in ("tokenloom", "megatron-core", "torch", "numpy", "tokenizers")}
    pinned = (requirement.split("==") for name in names for requirement in REQUIREMENTS[name][:1])
    return found | dict(pinned)
