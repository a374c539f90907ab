"""The text of each single token, though some characters take several tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tokenloom.errors import ConfigError

_MOST_WAITING = 8
"""Tokens that may wait for the rest of a character; UTF-8 has no more than four bytes."""

_BROKEN = "\ufffd"

_HINT = "\nhint: "
"""How a hint begins in the text of an error of ours, which a tokenizer may raise."""

_MOST_BROKEN = 3
"""Signs for broken bytes that the begin of one character is shown as; they go once it is complete."""

_MOST_SILENT = 64
"""Tokens without any text that are decoded once more for what is before them."""


class Detokenizer(Protocol):
    """What turns ids into text."""

    def detokenize(self, ids: Any) -> str:
        """Returns the text of a list of ids."""


def decoded(ids: Sequence[int], tokenizer: Detokenizer | None) -> str:
    """Returns the text of ids; without a tokenizer, the ids in words.

    Raises:
        ConfigError: the tokenizer cannot decode them.
    """
    if tokenizer is None:
        return " ".join(map(str, ids))
    try:
        return tokenizer.detokenize(list(ids))
    except (OverflowError, ValueError) as error:
        message = f"the tokenizer cannot decode these tokens: {str(error).partition(_HINT)[0]}"
        raise ConfigError(message, hint="was the data made with this tokenizer?") from error


def token_texts(ids: Sequence[int], tokenizer: Detokenizer) -> list[str]:
    r"""Returns what each token adds to the text, as it stands after the tokens before it.

    A character that takes several tokens is the text of the last of them; the others add "". What no tokens complete
    is shown as the tokenizer decodes broken bytes, as `\ufffd`.

    Args:
        ids: tokens that follow each other in one document.
        tokenizer: the tokenizer that made them.

    Raises:
        ConfigError: the tokenizer cannot decode them.
    """
    ids = list(ids)
    single = [decoded([number], tokenizer) for number in ids]
    if not any(_BROKEN in text for text in single) and "".join(single) == decoded(ids, tokenizer):
        return single
    return _in_context(ids, tokenizer)


def _in_context(ids: list[int], tokenizer: Detokenizer) -> list[str]:
    """Returns the same, each decoded behind the tokens that were complete before it."""
    texts = [""] * len(ids)
    begin = complete = 0
    before = ""
    for stop in range(1, len(ids) + 1):
        text = decoded(ids[begin:stop], tokenizer)
        is_last = stop == len(ids)
        if text.endswith(_BROKEN) and stop - complete < _MOST_WAITING and not is_last:
            continue
        waiting = 0 if is_last else min(len(text) - len(text.rstrip(_BROKEN)), _MOST_BROKEN)
        texts[stop - 1] = text[: len(text) - waiting].removeprefix(before)
        before = decoded(ids[complete:stop], tokenizer)
        if before or stop - begin > _MOST_SILENT:
            begin = complete
        else:  # ids without any text, such as unknown ones, are no begin: what follows would lose its space
            before = text
        complete = stop
        before = before[: len(before) - waiting]
    return texts
