"""What a dataset asks of a tokenizer, and nothing more: any object with these attributes will do."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Protocol

from tokenloom.errors import AmbiguousPadWarning

NO_TOKEN = -1
"""The id of a token that the tokenizer lacks, or whose id means something else: it never occurs in data."""


class TokenizerLike(Protocol):
    """A tokenizer as datasets see it.

    Optional attributes, looked for in this order: `pad` (the pad id), `special_tokens_dict` (name to id, with
    "pad_token" among the names), `eos`. Accessing one that the tokenizer lacks may raise anything.
    """

    @property
    def unique_identifiers(self) -> Mapping[str, Any]:
        """What tells this tokenizer from another; JSON-serialisable, part of cache keys."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def eod(self) -> int:
        """The id that ends a document."""


def pad_token_id(tokenizer: Any, *, allow_ambiguous: bool) -> int:
    """Returns the id that fills up samples, or -1 where padding must be told from data by position.

    A pad id that is also another special token would mask real targets (an end of document, most often), so it is
    replaced by -1, with a warning, unless that is explicitly allowed.
    """
    pad = _attribute(tokenizer, "pad")
    if pad is None:
        return NO_TOKEN
    named = _attribute(tokenizer, "special_tokens_dict") or {}
    others = [value for name, value in named.items() if name != "pad_token"]
    if not others:
        others = [_attribute(tokenizer, "eos"), _attribute(tokenizer, "eod")]
    if pad not in others:
        return int(pad)
    if allow_ambiguous:
        warnings.warn(
            f"pad id {pad} is also another special token; as asked, its occurrences in the data are masked too",
            AmbiguousPadWarning,
            stacklevel=4,
        )
        return int(pad)
    warnings.warn(
        f"pad id {pad} is also another special token; padding is told from data by position instead",
        AmbiguousPadWarning,
        stacklevel=4,
    )
    return NO_TOKEN


def _attribute(tokenizer: Any, name: str) -> Any:
    try:
        return getattr(tokenizer, name)
    except Exception:  # noqa: BLE001 - tokenizers raise what they like for a token they lack
        return None
