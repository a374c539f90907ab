"""What shells complete, asked of bash itself; of zsh and fish, where they are there, whether they read the script."""

from __future__ import annotations

import io
import shutil
import subprocess
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tokenloom import cli
from tokenloom.cli.commands import COMMANDS, RETRO_COMMANDS, RUN_COMMANDS


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    parser = cli.build_parser(["completion"])
    found = {}
    for shell in ("bash", "zsh", "fish"):
        options = parser.parse_args(["completion", shell])
        with redirect_stdout(io.StringIO()) as printed:
            assert options.run(options) == 0
        found[shell] = folder / shell
        found[shell].write_text(printed.getvalue())
    return found


def completed(script: Path, *words: str) -> list[str]:
    """Returns what bash offers for the last of some words."""
    typed = " ".join(f"'{word}'" for word in words)
    lines = f"source '{script}'; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _tokenloom"
    command = ["bash", "--norc", "-c", f'{lines}; printf "%s\\n" "${{COMPREPLY[@]}}"']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("tokenloom", "preprocess-"), ["preprocess-chat", "preprocess-multimodal"]),
        (("tokenloom", "run", "di"), ["digest", "diff"]),
        (("tokenloom", "preprocess", "--runner", ""), ["local", "ray"]),
        (("tokenloom", "merge", "da"), []),  # names of files, then
    ],
)
def test_bash_completes(scripts, words, offered):
    assert sorted(completed(scripts["bash"], *words)) == sorted(offered)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_the_same(scripts, shell):
    text = scripts[shell].read_text()
    names = [name for groups in (COMMANDS, RUN_COMMANDS, RETRO_COMMANDS) for group in groups.values() for name in group]
    assert [name for name in names if f" {name} " not in text.replace("(", " ").replace(")", " ")] == []
    assert "local ray" in text
    if shutil.which(shell) is not None:
        subprocess.run([shell, "--no-execute", str(scripts[shell])], check=True, timeout=60)
