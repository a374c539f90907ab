"""What code of others makes of a text that it cannot take, as errors of ours.

Libraries fail in many ways: with exceptions of any class, and with panics of Rust, which are no `Exception`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tokenloom.errors import RefusedTextError, TokenizerError, TokenloomError
from tokenloom.tokenizers.text_tokenizer import Encoded

_MOST_REASON_CHARACTERS = 500


def is_failure(error: BaseException) -> bool:
    """Whether code failed, and was not interrupted: exceptions, and panics of Rust, which `pyo3` derives from none."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def in_words(error: BaseException) -> str:
    """Returns what an exception says, on one line of bounded length."""
    said = " ".join(str(error).split()) if not isinstance(error, MemoryError) else ""
    return shortened(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def shortened(reason: str) -> str:
    """Returns a reason of bounded length."""
    return reason if len(reason) <= _MOST_REASON_CHARACTERS else f"{reason[: _MOST_REASON_CHARACTERS - 3]}..."


@contextmanager
def refusals(doer: str) -> Iterator[None]:
    """Turns whatever fails inside into errors of ours.

    Args:
        doer: what fails, for the message.

    Raises:
        RefusedTextError: it fails on a text.
        TokenizerError: it fails for want of a file or module, which is no text's fault.
    """
    try:
        yield
    except TokenloomError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        message = f"{doer} fails: {in_words(error)}"
        if isinstance(error, (OSError, ImportError)):
            raise TokenizerError(message) from error
        raise RefusedTextError(message) from error


def require_sound(encoded: Encoded, *, num_texts: int, vocab_size: int, hint: str | None = None) -> None:
    """Checks what an engine gave for some texts, in one pass over it.

    Raises:
        RefusedTextError: it is not of as many texts, or holds ids that are not in the vocabulary.
    """
    lengths, tokens = encoded.lengths, encoded.tokens
    if len(lengths) != num_texts or int(lengths.sum()) != len(tokens) or (num_texts and int(lengths.min()) < 0):
        message = f"the engine gave {len(tokens)} ids for {len(lengths)} texts, expected those of {num_texts}"
        raise RefusedTextError(message, hint=hint)
    looks = (np.max,) if tokens.dtype.kind == "u" else (np.max, np.min)
    for extreme in [int(look(tokens)) for look in looks] if len(tokens) else []:
        if not 0 <= extreme < vocab_size:
            message = f"the engine gave token id {extreme}, but the vocabulary has {vocab_size}"
            raise RefusedTextError(message, hint=hint)
