"""The house rule: imports go down the list of layers, never up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tokenloom

LAYERS = [
    "errors",
    "numbers",
    "setting_types",
    "optional",
    "distributed",
    "_native",
    "kernels",
    "overrides",
    "storage",
    "indexed",
    "order",
    "preprocess",
    "corpus",
    "datasets",
    "blending",
    "loading",
    "packing",
    "inspect",
    "demo",
    "cli",
]
"""From low to high: a module imports from lower layers and from its own."""

ROOT = Path(tokenloom.__file__).parent
MODULES = {
    ".".join(["tokenloom", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


@dataclass(frozen=True)
class Import:
    """One imported name: `from module import name`, or `import module` with an empty name."""

    module: str
    name: str
    line: int
    deferred: bool
    """Whether it happens inside a function, or for the type checker only."""

    @property
    def target(self) -> str:
        """The module that is needed, as far as its name tells."""
        whole = f"{self.module}.{self.name}"
        return whole if whole in MODULES or whole == "tokenloom._native" else self.module


def imports_of(path: Path) -> list[Import]:
    return list(_walk(ast.parse(path.read_text()), deferred=False))


def _walk(node: ast.AST, *, deferred: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, "", child.lineno, deferred) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: relative import"
            yield from (Import(child.module or "", alias.name, child.lineno, deferred) for alias in child.names)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _walk(child, deferred=deferred or inside or for_types)


def layer_of(module: str) -> str:
    """Returns the layer of `tokenloom.layer.…`."""
    return module.split(".")[1]


OWN_IMPORTS = [
    pytest.param(module, imported, id=f"{module}:{imported.line}:{imported.name}")
    for module, path in MODULES.items()
    for imported in imports_of(path)
    if imported.module.split(".")[0] == "tokenloom" and module != "tokenloom"
]


@pytest.mark.parametrize("module", [module for module in MODULES if module != "tokenloom"])
def test_every_module_has_a_layer(module):
    assert layer_of(module) in LAYERS, f"add `{layer_of(module)}` to the list of layers"


@pytest.mark.parametrize(("module", "imported"), OWN_IMPORTS)
def test_imports_go_down(module, imported):
    assert imported.target != "tokenloom", "inside the package, import from the module that defines the name"
    below, own = LAYERS.index(layer_of(imported.target)), LAYERS.index(layer_of(module))
    assert below <= own, f"`{layer_of(module)}` is below `{layer_of(imported.target)}`"


@pytest.mark.parametrize(("module", "imported"), OWN_IMPORTS)
def test_private_names_stay_private(module, imported):
    if imported.target == "tokenloom._native":
        assert layer_of(module) == "kernels", "the extension is imported through tokenloom.kernels"
        return
    private = [part for part in f"{imported.module}.{imported.name}".split(".") if part.startswith("_")]
    assert [part for part in private if part not in ("__all__", "__version__")] == []


@pytest.mark.parametrize("module", MODULES)
def test_heavy_libraries_are_imported_where_they_are_used(module):
    early = {
        imported.module.split(".")[0]
        for imported in imports_of(MODULES[module])
        if not imported.deferred and imported.module
    }
    tokenizers = {"tokenizers", "gigatoken", "sentencepiece", "tiktoken", "nupunkt"}
    assert early & {*tokenizers, "torch", "rich", "pyarrow", "jinja2", "boto3", "obstore"} == set()


@pytest.mark.parametrize("module", [module for module in MODULES if module != "tokenloom.cli.console"])
def test_only_the_console_knows_rich(module):
    assert not [imported for imported in imports_of(MODULES[module]) if imported.module.split(".")[0] == "rich"]


def test_the_lowest_layer_imports_nothing_of_ours():
    roots = {imported.module.split(".")[0] for imported in imports_of(MODULES["tokenloom.errors"])}
    assert roots <= {"__future__"}


def test_imports_are_found_wherever_they_hide(tmp_path):
    source = (
        "if TYPE_CHECKING:\n    import a\ntry:\n    import b\nexcept E:\n    pass\ndef f():\n    from c.d import e\n"
    )
    (tmp_path / "module.py").write_text(source)
    found = [(imported.module, imported.name, imported.deferred) for imported in imports_of(tmp_path / "module.py")]
    assert found == [("a", "", True), ("b", "", False), ("c.d", "e", True)]
