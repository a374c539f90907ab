"""Programs run by `python` and by `python -m tokenloom.megatron`."""

from __future__ import annotations

import os
import subprocess
import sys


def run(*arguments: str, folder, check: bool = True) -> subprocess.CompletedProcess[str]:
    # Megatron lies beside the script, so it is found by what the script's folder is for imports.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=check)


def ours(*arguments: str, folder, check: bool = True) -> subprocess.CompletedProcess[str]:
    return run("-m", "tokenloom.megatron", *arguments, folder=folder, check=check)
