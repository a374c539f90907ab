"""What is in wheels and sdist: all that is tracked and needed, and nothing else."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

VERSION = re.search(r'^__version__ = "(.*)"$', Path("src/tokenloom/__init__.py").read_text(), re.MULTILINE)[1]
TRACKED = set(subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines())
PACKAGE = {
    path.removeprefix("src/") for path in TRACKED if path.startswith("src/tokenloom/") and not path.endswith(".md")
}
INFO = f"tokenloom-{VERSION}.dist-info"
LICENSES = {f"{INFO}/licenses/LICENSE", f"{INFO}/licenses/NOTICE"}
EXPECTED_INFO = {f"{INFO}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")} | LICENSES


def check_same(what: str, found: set[str], expected: set[str]) -> None:
    lacking, foreign = sorted(expected - found), sorted(found - expected)
    assert not lacking, f"{what} lacks {lacking}"
    assert not foreign, f"{what} has what it should not: {foreign}"


def check_wheel(path: Path) -> None:
    assert re.search(r"-(cp311-cp311|cp312-abi3)-manylinux_2_\d+_\w+\.whl$", path.name), path.name
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        natives = {name for name in names if re.fullmatch(r"tokenloom/_native\.[\w.-]*so", name)}
        metadata = message_from_bytes(wheel.read(f"{INFO}/METADATA"))
    assert len(natives) == 1, natives
    sboms = {name for name in names if name.startswith(f"{INFO}/sboms/")}  # what auditwheel writes where it bundles
    check_same(path.name, names - natives - sboms, PACKAGE | EXPECTED_INFO)
    assert metadata["Version"] == VERSION
    assert "tokenloom/py.typed" in names


def check_satellite(path: Path) -> None:
    name = path.name.split("-")[0]
    sources = f"packages/{name.replace('_', '-')}/src/"
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert path.name.endswith("-py3-none-any.whl"), path.name
    check_same(path.name, names, {path.removeprefix(sources) for path in TRACKED if path.startswith(sources)})


def check_sdist(path: Path) -> None:
    top = f"tokenloom-{VERSION}/"
    with tarfile.open(path) as sdist:
        names = {member.name.removeprefix(top) for member in sdist if member.isfile()}
    native = {path for path in TRACKED if path.startswith("native/") and path.endswith((".cpp", ".hpp"))}
    files = {"CMakeLists.txt", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "NOTICE", "PKG-INFO"}
    check_same(path.name, names, {f"src/{name}" for name in PACKAGE} | native | files)


if __name__ == "__main__":
    for built in map(Path, sys.argv[1:]):
        if built.name.startswith("tokenloom_"):
            check_satellite(built)
        else:
            (check_wheel if built.suffix == ".whl" else check_sdist)(built)
        print(f"wheel-check: {built.name} has what it should, and nothing else")
