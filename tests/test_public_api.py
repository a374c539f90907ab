"""The public door: what is visible, documented, and cheap to open."""

import inspect
import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tokenloom

NAMESPACES = (
    *("adapters", "blending", "datasets", "distributed", "errors", "indexed", "loading", "order", "packing"),
    *("preprocessing", "run", "samplers", "storage", "testing", "tokenizers"),
)

PUBLIC = {
    f"{namespace}.{name}": getattr(module, name)
    for namespace in NAMESPACES
    for module in [import_module(f"tokenloom.{namespace}")]
    for name in dir(module)
    if not name.startswith("_")
}

LOADED = """
import sys
from tokenloom import *
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""

TYPED = {
    "from tokenloom import PackPlan, find_inputs": None,
    "import tokenloom": None,
    "from tokenloom import packing": None,
    "from tokenloom.samplers import BatchSizeRampup": None,
    "reveal_type(tokenloom.__version__)": 'note: Revealed type is "str"',
    "reveal_type(find_inputs([]))": 'note: Revealed type is "tokenloom.inputs.find.FoundInputs"',
    "plan: PackPlan = 1": 'error: Incompatible types in assignment (expression has type "int"',
    "plan = packing.PackPlan()": 'error: Missing named argument "num_ranks" for "PackPlan"',
    "BatchSizeRampup(other=1)": 'error: Unexpected keyword argument "other" for "BatchSizeRampup"',
    "tokenloom.GptDataset": 'error: Module has no attribute "GptDataset"; maybe "GPTDataset"?',
    "packing.PackPlans": 'error: Module has no attribute "PackPlans"; maybe "PackPlan"?',
}
"""Lines of a user's program, and how begins what a type checker says to each."""


def test_names_at_the_top_are_sorted_and_few():
    assert list(tokenloom.__all__) == sorted(set(tokenloom.__all__))
    assert len(tokenloom.__all__) <= 44


def test_all_is_what_is_visible():
    visible = [name for name in dir(tokenloom) if not name.startswith("_")]
    assert visible == sorted([*tokenloom.__all__, *NAMESPACES])
    for namespace in NAMESPACES:
        module = import_module(f"tokenloom.{namespace}")
        assert module.__doc__
        assert namespace == "errors" or dir(module) == sorted(module.__all__)


def test_every_public_name_has_one_namespace_and_is_found_at_the_top():
    names = [path.partition(".")[2] for path in PUBLIC]
    assert sorted(names) == sorted(set(names))
    assert set(tokenloom.__all__) <= set(names)
    assert {path: getattr(tokenloom, path.partition(".")[2]) for path in PUBLIC} == PUBLIC


def test_names_are_remembered_and_unknown_ones_refused():
    script = """
import sys, tokenloom
assert not {"numpy", "lazy_loader", "tokenloom.datasets.gpt"} & set(sys.modules), "nothing is loaded unasked"
assert "GPTDataset" not in vars(tokenloom)
from tokenloom import *
assert vars(tokenloom)["GPTDataset"] is GPTDataset is tokenloom.GPTDataset is tokenloom.datasets.GPTDataset
assert "tokenloom.loading.losses" not in sys.modules
from tokenloom.loading import JsonLinesWriter
assert JsonLinesWriter is tokenloom.JsonLinesWriter
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match=r"module 'tokenloom' has no attribute 'GptDataset'"):
        tokenloom.GptDataset  # noqa: B018 - asking is the test
    with pytest.raises(ImportError, match="cannot import name 'GptDataset'"):
        exec("from tokenloom import GptDataset")
    with pytest.raises(AttributeError, match=r"No tokenloom.packing attribute PackPlans"):
        tokenloom.packing.PackPlans  # noqa: B018 - asking is the test


@pytest.mark.slow
def test_namespaces_load_whole_where_laziness_is_switched_off():
    # Each in a process that loads it first: a fork of one that has NumPy only.
    script = """
import os, sys, numpy
for namespace in sys.argv[1:]:
    if os.fork() == 0:
        exec(f"import tokenloom.{namespace}, tokenloom; tokenloom.GPTDataset")
        os._exit(0)
    print(namespace, os.waitstatus_to_exitcode(os.wait()[1]))
"""
    command = [sys.executable, "-c", script, *NAMESPACES]
    done = subprocess.run(command, env={**os.environ, "EAGER_IMPORT": "1"}, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{namespace} 0" for namespace in NAMESPACES], done.stderr


def test_unknown_names_are_answered_with_the_nearest():
    done = subprocess.run([sys.executable, "-c", "import tokenloom; tokenloom.GptDataset"], capture_output=True)
    assert b"Did you mean: 'GPTDataset'?" in done.stderr


def test_public_classes_are_pickled_by_the_module_that_defines_them():
    for value in PUBLIC.values():
        if inspect.isclass(value) or inspect.isfunction(value):
            assert pickle.loads(pickle.dumps(value)) is value


@pytest.mark.slow
def test_type_checkers_see_the_namespaces_and_what_stood_at_the_top(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text("\n".join(TYPED))
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "user.py"]
    sources = {**os.environ, "MYPYPATH": str(Path(tokenloom.__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=sources, capture_output=True, text=True)
    said: dict[str, str] = {}
    for line in done.stdout.splitlines()[:-1]:
        _, number, remark = line.split(":", 2)
        said.setdefault(list(TYPED)[int(number) - 1], remark.strip())
    expected = {line: start for line, start in TYPED.items() if start is not None}
    assert {line: remark[: len(expected.get(line, remark))] for line, remark in said.items()} == expected


def test_public_names_and_methods_are_documented():
    undocumented = []
    for path, value in PUBLIC.items():
        if not value.__doc__ or (inspect.isclass(value) and value.__doc__ == getattr(value.__base__, "__doc__", None)):
            undocumented.append(path)
        members = vars(value).items() if inspect.isclass(value) else ()
        undocumented += [
            f"{path}.{name}"
            for name, member in members
            if not name.startswith("_")
            and (inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod)))
            and not inspect.getdoc(getattr(value, name))
        ]
    assert undocumented == []


def test_importing_the_package_loads_no_heavy_library():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    libraries = "torch obstore boto3 tokenizers gigatoken rich pyarrow megatron hypothesis matplotlib"
    assert set(libraries.split()) & set(done.stdout.split()) == set()
    assert done.stderr == ""


def test_the_committed_stub_is_what_the_extension_has(tmp_path):
    pytest.importorskip("nanobind.stubgen")
    generated = tmp_path / "_native.pyi"
    command = [sys.executable, str(Path(__file__).parent.parent / "native" / "make_stub.py"), str(generated)]
    subprocess.run(command, check=True, capture_output=True)
    committed = Path(tokenloom.__file__).with_name("_native.pyi").read_text()
    assert committed == generated.read_text(), "run `make stub`"
