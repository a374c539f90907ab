"""`tests/` mirrors the package: who looks for the tests of a module finds them under its name."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "tokenloom"

OTHER_FOLDERS = {"benchmarks", "browser", "docs", "fuzz", "object_store", "peer", "reference", "simulation", "wheel"}
"""Folders of tests that belong to no room of the package."""

MOST_WITHOUT_TWIN = 90
"""Modules whose behaviour is tested at the level of their room only. This number may fall, never rise."""


def modules() -> list[Path]:
    """Returns the modules of the package with code of their own, relative to it."""
    found = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
    return sorted(path for path in found if path.name not in ("__init__.py", "__main__.py"))


def test_every_folder_of_tests_has_a_room():
    folders = {path.relative_to(TESTS) for path in TESTS.rglob("*") if path.is_dir() and any(path.glob("*.py"))}
    assert {path.parts[0] for path in folders - {Path(".")} if not (PACKAGE / path).is_dir()} == OTHER_FOLDERS


def test_ever_more_modules_have_tests_under_their_name():
    without = [str(path) for path in modules() if not (TESTS / path.parent / f"test_{path.name}").exists()]
    assert len(without) <= MOST_WITHOUT_TWIN, without


def test_nothing_is_imported_from_a_file_of_tests():
    importing = [
        f"{path.relative_to(TESTS)}: {line}"
        for path in TESTS.rglob("*.py")
        for line in path.read_text().splitlines()
        if line.startswith(("from tests.", "import tests.")) and ".test_" in line
    ]
    assert not importing
