"""Runs the blocks of one page: `python session.py BLOCKS.json`. Imports only the standard library.

All Python blocks are one program and all shell blocks one shell; Python gets the shell's folder and variables.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any


class Shell:
    """A shell that sources one file after the other, and ends with the first command that fails."""

    def __init__(self) -> None:
        self._done, writing = os.pipe()
        self._files = tempfile.TemporaryDirectory(prefix="page-")
        self._process = subprocess.Popen(["bash"], stdin=subprocess.PIPE, text=True, pass_fds=[writing])
        os.close(writing)
        self._send(f"set -euo pipefail; done={writing}")

    def run(self, code: str, where: str) -> None:
        """Runs code; takes over its folder and its variables."""
        script, left = Path(self._files.name, "block"), Path(self._files.name, "left")
        script.write_text(code)
        self._send(f". {script} </dev/null; {{ pwd; env -0; }} > {left}; echo >&$done")
        if not os.read(self._done, 1):
            sys.exit(f"{where}: the shell ended with status {self._process.wait()}")
        folder, _, variables = left.read_text().partition("\n")
        os.chdir(folder)
        os.environ.update(each.partition("=")[::2] for each in variables.split("\0") if "=" in each)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()


def main(blocks: list[dict[str, Any]]) -> None:
    """Runs blocks in their order; the lines of errors are those of the page."""
    shell = Shell()
    page = ModuleType("__main__")
    sys.modules["__main__"] = page  # where pickle looks for the classes of the page
    sys.path[0] = ""
    for block in blocks:
        code = "\n" * block["line"] + block["code"]
        if block["language"] == "sh":
            shell.run(code, f"{block['page']}:{block['line']}")
        else:
            exec(compile(code, block["page"], "exec"), vars(page))
        sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
