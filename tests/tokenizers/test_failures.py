"""Failures of libraries, in words; and what an engine gave, looked at once."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom.errors import ConfigError, RefusedTextError, TokenizerError
from tokenloom.tokenizers.failures import in_words, is_failure, refusals, require_sound
from tokenloom.tokenizers.text_tokenizer import Encoded


class PanicException(BaseException):
    """What panics of Rust look like."""


def test_panics_are_failures_and_interruptions_are_none():
    assert is_failure(PanicException())
    assert is_failure(ValueError())
    assert not is_failure(KeyboardInterrupt())


def test_words_of_an_exception_are_one_line_of_bounded_length():
    assert in_words(ValueError("a\n  b")) == "ValueError: a b"
    assert in_words(MemoryError("whatever")) == "MemoryError"
    assert len(in_words(ValueError("x" * 1000))) == 500


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (PanicException("at the disco"), RefusedTextError, "the engine fails: PanicException: at the disco"),
        (ImportError("no module"), TokenizerError, "the engine fails: ImportError: no module"),
        (ConfigError("ours"), ConfigError, "ours"),
    ],
)
def test_failures_become_errors_of_ours(error, kind, text):
    with pytest.raises(kind, match=text), refusals("the engine"):
        raise error


def test_interruptions_pass():
    with pytest.raises(KeyboardInterrupt), refusals("the engine"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("lengths", "tokens", "text"),
    [
        ([2], [1, 2], "the engine gave 2 ids for 1 texts, expected those of 2"),
        ([3, -1], [1, 2], "the engine gave 2 ids for 2 texts, expected those of 2"),
        ([1, 1], [1, 9], "the engine gave token id 9, but the vocabulary has 9"),
        ([1, 1], [1, -4], "the engine gave token id -4, but the vocabulary has 9"),
    ],
)
def test_what_an_engine_gives_must_be_sound(lengths, tokens, text):
    encoded = Encoded(tokens=np.array(tokens), lengths=np.array(lengths))
    with pytest.raises(RefusedTextError, match=text):
        require_sound(encoded, num_texts=2, vocab_size=9)
