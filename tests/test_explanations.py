"""What is said of errors and warnings beside their messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tokenloom
from tokenloom.explanations import explanation_of, explanations

PACKAGE = Path(tokenloom.__file__).parent

WITHOUT = {"TokenloomError", "TokenloomWarning"}
"""Those that nothing raises: what to do is said of the classes below."""


def messages() -> list[re.Pattern[str]]:
    """Returns what the texts of the package look like that have something to fill in, and some words of their own."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if path.name == "errors.py" or not isinstance(node, ast.JoinedStr):
                continue
            parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
            if sum(len(str(part)) for part in parts if part) >= 9:
                found.append(re.compile("".join(".+?" if part is None else re.escape(str(part)) for part in parts)))
    return found


def test_each_says_why_it_comes_and_what_to_do():
    for name in sorted(set(explanations()) - WITHOUT):
        explanation = explanation_of(name)
        assert explanation.meaning, name
        assert explanation.causes, name
        assert explanation.remedy, name


@pytest.mark.slow
def test_examples_are_messages_that_the_program_words_so():
    examples = [each.example for each in explanations().values() if each.example]
    known = messages()
    assert [example for example in examples if not any(pattern.search(example) for pattern in known)] == []
