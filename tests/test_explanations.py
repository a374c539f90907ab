"""What is said of errors and warnings beside their messages."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import tokenloom
from tokenloom.errors import ConfigError
from tokenloom.explanations import explanation_of, explanations

PACKAGE = Path(tokenloom.__file__).parent

WITHOUT = {"TokenloomError", "TokenloomWarning"}
"""Those that nothing raises: what to do is said of the classes below."""


@cache
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


def test_errors_come_before_warnings_and_each_is_there_once():
    names = list(explanations())
    assert names[:2] == ["TokenloomError", "ConfigError"]
    first_warning = names.index("TokenloomWarning")
    assert all(name.endswith("Error") for name in names[:first_warning])
    assert all(name.endswith("Warning") for name in names[first_warning:])


@pytest.mark.parametrize("name", sorted(set(explanations()) - WITHOUT))
def test_each_says_why_it_comes_and_what_to_do(name):
    explanation = explanation_of(name)
    assert explanation.meaning
    assert explanation.causes
    assert explanation.remedy
    assert all(paragraph.endswith((".", ")")) for paragraph in explanation.paragraphs)


@pytest.mark.parametrize("name", [name for name, each in explanations().items() if each.example])
def test_examples_are_messages_that_the_program_words_so(name):
    example = explanation_of(name).example
    assert any(pattern.search(example) for pattern in messages()), example


def test_an_explanation_has_its_parts():
    explanation = explanation_of("OutputExistsError")
    assert explanation.name == "OutputExistsError"
    assert explanation.bases == ("FileExistsError",)
    assert explanation.meaning.startswith("An output is there already, ")
    assert explanation.example == '"`corpus_text_document.bin` exists, and was not made by this very job".'
    assert len(explanation.paragraphs) == 4


def test_capitals_and_the_module_do_not_matter():
    assert explanation_of("tokenloom.errors.configerror").name == "ConfigError"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("OutputExistError", "did you mean `OutputExistsError`?"),
        ("missingeod", "did you mean `MissingEodWarning`?"),
        ("xyz", "`tokenloom explain` lists them"),
    ],
)
def test_an_unknown_name_is_refused_with_a_near_one(name, hint):
    with pytest.raises(ConfigError) as caught:
        explanation_of(name)
    assert caught.value.message == f"expected the name of an error or a warning, found {name!r}"
    assert caught.value.hint == hint
