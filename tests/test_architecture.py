"""The map is of this house: what ARCHITECTURE.md and the READMEs of packages name is there, each word defined once."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tokenloom"
MAP = ROOT / "ARCHITECTURE.md"
PAGES = [
    MAP,
    ROOT / "CONTRIBUTING.md",
    ROOT / "FORMAT.md",
    ROOT / "README.md",
    ROOT / "native" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(PACKAGE.rglob("README.md")),
    *sorted((ROOT / "packages").glob("*/README.md")),
]

_CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)
_IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#]+)\)")
_PATH = re.compile(r"[\w.-]+(/[\w.-]+)*(/|\.(py|pyi|hpp|cpp|md))|[a-z_]+(/[\w.]+)+")
_DOTTED = re.compile(r"tokenloom(\.\w+)+")
_NOT_KEPT = re.compile(r"build/.*|.*/[A-Z]{4,}/.*")  # made by commands, or with a word that stands for many
_CLASS = re.compile(r"[A-Z][a-z]+([A-Z0-9][a-z]*)+")


def named(page: Path) -> list[str]:
    return _IN_BACKTICKS.findall(_CODE_BLOCK.sub("", page.read_text()))


def is_there(path: str, page: Path) -> bool:
    """Whether a path leads to something, seen from the page, the package or the top; a module needs no suffix."""
    places = [folder / path for folder in (page.parent, *page.parent.glob("src/*"), PACKAGE, ROOT)]
    return any(place.exists() or place.with_name(f"{place.name}.py").exists() for place in places)


def is_defined(dotted: str) -> bool:
    """Whether `tokenloom.a.b` is a module, or a name of one."""
    *folders, last = dotted.split(".")[1:]
    home = PACKAGE.joinpath(*folders)
    if home.joinpath(last).exists() or home.joinpath(f"{last}.py").exists():
        return True
    texts = [file.read_text() for file in (home.with_suffix(".py"), home.with_suffix(".pyi")) if file.exists()]
    texts += [file.read_text() for file in (home / "__init__.py", home / "__init__.pyi") if file.exists()]
    return any(re.search(rf"\b{last}\b", text) for text in texts)


@cache
def sources() -> str:
    files = [*PACKAGE.rglob("*.py"), *ROOT.glob("packages/*/src/**/*.py"), *(ROOT / "native").rglob("*.hpp")]
    return "\n".join(file.read_text() for file in files)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_that_a_page_names_is_there(page):
    words = named(page)
    paths = [word for word in words if _PATH.fullmatch(word) and not _NOT_KEPT.fullmatch(word)]
    missing = [path for path in paths if not is_there(path, page)]
    missing += [word for word in words if _DOTTED.fullmatch(word) and not is_defined(word)]
    missing += [word for word in words if _CLASS.fullmatch(word) and not re.search(rf"\b{word}\b", sources())]
    links = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    missing += [link for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_every_package_has_its_paragraph_and_place_in_the_drawing():
    packages = sorted(folder.parent.name for folder in PACKAGE.glob("*/__init__.py"))
    text = MAP.read_text()
    drawing = "\n".join(_CODE_BLOCK.findall(text))
    assert [name for name in packages if f"{name}/" not in drawing or f"**`{name}/`**" not in text] == []


def test_the_map_stays_short():
    lines = MAP.read_text().splitlines()
    drawing = [line for block in _CODE_BLOCK.findall(MAP.read_text()) for line in block.splitlines()]
    assert len(lines) <= 150
    assert max(map(len, drawing)) <= 80
    assert [line for line in lines if len(line) > 140] == []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name == "README.md" and page.parent not in (ROOT, PACKAGE)],
    ids=lambda page: page.parent.name,
)
def test_every_room_names_its_level(page):
    assert re.match(r"# .+\n\nLevel [123]\b", page.read_text())
