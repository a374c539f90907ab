"""Virtual environments of peers with pinned versions, one per peer as dependencies conflict; created on first use."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from harness.child import BENCHMARKS, without_paths

FOLDER = BENCHMARKS / ".venvs"
REQUIREMENTS = BENCHMARKS / "environments"
PEERS = ("mosaicml-streaming", "litdata", "grain", "datatrove")
"""Each has `NAME.txt` in `REQUIREMENTS`: all that it needs, pinned, so that nothing is resolved anew. torch is among it
where it is needed: the newest one would bring gigabytes of CUDA packages."""

INSTALL_SECONDS = 900

_failures: dict[str, str] = {}  # of this run: what failed once is not tried again for every row


class EnvironmentMissingError(RuntimeError):
    """A peer cannot be installed on this machine; the message is the reason."""


def python_of(name: str | None, checkout: Path | None = None) -> Path:
    """Returns the interpreter of an environment, creating it if needed; None is this one, or that of `checkout`.

    Raises:
        EnvironmentMissingError: the environment cannot be installed.
    """
    if name is None:
        return checkout / ".venv" / "bin" / "python" if checkout else Path(sys.executable)
    if name in _failures:
        raise EnvironmentMissingError(_failures[name])
    folder, wanted = FOLDER / name, (REQUIREMENTS / f"{name}.txt").read_text()
    stamp = folder / "installed.txt"  # written last: an install that was cut off is begun anew
    if not stamp.exists() or stamp.read_text() != wanted:
        try:
            install(name, folder)
        except EnvironmentMissingError as error:
            _failures[name] = str(error)
            raise
        stamp.write_text(wanted)
    return folder / "bin" / "python"


def install(name: str, folder: Path) -> None:
    """Creates an environment."""
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing {name} into an environment of its own", file=sys.stderr, flush=True)
    make = [sys.executable, "-m", "venv", str(folder)]
    fill = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS / f"{name}.txt")]
    fill += ["--no-compile"]  # most of what some peers bring is never imported
    for command in (make, fill):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            raise EnvironmentMissingError(f"installing took more than {INSTALL_SECONDS} seconds") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise EnvironmentMissingError(without_paths(lines[-1], [folder, Path.home()]))


def versions(names: list[str]) -> dict[str, str]:
    """Returns the versions of all compared libraries, by name."""
    found = {name: metadata.version(name) for name in ("tokenloom", "megatron-core", "torch", "numpy", "tokenizers")}
    for name in names:
        pins = dict(line.split("==") for line in (REQUIREMENTS / f"{name}.txt").read_text().split())
        found[name] = pins[name]
    return found
