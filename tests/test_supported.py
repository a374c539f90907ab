"""What `import tokenloom` says where it cannot work: in processes that are, or believe to be, of another kind."""

import platform
import subprocess
import sys
from pathlib import Path

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


def test_the_version_has_one_source():
    assert _native.version() == tokenloom.__version__
    text = (PACKAGE / "__init__.py").read_text()
    assert text.count(f'"{tokenloom.__version__}"') == 1


def test_a_python_that_is_too_old_is_told_which_it_takes(tmp_path):
    version = (3, 10, 13)
    package_with(tmp_path, {})
    assert imported(tmp_path, f"sys.version_info = {(*version, 'final', 0)}") == [
        f"ImportError: tokenloom needs Python 3.11 or newer, found 3.{version[1]}.{version[2]}",
        "hint: install tokenloom into an environment with a newer Python",
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
        f"found version 0.0.9: `{package / '_native.py'}`",
        "hint: run `pip install --force-reinstall tokenloom`, or `pip install .` in a clone",
    ]
