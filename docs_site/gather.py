"""Gathers all pages of the site in one folder, with every link leading to a page of it.

A page of the repository keeps its path, so links between pages hold on a code host as they hold here. What a page links
to that is no page (a module, an example, a folder) becomes one: its text, with a number and an anchor for every line.
A link that leads to nothing is an error.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

from docs_site import command_line, names, settings

ROOT = Path(__file__).parents[1]
FIRST = ("README.md", "FORMAT.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md")

_CODE = re.compile(r"^( *)(`{3,}).*?^\1\2$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_MARKER = re.compile(r"(?<=```python) needs=\S+$", re.MULTILINE)  # which the builder takes for text
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_LANGUAGES = {".py": "python", ".pyi": "python", ".hpp": "cpp", ".cpp": "cpp", ".toml": "toml", ".json": "json"}


class BrokenLinkError(Exception):
    """A link of a page leads to nothing."""


def generated() -> dict[str, str]:
    """Returns the pages that follow from the code, by their paths."""
    made = {f"reference/{path}": text for path, text in names.pages().items()}
    made |= {f"reference/command-line/{path}": text for path, text in command_line.pages().items()}
    return made | {"reference/settings.md": settings.page()}


def gather() -> dict[str, str | Path]:
    """Returns all pages and pictures by their paths: texts, or the files that are to be copied.

    Raises:
        BrokenLinkError: a link leads to nothing.
    """
    made = generated()
    waiting = [*made, *FIRST, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
    found: dict[str, str | Path] = {}
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        if not path.endswith(".md") and path not in made:
            found[path] = ROOT / path
            continue
        source = path.removesuffix(".md") if path not in made and not (ROOT / path).exists() else path
        text = made.get(path) or _text_of(source)
        found[path] = linked(text, path, waiting, made) if source == path else text
    found["index.md"] = found.pop("README.md")
    return found


def write(folder: Path) -> int:
    """Writes what `gather` returns into a folder, in place of what is there; returns the number of pages."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = gather()
    for path, page in pages.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(page, Path):
            shutil.copyfile(page, target)
        else:
            target.write_text(page, encoding="utf-8")
    return sum(path.endswith(".md") for path in pages)


def navigated() -> set[str]:
    """Returns the pages that the navigation names."""

    def leaves(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict | list):
            for each in entry.values() if isinstance(entry, dict) else entry:
                yield from leaves(each)

    return set(leaves(tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]))


def _text_of(path: str) -> str:
    """Returns a page of the repository, or the page of a file that is none."""
    file = ROOT / path
    text = file.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return _MARKER.sub("", text)
    fence = "`" * 4
    language = _LANGUAGES.get(file.suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n{fence}{{.{language} linenums=1}}\n{text}{fence}\n"


def linked(text: str, page: str, waiting: list[str], made: dict[str, str]) -> str:
    """Returns a page whose links lead to pages; what they lead to is put among what is waiting."""

    def lead(link: re.Match[str]) -> str:
        target, _, anchor = link[1].partition("#")
        if "://" in target or target.startswith("mailto:") or not target:
            return link[1]
        path = posixpath.normpath(
            target.lstrip("/") if target.startswith("/") else posixpath.join(posixpath.dirname(page), target)
        )
        if (ROOT / path).is_dir():
            path = posixpath.join(path, "README.md")
        if path not in made and not (ROOT / path).is_file():
            message = f"{page}: `{link[1]}` leads to nothing"
            raise BrokenLinkError(message)
        is_page = path.endswith((".md", ".png", ".svg"))
        shown = path if is_page else f"{path}.md"
        waiting.append(shown)
        anchor = re.sub(r"^L(\d+)$", r"__codelineno-0-\1", anchor)
        shown = "index.md" if shown == "README.md" else shown
        start = posixpath.dirname("index.md" if page == "README.md" else page)
        return posixpath.relpath(shown, start or ".") + (f"#{anchor}" if anchor else "")

    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [_LINK.sub(lead, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join(parts) + _LINK.sub(lead, text[end:])


def main() -> None:
    """Writes the pages."""
    parser = argparse.ArgumentParser(prog="python -m docs_site.gather", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    num_pages = write(parser.parse_args().folder)
    documented, every = names.num_documented()
    print(f"{num_pages} pages; public names and methods documented / all: {documented} / {every}")


if __name__ == "__main__":
    main()
