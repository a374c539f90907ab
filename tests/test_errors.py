"""The exception tree."""

import ast
import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest

import tokenloom
from tests.docs.pages import ROOT
from tokenloom import errors

ERRORS = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, errors.TokenloomError)]
WARNINGS = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Warning)]

VALUE_ERRORS = ("ConfigError", "DatasetFormatError", "IndexCacheError", "TokenizerError", "InputError")
STANDARD_BASES = {
    **dict.fromkeys(VALUE_ERRORS, ValueError),
    "MissingExtraError": ImportError,
    "DatasetNotFoundError": FileNotFoundError,
    "TokenRangeError": OverflowError,
    "StorageError": OSError,
}


def test_each_error_is_also_what_a_caller_would_expect():
    for name, base in STANDARD_BASES.items():
        assert issubclass(getattr(errors, name), errors.TokenloomError), name
        assert issubclass(getattr(errors, name), base), name


@pytest.mark.parametrize("name", ["ConfigError", "OutputExistsError", "DatasetFormatError", "DatasetNotFoundError"])
def test_where_the_reference_asserts_its_clients_catch_the_error(name):
    with pytest.raises(AssertionError, match="what happened"):
        raise getattr(errors, name)("what happened")


@pytest.mark.parametrize("copied", [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy])
def test_text_is_the_message_and_then_the_hint_also_of_a_copy(copied):
    for error in ERRORS:
        assert error.__doc__, error
        assert str(error("what happened")) == "what happened"
        for hint, text in ((None, "what happened"), ("do this", "what happened\nhint: do this")):
            again = copied(error("what happened", hint=hint))
            assert type(again) is error
            assert (again.message, again.hint, str(again)) == ("what happened", hint, text)


def test_warnings_have_one_base():
    for warning in WARNINGS:
        assert issubclass(warning, errors.TokenloomWarning), warning
        assert warning.__doc__, warning


def sections() -> dict[str, str]:
    """Returns the sections of the page that errors name, by their headings, each paragraph in a line."""
    _, *parts = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").split("\n## ")
    return {
        heading: re.sub(r"(?<!\n)\n(?!\n)", " ", text) for heading, _, text in (each.partition("\n") for each in parts)
    }


def test_every_error_and_warning_has_a_section_on_the_page_of_troubles():
    found = {name: text for name, text in sections().items() if " " not in name}
    assert sorted(found) == sorted(each.__name__ for each in (*ERRORS, *WARNINGS))
    for name in set(found) - {"TokenloomError", "TokenloomWarning"}:  # what nothing raises
        assert "\n\n**Usual causes**: " in found[name], name
        assert "\n\n**What to do**: " in found[name], name


def messages() -> list[re.Pattern[str]]:
    """Returns what the texts of the package look like that have something to fill in, and some words of their own."""
    found = []
    for path in Path(tokenloom.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if path.name == "errors.py" or not isinstance(node, ast.JoinedStr):
                continue
            parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
            if sum(len(str(part)) for part in parts if part) >= 9:
                found.append(re.compile("".join(".+?" if part is None else re.escape(str(part)) for part in parts)))
    return found


@pytest.mark.slow
def test_examples_of_the_page_are_messages_that_the_program_words_so():
    examples = [each for text in sections().values() for each in re.findall(r"\n\nSuch as (.+)", text)]
    known = messages()
    assert len(examples) > 20
    assert [example for example in examples if not any(pattern.search(example) for pattern in known)] == []
