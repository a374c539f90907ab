"""Docstrings in Google's style, as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example|Examples|Note|Warns):\n", re.MULTILINE)
_ITEM = re.compile(r"^(?=\S)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Docstring:
    """What a docstring says.

    Attributes:
        text: what stands before any section.
        items: of `Args` and `Attributes`, what is said of each name.
        raises: what is raised, and when.
        sections: texts of the other sections.
    """

    text: str
    items: dict[str, str] = field(default_factory=dict)
    raises: dict[str, str] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)


def parse(doc: str | None) -> Docstring:
    """Returns the parts of a docstring."""
    text, *parts = _SECTION.split(textwrap.dedent(_dedented(doc or "")) + "\n")
    items: dict[str, str] = {}
    raises: dict[str, str] = {}
    sections: dict[str, str] = {}
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        indented = re.match(r"(?:[ ]{4}.*\n|\n)*", body)
        assert indented is not None
        inner = textwrap.dedent(indented[0]).strip("\n")
        text += body[indented.end() :]
        if title in ("Args", "Attributes", "Raises"):
            (raises if title == "Raises" else items).update(_items(inner))
        else:
            sections[title] = inner
    return Docstring(text.strip(), items, raises, sections)


def _dedented(doc: str) -> str:
    first, newline, rest = doc.partition("\n")
    return first.strip() + newline + textwrap.dedent(rest)


def _items(text: str) -> dict[str, str]:
    found = {}
    for item in _ITEM.split(text):
        names, colon, said = item.partition(": ")
        if colon:
            for name in names.split(", "):
                found[name.strip().lstrip("*")] = " ".join(said.split())
    return found


def as_markdown(doc: Docstring, *, level: int) -> str:
    """Returns a docstring without its items, which stand in a table; `level` is that of headings in it."""
    parts = [lists_apart(doc.text)] if doc.text else []
    for title, body in doc.sections.items():
        is_code = title.startswith("Example") and ">>>" in body
        shown = f"```pycon\n{body}\n```" if is_code else body
        parts.append(f"**{title}**\n\n{shown}" if is_code else f"**{title}:** {' '.join(body.split())}")
    if doc.raises:
        parts.append(
            "**Raises**\n\n" + table(("error", "when"), [(f"`{name}`", said) for name, said in doc.raises.items()])
        )
    return "\n\n".join(parts)


def lists_apart(text: str) -> str:
    """Returns text with an empty line before each list, which Markdown asks for and docstrings do not."""
    return re.sub(r"(?m)^(?![-*] |\s|$)(.*)\n(?=[-*] )", r"\1\n\n", text)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Returns a table; a bar in a cell is written so that it ends none."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def summary(doc: str | None) -> str:
    """Returns the first sentence of a docstring, or its first line."""
    return " ".join(parse(doc).text.partition("\n\n")[0].split())


def rows_of(items: Mapping[str, str], types: Mapping[str, tuple[str, str]]) -> list[tuple[str, ...]]:
    """Returns a row for each name: the name, its type, its default, and what is said of it.

    Args:
        items: what is said of each name.
        types: type and default of each name, in their order; "" for none.
    """
    return [
        (f"`{name}`", f"`{kind}`" if kind else "", f"`{default}`" if default else "", items.get(name, ""))
        for name, (kind, default) in types.items()
    ]
