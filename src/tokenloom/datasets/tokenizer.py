"""The interface of tokenizers that datasets need: any object with these attributes will do."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import AmbiguousPadWarning, ConfigError, TokenizerError
from tokenloom.indexed.manifests import optional_attribute

NO_TOKEN = -1
"""The id of a missing token; it never occurs in data."""


class TokenizerLike(Protocol):
    """A tokenizer as datasets use it.

    Optional attributes: `pad` (the pad id), `special_tokens_dict` (name to id, with "pad_token" among the names),
    `eos`. Accessing a missing one may raise anything.
    """

    @property
    def unique_identifiers(self) -> Mapping[str, Any]:
        """The tokenizer's identity: JSON-serialisable, part of cache keys."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def eod(self) -> int:
        """The id that ends a document."""


CONTINUATION = "##"
"""Prefix of pieces that continue a word: WordPiece's convention."""


class WordPieces(NamedTuple):
    """The vocabulary for masking.

    Attributes:
        kinds: uint8[largest id + 1]: 0 for a missing id, 1 for the start of a word, 2 for a continuation.
        ids: int64[num_tokens], all ids, sorted: the random replacements.
    """

    kinds: NDArray[np.uint8]
    ids: NDArray[np.int64]


def word_pieces(tokenizer: Any) -> WordPieces:
    """Returns the vocabulary of a tokenizer."""
    vocabulary = optional_attribute(tokenizer, "inv_vocab")
    if not vocabulary:
        raise _missing(tokenizer, "inv_vocab", "it tells words from their continuations")
    ids = np.array(sorted(vocabulary), dtype=np.int64)
    if ids[0] < 0:
        raise ConfigError(f"`inv_vocab` of {type(tokenizer).__name__}: ids must be 0 or more, got {ids[0]}")
    kinds = np.zeros(int(ids[-1]) + 1, dtype=np.uint8)
    kinds[ids] = [2 if vocabulary[number].startswith(CONTINUATION) else 1 for number in ids.tolist()]
    return WordPieces(kinds, ids)


def required_token_id(tokenizer: Any, role: str, reason: str) -> int:
    """Returns the id of a required role."""
    if (number := optional_token_id(tokenizer, role)) == NO_TOKEN:
        raise _missing(tokenizer, role, reason)
    return number


def optional_token_id(tokenizer: Any, role: str) -> int:
    """Returns the id of a role, or -1 if the tokenizer has none."""
    number = optional_attribute(tokenizer, role)
    return NO_TOKEN if number is None else int(number)


def required_sentinels(tokenizer: Any) -> list[int]:
    """Returns the ids of sentinels for masked runs of words, at least one."""
    ids = optional_attribute(tokenizer, "additional_special_tokens_ids")
    if not ids:
        raise _missing(tokenizer, "additional_special_tokens_ids", "each masked run of words takes one of them")
    return [int(number) for number in ids]


def _missing(tokenizer: Any, attribute: str, reason: str) -> ConfigError:
    return ConfigError(f"no `{attribute}` on the tokenizer, {type(tokenizer).__name__}", hint=reason)


def pad_token_id(tokenizer: Any, *, allow_ambiguous: bool) -> int:
    """Returns the id that fills up samples, or -1 where padding goes by position.

    A pad id that is also another special token would mask real targets (usually end-of-document), so it is replaced
    by -1, with a warning, unless `allow_ambiguous`.
    """
    pad = optional_attribute(tokenizer, "pad")
    if pad is None:
        return NO_TOKEN
    named = optional_attribute(tokenizer, "special_tokens_dict") or {}
    others = [value for name, value in named.items() if name != "pad_token"]
    if not others:
        others = [optional_attribute(tokenizer, "eos"), optional_attribute(tokenizer, "eod")]
    if pad not in others:
        return int(pad)
    how = "its occurrences in the data are masked too, as asked" if allow_ambiguous else "padding goes by position"
    warnings.warn(f"pad id {pad} is also another special token; {how}", AmbiguousPadWarning, stacklevel=5)
    return int(pad) if allow_ambiguous else NO_TOKEN


def token_ids(tokenizer: Any, tokens: Mapping[str, str | int]) -> dict[str, int]:
    """Returns the id of each token, given as text or id.

    Texts are looked up with `tokens_to_ids(list of str)`, which Megatron's tokenizers have on `_tokenizer`.
    """
    ids = {}
    for name, token in tokens.items():
        number = _look_up(tokenizer, token) if isinstance(token, str) else operator.index(token)
        if number is None or number < 0 or (tokenizer.vocab_size is not None and number >= tokenizer.vocab_size):
            message = f"the tokenizer has no token {token!r} for {name!r}"
            raise TokenizerError(message, hint="add it to the tokenizer, or name another one")
        ids[name] = number
    return ids


def _look_up(tokenizer: Any, token: str) -> int | None:
    for owner in (tokenizer, optional_attribute(tokenizer, "_tokenizer")):
        if hasattr(owner, "tokens_to_ids"):
            (number,) = owner.tokens_to_ids([token])
            return None if number is None else int(number)
    message = f"no `tokens_to_ids` on the tokenizer, {type(tokenizer).__name__}"
    raise TokenizerError(message, hint=f"name the id of {token!r} instead")


def fill_token_id(tokenizer: Any) -> int:
    """Returns the id for places without a token where padding goes by position: `pad`, or else `eod`."""
    for name in ("pad", "eod"):
        if (number := optional_attribute(tokenizer, name)) is not None:
            return int(number)
    raise ConfigError("no `pad` and no `eod` on the tokenizer", hint="name the end of documents with `eod_token`")
