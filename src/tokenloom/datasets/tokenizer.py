"""The tokenizer interface of datasets, and functions that read ids and vocabularies of tokenizers."""

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
"""The id that stands for a missing token; no data contain this id."""


class TokenizerLike(Protocol):
    """The attributes of a tokenizer that datasets read.

    Optional attributes: `pad` (the pad id), `special_tokens_dict` ({name: id}, where "pad_token" names the pad id) and
    `eos`. Accessing a missing optional attribute may raise any exception.
    """

    @property
    def unique_identifiers(self) -> Mapping[str, Any]:
        """JSON-serialisable values that identify the tokenizer in cache keys."""

    @property
    def vocab_size(self) -> int:
        """The largest token id plus 1."""

    @property
    def eod(self) -> int:
        """The end-of-document id."""


_CONTINUATION = "##"  # WordPiece's prefix of tokens that continue a word


class WordPieces(NamedTuple):
    """The vocabulary for word masking: `ids` are all ids, ascending; `kinds[id]` is the kind of an id.

    The kind is 1 for a token that starts a word, 2 for one that continues a word, and 0 if there is no such id.
    """

    kinds: NDArray[np.uint8]
    ids: NDArray[np.int64]


def word_pieces(tokenizer: Any) -> WordPieces:
    """Returns the ids of a tokenizer and their kinds, read from the tokenizer's `inv_vocab`, {id: token}."""
    vocabulary = optional_attribute(tokenizer, "inv_vocab")
    if not vocabulary:
        raise _missing(tokenizer, "inv_vocab", "`inv_vocab` shows which tokens start a word")
    ids = np.array(sorted(vocabulary), dtype=np.int64)
    if ids[0] < 0:
        raise ConfigError(f"`inv_vocab` of {type(tokenizer).__name__}: ids must be 0 or more, got {ids[0]}")
    kinds = np.zeros(int(ids[-1]) + 1, dtype=np.uint8)
    kinds[ids] = [2 if vocabulary[number].startswith(_CONTINUATION) else 1 for number in ids.tolist()]
    return WordPieces(kinds, ids)


def required_token_id(tokenizer: Any, role: str, reason: str) -> int:
    """Returns the id of a special token such as "cls"; raises with `reason` if the tokenizer has none."""
    if (number := optional_token_id(tokenizer, role)) == NO_TOKEN:
        raise _missing(tokenizer, role, reason)
    return number


def optional_token_id(tokenizer: Any, role: str) -> int:
    """Returns the id of a special token such as "cls", or -1 if the tokenizer has none."""
    number = optional_attribute(tokenizer, role)
    return NO_TOKEN if number is None else int(number)


def required_sentinels(tokenizer: Any) -> list[int]:
    """Returns the ids of the sentinels that replace masked runs of words; raises if the tokenizer has none."""
    ids = optional_attribute(tokenizer, "additional_special_tokens_ids")
    if not ids:
        raise _missing(tokenizer, "additional_special_tokens_ids", "each masked run of words needs a sentinel")
    return [int(number) for number in ids]


def _missing(tokenizer: Any, attribute: str, reason: str) -> ConfigError:
    return ConfigError(f"the tokenizer {type(tokenizer).__name__} has no `{attribute}`", hint=reason)


def pad_token_id(tokenizer: Any, *, allow_ambiguous: bool) -> int:
    """Returns the pad id by which to find padding in samples; -1 to find padding by position, as without a pad id.

    If the pad id is also another special token (usually end-of-document), masking this id would mask real labels. So
    this function warns, and returns -1 unless `allow_ambiguous` is True.
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
    effect = "padding is found by position instead"
    if allow_ambiguous:
        effect = "`allow_ambiguous_pad_tokens` masks it in the data too"
    warnings.warn(f"pad id {pad} is also another special token; {effect}", AmbiguousPadWarning, stacklevel=5)
    return int(pad) if allow_ambiguous else NO_TOKEN


def token_ids(tokenizer: Any, tokens: Mapping[str, str | int]) -> dict[str, int]:
    """Returns {name: token id} for tokens given as strings or ids; the tokenizer's `tokens_to_ids` converts strings."""
    ids = {}
    for name, token in tokens.items():
        number = _look_up(tokenizer, token) if isinstance(token, str) else operator.index(token)
        if number is None or number < 0 or (tokenizer.vocab_size is not None and number >= tokenizer.vocab_size):
            message = f"the tokenizer has no token {token!r} for {name!r}"
            raise TokenizerError(message, hint="add it to the tokenizer, or pass another token")
        ids[name] = number
    return ids


def _look_up(tokenizer: Any, token: str) -> int | None:
    for owner in (tokenizer, optional_attribute(tokenizer, "_tokenizer")):  # Megatron's tokenizers wrap a `_tokenizer`
        if hasattr(owner, "tokens_to_ids"):
            (number,) = owner.tokens_to_ids([token])
            return None if number is None else int(number)
    message = f"the tokenizer {type(tokenizer).__name__} has no `tokens_to_ids`"
    raise TokenizerError(message, hint=f"pass the id of {token!r} instead of its text")


def fill_token_id(tokenizer: Any) -> int:
    """Returns the id to write into slots without a token: `pad`, or `eod` if the tokenizer has no `pad`."""
    for name in ("pad", "eod"):
        if (number := optional_attribute(tokenizer, name)) is not None:
            return int(number)
    raise ConfigError("the tokenizer has neither `pad` nor `eod`", hint="pass `eod_token` when loading the tokenizer")
