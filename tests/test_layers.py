"""The house rule: imports go down the list of layers, never up."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import tokenloom

LAYERS = [
    *("errors", "forks", "machine", "registry", "numbers", "setting_types", "optional", "rendering", "progress"),
    *("distributed", "_native", "supported", "kernels", "overrides", "storage", "indexed", "order", "inputs"),
    *("tokenizers", "preprocess", "datasets", "blending", "run", "loading", "packing", "megatron", "inspect"),
    *("adapters", "testing", "cli", "preprocessing", "samplers", "__main__"),
]
"""From low to high: a module imports from lower layers and from its own. The last ones are namespaces for users."""

ROOT = Path(tokenloom.__file__).parent


def files_by_module(pattern: str) -> dict[str, Path]:
    paths = sorted(ROOT.rglob(pattern))
    names = [".".join(["tokenloom", *path.relative_to(ROOT).with_suffix("").parts]) for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


MODULES = files_by_module("*.py")
STUBS = files_by_module("*.pyi").keys() - {"tokenloom._native"}
"""The namespaces of public names."""

MODULES_WITH_TORCH = tuple(f"tokenloom.megatron.{part}." for part in ("core", "training"))
"""Modules that define classes of torch; most replace modules of the reference."""


@dataclass(frozen=True)
class Import:
    """One imported name: `from module import name`, or `import module` with an empty name.

    `deferred` is true inside a function or for type checkers only, `for_types` for type checkers only.
    """

    module: str
    name: str
    line: int
    deferred: bool
    for_types: bool = False

    @property
    def target(self) -> str:
        """The imported module, as far as its name tells."""
        whole = f"{self.module}.{self.name}"
        return whole if whole in MODULES or whole == "tokenloom._native" else self.module


@cache
def imports_of(path: Path) -> list[Import]:
    return list(_walk(ast.parse(path.read_text()), deferred=False))


def _walk(node: ast.AST, *, deferred: bool, for_types: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, "", child.lineno, deferred, for_types) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: relative import"
            names = [alias.name for alias in child.names]
            yield from (Import(child.module or "", name, child.lineno, deferred, for_types) for name in names)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            types = for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            yield from _walk(child, deferred=deferred or inside or types, for_types=types)


def layer_of(module: str) -> str:
    """Returns the layer of `tokenloom.layer.…`."""
    return module.split(".")[1]


@cache
def own_imports() -> list[tuple[str, Import]]:
    """Returns every import of ours, with the module that it stands in."""
    return [
        (module, found)
        for module, path in MODULES.items()
        if module != "tokenloom"
        for found in imports_of(path)
        if found.module.split(".")[0] == "tokenloom"
    ]


def early_imports(module: str) -> set[str]:
    """Returns the libraries that are loaded with a module."""
    found = imports_of(MODULES[module])
    return {imported.module.split(".")[0] for imported in found if not imported.deferred and imported.module}


def at(module: str, imported: Import) -> str:
    return f"{MODULES[module].relative_to(ROOT)}:{imported.line}: {imported.module}.{imported.name}"


def test_every_module_has_a_layer():
    assert {layer_of(module) for module in MODULES if module != "tokenloom"} | {"_native"} == set(LAYERS)


def test_imports_go_down():
    faults = []
    for module, imported in own_imports():
        if imported.target == "tokenloom":
            faults.append(f"{at(module, imported)}: inside the package, import from the module that defines the name")
        elif LAYERS.index(layer_of(imported.target)) > LAYERS.index(layer_of(module)):
            faults.append(f"{at(module, imported)}: `{layer_of(module)}` is below `{layer_of(imported.target)}`")
    assert faults == []


def test_namespaces_are_for_users():
    faults = [
        f"{at(module, imported)}: inside the package, import from the module that defines the name"
        for module, imported in own_imports()
        if imported.name and imported.target in STUBS
    ]
    assert faults == []


def test_modules_do_not_import_each_other_in_circles():
    needs: dict[str, set[str]] = {}
    for module, imported in own_imports():
        if not imported.for_types and imported.target != module:
            needs.setdefault(module, set()).add(imported.target)
    TopologicalSorter(needs).prepare()  # an error names a circle


def test_private_names_stay_private():
    texts = [path.read_text() for module, path in MODULES.items() if module.startswith("tokenloom.kernels.")]
    wrapped = {name for text in texts for name in re.findall(r"\b_native\.(\w+)", text)}
    faults = []
    for module, imported in own_imports():
        if imported.module == "tokenloom._native":
            if imported.name in wrapped:
                faults.append(f"{at(module, imported)}: the extension is imported through tokenloom.kernels")
            continue
        if imported.target == "tokenloom._native":
            continue
        parts = f"{imported.module}.{imported.name}".split(".")
        if any(part.startswith("_") and part not in ("__all__", "__version__") for part in parts):
            faults.append(f"{at(module, imported)}: private")
    assert faults == []


def test_heavy_libraries_are_imported_where_they_are_used():
    tokenizers = {"tokenizers", "gigatoken", "sentencepiece", "tiktoken", "nupunkt"}
    heavy = {*tokenizers, "torch", "rich", "pyarrow", "jinja2", "boto3", "obstore", "h5py", "faiss", "wordllama"}
    found = {module: early_imports(module) & heavy for module in MODULES}
    for module in MODULES:
        if module.startswith(MODULES_WITH_TORCH):
            found[module] -= {"torch"}
    assert {module: libraries for module, libraries in found.items() if libraries} == {}


def test_nothing_is_imported_from_a_file_of_tests():
    tests = Path(__file__).parent
    faults = [
        f"{path.relative_to(tests)}: {line}"
        for path in tests.rglob("*.py")
        for line in path.read_text().splitlines()
        if line.startswith(("from tests.", "import tests.")) and ".test_" in line
    ]
    assert faults == []
