"""The reference of public names: a page per namespace, from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import tokenloom
from docs_site.docstrings import as_markdown, parse, rows_of, summary, table

ROOT = Path(__file__).parents[1]
PACKAGE = "tokenloom"


def namespaces() -> list[str]:
    """Returns the names of the namespaces."""
    return sorted(name for name in dir(tokenloom) if inspect.ismodule(getattr(tokenloom, name)))


def public_names(namespace: str) -> dict[str, Any]:
    """Returns the public names of a namespace, and what they are."""
    module = import_module(f"{PACKAGE}.{namespace}")
    return {name: getattr(module, name) for name in sorted(dir(module)) if not name.startswith("_")}


def pages() -> dict[str, str]:
    """Returns the pages by their paths below `reference/`."""
    made = {f"{name}.md": namespace_page(name) for name in namespaces()}
    rows = [
        (
            f"[`tokenloom.{name}`]({name}.md)",
            summary(import_module(f"{PACKAGE}.{name}").__doc__),
            str(len(public_names(name))),
        )
        for name in namespaces()
    ]
    top = [
        (f"[`{name}`]({_home(name)}.md#{anchor(name)})", summary(getattr(tokenloom, name).__doc__))
        for name in tokenloom.__all__
    ]
    made["index.md"] = (
        "# Public names\n\nWhat most programs need is at the top of `tokenloom`, and also in its namespace; the rest "
        "is in its namespace.\n\n"
        + table(("namespace", "what it has", "names"), rows)
        + "\n\n## At the top\n\n"
        + table(("name", "is"), top)
        + "\n"
    )
    return made


def namespace_page(namespace: str) -> str:
    """Returns the page of a namespace."""
    module = import_module(f"{PACKAGE}.{namespace}")
    names = public_names(namespace)
    index = table(
        ("name", "is"), [(f"[`{name}`](#{anchor(name)})", summary(_doc_of(value))) for name, value in names.items()]
    )
    parts = [f"# `tokenloom.{namespace}`", as_markdown(parse(module.__doc__), level=2), index]
    parts += [_entry(name, value) for name, value in names.items()]
    return "\n\n".join(parts) + "\n"


def undocumented() -> list[str]:
    """Returns public names, and methods and parameters of them, without a word of documentation."""
    missing = []
    for namespace in namespaces():
        for name, value in public_names(namespace).items():
            path = f"{namespace}.{name}"
            missing += [path] if not _doc_of(value) else []
            if inspect.isclass(value):
                missing += [f"{path}.{each}" for each, member in members(value) if not _doc_of(member)]
    return missing


def num_documented() -> tuple[int, int]:
    """Returns how many public names and methods are documented, and how many there are."""
    every = sum(
        1 + (sum(1 for _ in members(value)) if inspect.isclass(value) else 0)
        for namespace in namespaces()
        for value in public_names(namespace).values()
    )
    return every - len(undocumented()), every


def anchor(name: str) -> str:
    """Returns what a heading with this name is linked by."""
    return name.lower().replace(".", "")


def _home(name: str) -> str:
    return next(namespace for namespace in namespaces() if name in public_names(namespace))


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties of a class, and of those of its bases that are not public themselves."""
    seen = {"with_traceback", "add_note"}
    for base in kind.__mro__:
        is_ours = base.__module__.startswith(PACKAGE)
        if not is_ours or (base is not kind and base in _public_classes()):
            continue
        for name, member in vars(base).items():
            is_code = inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))
            if is_code and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, getattr(kind, name) if not isinstance(member, property) else member


def _public_classes() -> set[type]:
    if not _CLASSES:
        _CLASSES.update(
            value for name in namespaces() for value in public_names(name).values() if inspect.isclass(value)
        )
    return _CLASSES


_CLASSES: set[type] = set()


def _entry(name: str, value: Any) -> str:
    parts = [f"## {name}"]
    if inspect.isclass(value):
        parts += [_class_facts(value)]
    elif callable(value):
        parts += [f"```python\n{signature(name, value)}\n```"]
    else:
        parts += [f"A `{type(value).__name__}`."]
    doc = parse(_doc_of(value))
    parts += [as_markdown(doc, level=3)]
    parts += [_parameters(value, doc)]
    parts += [source_link(value)]
    if inspect.isclass(value):
        for each, member in members(value):
            parts += [f"### {name}.{each}"]
            function = member.fget if isinstance(member, property) else member
            shown = (
                f"{each}: {_annotation(inspect.signature(function).return_annotation)}"
                if isinstance(member, property)
                else signature(each, function)
            )
            said = parse(inspect.getdoc(member))
            parts += [f"```python\n{shown}\n```", as_markdown(said, level=4), _parameters(function, said)]
    return "\n\n".join(part for part in parts if part)


