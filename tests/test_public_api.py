"""The public door: what is visible, documented, and cheap to open."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tokenloom

PUBLIC = [getattr(tokenloom, name) for name in tokenloom.__all__]

LOADED = """
import sys
import tokenloom
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_all_is_sorted_and_without_repetitions():
    assert list(tokenloom.__all__) == sorted(set(tokenloom.__all__))


def test_all_is_what_is_visible():
    visible = {
        name
        for name, value in vars(tokenloom).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert visible == set(tokenloom.__all__)


@pytest.mark.parametrize("value", PUBLIC, ids=tokenloom.__all__)
def test_public_names_are_documented(value):
    assert value.__doc__
    assert value.__doc__ != getattr(value.__base__, "__doc__", None) if inspect.isclass(value) else True


@pytest.mark.parametrize("value", PUBLIC, ids=tokenloom.__all__)
def test_public_methods_are_documented(value):
    if not inspect.isclass(value):
        return
    undocumented = [
        name
        for name, member in vars(value).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod)))
        and not inspect.getdoc(getattr(value, name))
    ]
    assert undocumented == []


def test_importing_the_package_loads_no_heavy_library():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    heavy = {
        "torch",
        "obstore",
        "boto3",
        "tokenizers",
        "gigatoken",
        "rich",
        "pyarrow",
        "megatron",
        "hypothesis",
        "matplotlib",
    }
    assert heavy & set(done.stdout.split()) == set()
    assert done.stderr == ""


def test_the_committed_stub_is_what_the_extension_has(tmp_path):
    stubgen = pytest.importorskip("nanobind.stubgen")
    generated = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", stubgen.__name__, "-m", "tokenloom._native", "-o", str(generated)]
    subprocess.run(command, check=True, capture_output=True)
    committed = Path(tokenloom.__file__).with_name("_native.pyi").read_text()
    assert committed == generated.read_text(), "run `make stub`"


def test_the_package_says_that_it_is_typed():
    assert Path(tokenloom.__file__).with_name("py.typed").exists()
