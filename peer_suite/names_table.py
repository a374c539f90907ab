"""Writes `tests/golden/megatron_names.json`: the names and parameters of Megatron's data modules in several versions.

    python -m peer_suite.names_table VERSION=FOLDER …

FOLDER contains `megatron/`. If parameters differ between versions, the last version is used. Modules are parsed, not
imported.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

FOLDERS = ("core/datasets", "training/datasets", "legacy/data")
TABLE = Path(__file__).parents[1] / "tests" / "golden" / "megatron_names.json"


def parameters(node: ast.FunctionDef) -> str:
    """Returns the names of the parameters without `self`; "=" follows the name of a parameter with a default."""
    given = node.args
    names = [argument.arg for argument in given.posonlyargs + given.args]
    names = [f"{name}=" if number >= len(names) - len(given.defaults) else name for number, name in enumerate(names)]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [
        f"{argument.arg}=" if default else argument.arg
        for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    names += [f"**{given.kwarg.arg}"] if given.kwarg else []
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if "property" in decorators:
        return "property"
    return ", ".join(name for name in names if name not in ("self", "cls"))


def names_of(body: list[ast.stmt], prefix: str = "") -> dict[str, str]:
    """Returns the names that a module or class defines, each with its parameters, "class", "value" or "import"."""
    found: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found[prefix + node.name] = parameters(node)
        elif isinstance(node, ast.ClassDef):
            found[prefix + node.name] = "class"
            found |= names_of(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {prefix + target.id: "value" for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("megatron") and not prefix:
            found |= {alias.asname or alias.name: "import" for alias in node.names if alias.name != "*"}
    return found


def main(arguments: list[str]) -> None:
    table: dict[str, dict[str, list[str]]] = {}
    for argument in arguments:
        version, _, folder = argument.partition("=")
        for path in (path for part in FOLDERS for path in sorted((Path(folder) / "megatron" / part).glob("*.py"))):
            if path.stem == "__init__":
                continue
            module = ".".join(path.relative_to(folder).with_suffix("").parts)
            names = table.setdefault(module, {})
            for name, kind in names_of(ast.parse(path.read_text()).body).items():
                versions = names.get(name, ["", ""])[1].split()
                names[name] = [kind, " ".join(dict.fromkeys([*versions, version]))]
    TABLE.write_text(
        "{\n"
        + ",\n".join(
            f" {json.dumps(module)}: {{\n"
            + ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in names.items())
            + "\n }"
            for module, names in sorted(table.items())
        )
        + "\n}\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