def _class_facts(kind: type) -> str:
    shown = (
        f"class {signature(kind.__name__, kind)}" if not issubclass(kind, BaseException) else f"class {kind.__name__}"
    )
    bases = [base for base in kind.__mro__[1:] if base in _public_classes()]
    line = ", ".join(f"[`{base.__name__}`]({_home(base.__name__)}.md#{anchor(base.__name__)})" for base in bases)
    standard = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins" and base is not object]
    parts = [f"```python\n{shown}\n```"]
    parts += [f"Has all that these have: {line}."] if line else []
    parts += [f"Is also a {', '.join(f'`{each}`' for each in standard)}."] if standard else []
    return "\n\n".join(parts)


def signature(name: str, value: Any) -> str:
    """Returns how something is called, a parameter per line where one line is too short."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return f"{name}(…)"
    parameters = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    shown = []
    for place, each in enumerate(parameters):
        before = parameters[place - 1].kind if place else None
        if each.kind is each.KEYWORD_ONLY and before not in (each.KEYWORD_ONLY, each.VAR_POSITIONAL):
            shown.append("*")
        shown.append(_parameter(each))
    returned = (
        ""
        if found.return_annotation is inspect.Signature.empty or inspect.isclass(value)
        else f" -> {_annotation(found.return_annotation)}"
    )
    line = f"{name}({', '.join(shown)}){returned}"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){returned}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    kind = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
    return f"{stars}{parameter.name}{kind}{default}"


def _annotation(value: Any) -> str:
    if isinstance(value, str):
        return value.strip("'\"") if value[:1] in "'\"" else value
    return value.__name__ if inspect.isclass(value) else str(value).replace("typing.", "")


def _default(value: Any) -> str:
    if inspect.isfunction(value) or inspect.isclass(value):
        return value.__name__
    shown = repr(value)
    return "…" if shown.startswith("<") or len(shown) > 60 else shown


def _parameters(value: Any, doc: Any) -> str:
    """Returns a table of fields or parameters; for settings, with those of the classes above."""
    types: dict[str, tuple[str, str]] = {}
    items = dict(doc.items)
    if inspect.isclass(value) and dataclasses.is_dataclass(value):
        for base in reversed(value.__mro__):
            items = {**parse(base.__doc__).items, **items} if base.__module__.startswith(PACKAGE) else items
        for each in dataclasses.fields(value):
            if each.name.startswith("_"):
                continue
            missing = each.default is dataclasses.MISSING
            default = "" if missing else _default(each.default)
            default = (
                "computed"
                if not each.init
                else "…"
                if missing and each.default_factory is not dataclasses.MISSING
                else default
            )
            types[each.name] = (_annotation(each.type), default)
        items |= doc.items
    elif doc.items:
        try:
            parameters = inspect.signature(value).parameters
        except (TypeError, ValueError):
            parameters = {}
        for name in doc.items:
            each = parameters.get(name)
            kind = "" if each is None or each.annotation is each.empty else _annotation(each.annotation)
            types[name] = (kind, "" if each is None or each.default is each.empty else _default(each.default))
    if not types:
        return ""
    return table(("name", "type", "default", "meaning"), rows_of(items, types))


def _doc_of(value: Any) -> str | None:
    if inspect.isclass(value) or callable(value) or isinstance(value, (property, ModuleType)):
        return inspect.getdoc(value)
    return type(value).__doc__


def source_link(value: Any) -> str:
    """Returns a link to where something is defined; empty where that cannot be told."""
    try:
        path, (_, line) = inspect.getsourcefile(value), inspect.getsourcelines(value)
    except (TypeError, OSError):
        return ""
    relative = os.path.relpath(path or "", ROOT)
    return "" if relative.startswith("..") else f"Source: [`{relative}`](/{relative}#L{line})"
