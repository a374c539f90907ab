"""`python -m tokenloom.megatron SCRIPT …`: runs a program of Megatron with tokenloom's data modules in it."""

from __future__ import annotations

import importlib.util
import os
import sys

from tokenloom.errors import ConfigError
from tokenloom.megatron.installation import install
from tokenloom.megatron.script import run_module, run_script, search_beside
from tokenloom.megatron.tools import tool_command
from tokenloom.storage.secrets import redacted

_USAGE = """\
usage: python -m tokenloom.megatron [--unchecked] [--report] [--as-is] SCRIPT [ARGUMENT …]
       python -m tokenloom.megatron [--unchecked] [--report] -m MODULE [ARGUMENT …]
       torchrun [OPTION …] -m tokenloom.megatron SCRIPT [ARGUMENT …]

Runs a program that uses Megatron's data modules with those of tokenloom in their place, without touching a line of it.
Its own tools of data (tools/preprocess_data.py, merge_datasets.py, …) are commands of tokenloom, with the same
arguments and outputs; the script need not be there.

  --as-is      run such a tool as a program like any other
  --unchecked  go on with a version of megatron-core that tokenloom is not compared with
  --report     print first which modules are replaced, to standard error
"""


def main(arguments: list[str]) -> None:
    """Runs a program as `python` would, after `install`.

    Args:
        arguments: what follows `python -m tokenloom.megatron`.

    Raises:
        SystemExit: the arguments are wrong, or the program ends so.
    """
    options = []
    while arguments and arguments[0] in ("--unchecked", "--report", "--as-is", "-h", "--help"):
        options.append(arguments.pop(0))
    if "-h" in options or "--help" in options:
        sys.stdout.write(_USAGE)
        return
    is_module = arguments[:1] == ["-m"]
    program = arguments[1:] if is_module else arguments
    if not program or program[0].startswith("-"):
        sys.exit(_USAGE + f"\nexpected a script, found {program[0] if program else 'nothing'}")
    if not is_module:
        if "--as-is" not in options:
            _run_tool(program[0], program[1:])
        if not os.path.exists(program[0]):
            sys.exit(f"no file `{program[0]}`")
        search_beside(program[0])  # before `install`, which asks for the version of Megatron that is found from there
    try:
        report = install(unchecked="--unchecked" in options)
    except ConfigError as error:
        sys.exit(str(error))
    if "--report" in options:
        sys.stderr.write(f"{report}\n")
    (run_module if is_module else run_script)(program[0], program[1:])


def _run_tool(path: str, arguments: list[str]) -> None:
    """Becomes the command of ours that does what a tool of Megatron does; returns if the program is none."""
    has_trainer = os.path.exists(path) and _has_trainer(path)
    notes: list[str] = []
    try:
        command = tool_command(path, arguments, note=notes.append, trainer_is_there=has_trainer)
    except ConfigError as error:
        sys.exit(str(error))
    if command is None:
        return
    for note in [f"{path}: tokenloom {' '.join(command)}", *notes]:
        sys.stderr.write(f"{redacted(note)}\n")
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tokenloom", *command])


def _has_trainer(path: str) -> bool:
    """Whether Megatron's trainer is beside the folder of a tool, where the tool looks for it, or installed."""
    checkout = os.path.join(os.path.dirname(os.path.realpath(path)), os.pardir)
    if os.path.isdir(os.path.join(checkout, "megatron", "training")):
        return True
    try:
        return importlib.util.find_spec("megatron.training") is not None
    except ImportError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
