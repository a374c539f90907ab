"""The exception tree."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from tokenloom import errors

ERRORS = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, errors.TokenloomError)]
WARNINGS = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Warning)]

STANDARD_BASES = {
    "ConfigError": ValueError,
    "MissingExtraError": ImportError,
    "DatasetFormatError": ValueError,
    "DatasetNotFoundError": FileNotFoundError,
    "TokenRangeError": OverflowError,
    "StorageError": OSError,
    "IndexCacheError": ValueError,
    "TokenizerError": ValueError,
    "InputError": ValueError,
}


@pytest.mark.parametrize(("name", "base"), STANDARD_BASES.items())
def test_each_error_is_also_what_a_caller_would_expect(name, base):
    error = getattr(errors, name)
    assert issubclass(error, errors.TokenloomError)
    assert issubclass(error, base)


@pytest.mark.parametrize("name", ["ConfigError", "OutputExistsError", "DatasetFormatError", "DatasetNotFoundError"])
def test_where_the_reference_asserts_its_clients_catch_the_error(name):
    with pytest.raises(AssertionError, match="what happened"):
        raise getattr(errors, name)("what happened")


def test_the_tree_in_the_docstring_is_complete():
    for error in ERRORS:
        assert error.__name__ in errors.__doc__


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
