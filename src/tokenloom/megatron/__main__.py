"""`python -m tokenloom.megatron SCRIPT …`: runs a program of Megatron with tokenloom's data modules in it."""

from __future__ import annotations

import builtins
import importlib.util
import os
import runpy
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType

from tokenloom.errors import ConfigError
from tokenloom.megatron.installation import install
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
        if not sys.flags.safe_path:  # as `python PATH`; before `install` looks for the version of Megatron from there
            sys.path[0] = os.path.dirname(os.path.realpath(program[0]))
    try:
        report = install(unchecked="--unchecked" in options)
    except ConfigError as error:
        sys.exit(str(error))
    if "--report" in options:
        sys.stderr.write(f"{report}\n")
    sys.argv[:] = program
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        _run_script(program[0])


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


def _run_script(path: str) -> None:
    """Runs a file as `python PATH` would: it stays the main module when it has ended, for threads and exit handlers."""
    if os.path.isdir(path) or path.endswith((".pyc", ".pyz", ".zip")):
        runpy.run_path(path, run_name="__main__")
        return
    full = os.path.abspath(path)
    loader = SourceFileLoader("__main__", full)
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=full, __loader__=loader, __spec__=None, __package__=None, __cached__=None, __builtins__=builtins
    )
    code = compile(loader.get_data(full), full, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


if __name__ == "__main__":
    main(sys.argv[1:])
