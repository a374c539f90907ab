"""Runs pages of the documentation as they are written: their `sh` and `python` blocks in order, in an empty folder.

A page says in a comment what is there before it begins, as the names of `tests/docs/given.py`:

    <!-- given: corpus.jsonl, tokenizer.json -->

A block that needs a library which not everybody has says so behind its language: ` ```python needs=transformers`. It is
left out where the library is missing. Nothing else is left out; what cannot run is a `text` block.

    python -m tests.docs.pages                                       # how many pages and blocks there are
    python -m tests.docs.pages docs/quickstart.md --programs BIN     # runs pages with the Python and commands of BIN
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.docs.given import GIVEN

ROOT = Path(__file__).parents[2]
SESSION = Path(__file__).with_name("session.py")

_FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2$", re.DOTALL | re.MULTILINE)
_GIVEN = re.compile(r"<!-- given: (.*?) -->", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What stands between two fences of a page.

    Attributes:
        page: path of the page.
        line: number of the line with the opening fence, from 1.
        language: first word behind it.
        needs: libraries that the code imports and that may be missing.
        code: the lines between, without what all of them are indented by.
    """

    page: str
    line: int
    language: str
    needs: tuple[str, ...]
    code: str


def all_pages() -> list[Path]:
    """Returns the pages that have code for readers."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("packages/*/GUIDE.md"))]


def blocks_of(page: Path) -> list[Block]:
    """Returns the blocks of a page that can be run."""
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        language, *markers = fence[3].split() or [""]
        unknown = [marker for marker in markers if not marker.startswith("needs=")]
        line = text.count("\n", 0, fence.start()) + 1
        assert not unknown, f"{page}:{line}: unknown {unknown}"
        needs = tuple(name for marker in markers for name in marker.removeprefix("needs=").split(","))
        if language in ("sh", "python"):
            code = textwrap.dedent(fence[4])
            found.append(Block(page=str(page), line=line, language=language, needs=needs, code=code))
    return found


def given_to(page: Path) -> list[str]:
    """Returns the names of what a page asks for before it begins."""
    return [name.strip() for names in _GIVEN.findall(page.read_text(encoding="utf-8")) for name in names.split(",")]


def run_page(page: Path, folder: Path, *, programs: Path | None = None, timeout: float = 900) -> str:
    """Runs all blocks of a page.

    Args:
        page: path of the page.
        folder: an empty folder.
        programs: where `python` and `tokenloom` are, such as an environment's `bin`; those of this process if None.
        timeout: seconds that it may take.

    Returns:
        What it printed, also to stderr.

    Raises:
        AssertionError: If a block fails; with what was printed.
    """
    with tempfile.TemporaryDirectory(prefix="page-") as beside, ExitStack() as ending:
        if programs is None:
            programs = _own_programs(Path(beside))
        python = programs / "python"
        environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        for name in given_to(page):
            environment |= GIVEN[name](folder, ending)
        blocks = [block for block in blocks_of(page) if all(_has(python, name) for name in block.needs)]
        listed = Path(beside, "blocks.json")
        listed.write_text(json.dumps([asdict(block) for block in blocks]))
        done = subprocess.run(
            [python, SESSION, listed],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
    assert done.returncode == 0, f"{page}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout


def count(pages: Iterable[Path]) -> str:
    """Returns a line that says how many blocks there are, and how many of them are run by every run of the tests."""
    pages = list(pages)
    blocks = [block for page in pages for block in blocks_of(page)]
    elsewhere = sum(bool(block.needs) for block in blocks)
    run = len(blocks) - elsewhere
    return f"{len(pages)} pages; blocks executed / all: {run} / {len(blocks)}; with other libraries: {elsewhere}"


def _own_programs(folder: Path) -> Path:
    for name, words in (("tokenloom", "-m tokenloom"), ("python", ""), ("python3", "")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        program.chmod(0o755)
    return folder


def _has(python: Path, library: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({library!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs pages, or counts all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.pages", description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--programs", type=Path, help="folder with the python and tokenloom to run them with")
    parser.add_argument("--nothing-missing", action="store_true", help="refuse to leave out a block")
    options = parser.parse_args(arguments)
    if not options.pages:
        print(count(all_pages()))
    for page in map(Path.resolve, options.pages):
        if options.nothing_missing:
            python = (options.programs or Path(sys.executable).parent) / "python"
            missing = [name for block in blocks_of(page) for name in block.needs if not _has(python, name)]
            assert not missing, f"{page}: not installed: {missing}"
        with tempfile.TemporaryDirectory(prefix="page-") as folder:
            print(run_page(page, Path(folder), programs=options.programs and options.programs.absolute()), end="")


if __name__ == "__main__":
    main()
