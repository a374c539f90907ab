"""What `import tokenloom` says where it cannot work: in processes that are, or believe to be, of another kind."""

from __future__ import annotations

import glob
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import tokenloom
from tokenloom import _native

PACKAGE = Path(tokenloom.__file__).parent
HERE = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
WHEREVER = "`pip install --no-binary tokenloom tokenloom`, which needs a C++ compiler"


def package_with(folder: Path, native: dict[str, str]) -> Path:
    """Makes a package of the Python files as they are, and of other compiled modules; returns it."""
    package = folder / "tokenloom"
    package.mkdir()
    for entry in PACKAGE.iterdir():
        if entry.name not in ("supported.py", "__pycache__") and (entry.suffix == ".py" or entry.is_dir()):
            (package / entry.name).symlink_to(entry)
    (package / "supported.py").write_text((PACKAGE / "supported.py").read_text())  # looks where it lies
    for name, content in native.items():
        (package / name).write_text(content)
    return package


def imported(folder: Path, before: str = "", python: str = sys.executable) -> list[str]:
    """Imports tokenloom from a folder; returns the lines of the ImportError that ends it."""
    program = f"import sys; sys.path.insert(0, sys.argv[1])\n{before}\nimport tokenloom"
    # Without `site`, which would bring the package that is installed.
    command = [python, "-I", "-S", "-B", "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr[done.stderr.rindex("\nImportError: ") + 1 :].splitlines()


def test_what_works_is_silent():
    done = subprocess.run([sys.executable, "-c", "import tokenloom"], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_version_has_one_source():
    assert _native.version() == tokenloom.__version__
    text = (PACKAGE / "__init__.py").read_text()
    assert text.count(f'"{tokenloom.__version__}"') == 1


def older_pythons() -> list[str]:
    """Pythons of this machine that are too old, whatever brought them."""
    found = glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")) + glob.glob("/usr/bin/python3.?")
    versions = {path: path.split("/3.")[-1].partition(".")[0] for path in found if "/3." in path}
    return sorted(path for path, minor in versions.items() if minor.isdigit() and 6 <= int(minor) < 11)


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 6, 15)])
def test_a_python_that_is_too_old_is_told_which_it_takes(tmp_path, version):
    package_with(tmp_path, {})
    assert imported(tmp_path, f"sys.version_info = {(*version, 'final', 0)}") == [
        f"ImportError: tokenloom needs Python 3.11 or newer, found 3.{version[1]}.{version[2]}",
        "hint: install it into an environment of a newer Python",
    ]


def test_older_pythons_get_as_far_as_the_message(tmp_path):
    package_with(tmp_path, {})
    for python in older_pythons():
        message, hint = imported(tmp_path, python=python)
        assert message.startswith("ImportError: tokenloom needs Python 3.11 or newer, found 3.")
        assert hint == "hint: install it into an environment of a newer Python"


def test_a_python_of_32_bits_is_refused(tmp_path):
    package_with(tmp_path, {})
    assert imported(tmp_path, "sys.maxsize = 2**31 - 1") == [
        "ImportError: tokenloom needs a Python of 64 bits, found one of 32: corpora have more tokens than those count",
        "hint: install a Python of 64 bits",
    ]


def test_a_big_endian_machine_is_refused(tmp_path):
    package_with(tmp_path, {})
    assert imported(tmp_path, "sys.byteorder = 'big'") == [
        "ImportError: tokenloom needs a little-endian machine, as its files are, found a big-endian one",
        "hint: use a machine of x86-64 or aarch64",
    ]


@pytest.mark.parametrize(("system", "name"), [("darwin", "Darwin"), ("win32", "Windows")], ids=["macOS", "Windows"])
def test_a_system_without_a_build_is_named(tmp_path, system, name):
    package = package_with(tmp_path, {})
    pretend = f"import platform; sys.platform = {system!r}; platform.system = lambda: {name!r}"
    assert imported(tmp_path, pretend) == [
        f"ImportError: tokenloom has no compiled module for {HERE.replace('Linux', name)}, found none in `{package}`",
        "hint: use Linux: tokenloom is built and tested there alone",
    ]


def test_a_missing_compiled_module_is_named_with_those_of_other_pythons(tmp_path):
    package = package_with(tmp_path, {"_native.cpython-309-x86_64-linux-gnu.so": "", "_native.pyi": ""})
    assert imported(tmp_path) == [
        f"ImportError: tokenloom has no compiled module for {HERE}, "
        f"found _native.cpython-309-x86_64-linux-gnu.so in `{package}`",
        f"hint: install tokenloom with this Python: `pip install tokenloom`, or {WHEREVER}",
    ]


def test_a_compiled_module_that_does_not_load_is_told_with_the_reason(tmp_path):
    package = package_with(tmp_path, {"_native.abi3.so": "no library"})
    message, hint = imported(tmp_path)
    assert message == (
        f"ImportError: the compiled module of tokenloom cannot be loaded by {HERE}: "
        f"{package / '_native.abi3.so'}: file too short"
    )
    assert hint == f"hint: build it on this machine: {WHEREVER}"


def test_a_compiled_module_of_another_version_is_refused(tmp_path):
    package = package_with(tmp_path, {"_native.py": "def version():\n    return '0.0.9'\n"})
    assert imported(tmp_path) == [
        f"ImportError: expected the compiled module of tokenloom {tokenloom.__version__}, "
        f"found that of 0.0.9: `{package / '_native.py'}`",
        "hint: install tokenloom anew: `pip install --force-reinstall tokenloom`, or `pip install .` in a clone",
    ]
