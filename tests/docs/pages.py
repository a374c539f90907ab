"""Runs the `sh` and `python` blocks of documentation pages, in order, in an empty folder.

A comment `<!-- given: corpus.jsonl, tokenizer.json -->` names what the page needs, see `GIVEN`. A block
` ```python needs=transformers` is skipped if the library is missing. Blocks that cannot run are `text` blocks.

    python -m tests.docs.pages                                       # counts pages and blocks
    python -m tests.docs.pages docs/quickstart.md --programs BIN     # runs a page with the programs of BIN
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import boto3
from tests.object_store.server import ACCESS_KEY, REGION, SECRET_KEY, S3Server, aws_environment
from tests.preprocess.corpus import byte_level_json, sources, write_lines

from tokenloom import CorpusSettings, load_tokenizer, preprocess_corpus
from tokenloom.storage.settings import CACHE_VARIABLE


def _corpus(folder: Path, _: ExitStack) -> dict[str, str]:
    """200 documents, each some lines of Python."""
    lines = [line for source in sources() for line in source.splitlines() if line.strip()]
    texts = ["\n".join(lines[10 * number : 10 * number + 10]) for number in range(200)]
    write_lines(folder / "corpus.jsonl", [{"text": text, "meta": {"id": number}} for number, text in enumerate(texts)])
    return {}


def _tokenizer(folder: Path, _: ExitStack) -> dict[str, str]:
    """A byte-level tokenizer of 1,000 tokens, with `<|endoftext|>` and `<|pad|>`."""
    (folder / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    settings = {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return {}


def _chat(folder: Path, _: ExitStack) -> dict[str, str]:
    """60 conversations of a question and an answer."""

    def turns(number: int) -> list[dict[str, str]]:
        asked = {"role": "user", "content": f"What is {number} plus {number}?"}
        return [asked, {"role": "assistant", "content": f"{number} plus {number} is {2 * number}."}]

    write_lines(folder / "chat.jsonl", [{"messages": turns(number)} for number in range(60)])
    return {}


def _run(folder: Path, _: ExitStack) -> dict[str, str]:
    """A run of three sources, `web` out of `crawl/0007.jsonl` among them; `letter.txt` is one of its texts."""
    lines = [line for source in sources() for line in source.splitlines() if line.strip()]
    web = [f"{number}: {lines[number % len(lines)]}" for number in range(13_000)]
    web[87] = "a letter with some words of it"
    (folder / "letter.txt").write_text(web[87], encoding="utf-8")
    (folder / "crawl").mkdir()
    inputs = {"web": "crawl/0007.jsonl", "code": "code.jsonl", "books": "books.jsonl"}
    for name, texts in (("web", web), ("code", lines), ("books", lines[::3])):
        path = write_lines(folder / inputs[name], [{"text": text} for text in texts])
        settings = CorpusSettings(append_eod=True, document_hashes=True)
        preprocess_corpus(path, folder / name, load_tokenizer("byte"), settings, num_processes=1, num_workers=1)
    (folder / "run.toml").write_text(RUN, encoding="utf-8")
    return {}


RUN = """\
order = 1
seed = 1234
tokenizer = "byte"

[sources]
web = { data = "web_text_document", holdout = "0.1%" }
code = "code_text_document"
books = "books_text_document"

[[stages]]
sequence_length = 128
samples = 300_000
weights = { web = 8, code = 2 }
"""


def _bucket(folder: Path, ending: ExitStack) -> dict[str, str]:
    """An object store with the empty bucket `corpus`, and the variables that lead to it."""
    server = ending.enter_context(S3Server())
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": REGION}
    client = boto3.client("s3", endpoint_url=server.endpoint, **keys)
    client.create_bucket(Bucket="corpus")
    client.close()
    return aws_environment(server.endpoint) | {CACHE_VARIABLE: str(folder.with_name(f"{folder.name}-object-cache"))}


GIVEN: dict[str, Callable[[Path, ExitStack], dict[str, str]]] = {
    "corpus.jsonl": _corpus,
    "tokenizer.json": _tokenizer,
    "chat.jsonl": _chat,
    "s3://corpus": _bucket,
    "run.toml": _run,
}


ROOT = Path(__file__).parents[2]
SESSION = Path(__file__).with_name("session.py")

_FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2$", re.DOTALL | re.MULTILINE)
_GIVEN = re.compile(r"<!-- given: (.*?) -->", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A code block of a page; `line` is that of its opening fence, from 1; `needs` are optional libraries."""

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
    """Runs all blocks of a page in an empty folder; returns their output, stderr included.

    `programs` is a folder with `python` and `tokenloom` (default: those of this process). Raises `AssertionError` with
    the output if a block fails.
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
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command = [python, SESSION, listed]
        done = subprocess.run(command, cwd=folder, env=environment, timeout=timeout, text=True, **streams)
    assert done.returncode == 0, f"{page}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout


def count(pages: Iterable[Path]) -> str:
    """Returns a line with the number of blocks, and how many of them need no optional library."""
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
