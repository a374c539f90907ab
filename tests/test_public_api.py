"""The public door: what is visible, documented, and cheap to open."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import tokenloom

PUBLIC = [getattr(tokenloom, name) for name in tokenloom.__all__]

LOADED = """
import sys
from tokenloom import *
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_all_is_sorted_and_without_repetitions():
    assert list(tokenloom.__all__) == sorted(set(tokenloom.__all__))


def test_all_is_what_is_visible():
    assert [name for name in dir(tokenloom) if not name.startswith("_")] == list(tokenloom.__all__)
    found = {name for name in vars(tokenloom) if not name.startswith("_")}
    modules = {name for name in found if isinstance(vars(tokenloom)[name], ModuleType)}
    assert found - modules - {"TYPE_CHECKING", "Any", "import_module"} <= set(tokenloom.__all__)


def test_type_checkers_see_what_is_found_at_run_time():
    source = ast.parse(Path(tokenloom.__file__).read_text())
    (for_types,) = [node for node in source.body if isinstance(node, ast.If)]
    assert ast.unparse(for_types.test) == "TYPE_CHECKING"
    homes = {name.name: node.module for node in for_types.body for name in node.names}
    assert sorted(homes) == list(tokenloom.__all__)
    found = {name: getattr(tokenloom, name) for name in tokenloom.__all__}
    assert found == {name: getattr(import_module(home), name) for name, home in homes.items()}


def test_names_are_remembered_and_unknown_ones_refused():
    script = """
import sys, tokenloom
assert not {"numpy", "tokenloom.datasets.gpt"} & set(sys.modules), "nothing is loaded before it is asked for"
assert "GPTDataset" not in vars(tokenloom)
from tokenloom import *
assert vars(tokenloom)["GPTDataset"] is GPTDataset is tokenloom.GPTDataset
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match=r"module 'tokenloom' has no attribute 'GptDataset'"):
        tokenloom.GptDataset  # noqa: B018 - asking is the test
    with pytest.raises(ImportError, match="cannot import name 'GptDataset'"):
        exec("from tokenloom import GptDataset")


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
