"""A small run for commands: two sources of 3,200 tokens, samples of 16 tokens, 100 positions."""

import json
import re
from pathlib import Path
from typing import Any

from tests.run.data import write_source, write_with_manifest

from tokenloom import cli
from tokenloom.run.lock import read_lock

RUN = """\
order = 1
seed = 7
mixing_block = 8

[sources]
web = { data = "data/web*", holdout = "5%" }  # what we have
code = "data/code"

[[stages]]
name = "main"
sequence_length = 16
samples = 100
weights = { web = 3, code = 1 }
"""


def write_run(folder: Path, text: str = RUN, *, manifests: bool = False) -> Path:
    """Writes data and `run.toml`; returns its path."""
    write = write_with_manifest if manifests else write_source
    write(str(folder / "data" / "web0"), *[32] * 100)
    write(str(folder / "data" / "code"), *[64] * 50)
    path = folder / "run.toml"
    path.write_text(text)
    return path


def run(capsys, *words: object) -> tuple[object, str, str]:
    """Runs a command; returns its exit status, stdout and stderr."""
    capsys.readouterr()
    try:
        status: object = cli.main([str(word) for word in words])
    except SystemExit as stopped:
        status = stopped.code
    return status, *capsys.readouterr()


def output(capsys, *words: object) -> str:
    """Returns the stdout of a command that succeeds without messages."""
    status, out, err = run(capsys, *words)
    assert (status, err) == (0, "")
    return out


def objects(capsys, *words: object, status: int = 0) -> list[Any]:
    """Returns the lines of a command's `--json` output, parsed."""
    found, out, _ = run(capsys, *words, "--json")
    assert found == status
    return [json.loads(line) for line in out.splitlines()]


def record(capsys, *words: object, status: int = 0) -> Any:
    """Returns the object that a command prints with `--json`."""
    (found,) = objects(capsys, *words, status=status)
    return found


def rows_of(out: str) -> list[list[str]]:
    """Returns the cells of the lines of tables."""
    return [re.split(r" {2,}", line.strip()) for line in out.splitlines()]


def lock_of(path: Path):
    return read_lock(str(path.with_suffix(".lock")))
