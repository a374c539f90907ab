"""The tokenizer of a run, as its samples see it: ids from the lock, and the tokenizer itself where texts are needed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from tokenloom.datasets.tokenizer import NO_TOKEN, optional_token_id, pad_token_id
from tokenloom.errors import AmbiguousPadWarning, ConfigError, TokenizerError
from tokenloom.forks import cached_property
from tokenloom.indexed.manifests import fingerprint_of, optional_number
from tokenloom.run.lock import LockedTokenizer
from tokenloom.tokenizers.load import load_tokenizer


def locked_tokenizer(name: str, tokenizer: Any, *, allow_ambiguous_pad: bool) -> LockedTokenizer:
    """Returns what a lock holds of a tokenizer."""
    fingerprint, vocab_size = fingerprint_of(tokenizer), optional_number(tokenizer, "vocab_size")
    if fingerprint is None or vocab_size is None:
        message = f"expected a tokenizer with `sha256` and `vocab_size`, found `{name}`"
        raise TokenizerError(message, hint="name one that `load_tokenizer` takes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmbiguousPadWarning)  # said where samples are made of it
        pad = pad_token_id(tokenizer, allow_ambiguous=allow_ambiguous_pad)
    eod = optional_token_id(tokenizer, "eod")
    return LockedTokenizer(
        name=name,
        fingerprint=fingerprint,
        eod=None if eod == NO_TOKEN else eod,
        pad=None if pad == NO_TOKEN else pad,
        vocab_size=vocab_size,
    )


_KNOWN = ("loaded", "eos", "special_tokens_dict")
"""What a tokenizer is not loaded for: whether a pad id is another token, too, the lock has decided."""


class RunTokenizer:
    """What samples ask of a tokenizer, from the lock alone: a start loads none."""

    def __init__(self, locked: LockedTokenizer | None, located: str | None) -> None:
        self._locked = locked
        self._located = located

    @property
    def vocab_size(self) -> int | None:
        """One more than the largest id; None if it is not known."""
        return None if self._locked is None else self._locked.vocab_size

    @property
    def unique_identifiers(self) -> Mapping[str, Any]:
        """What tells this tokenizer from another."""
        return {"run": None if self._locked is None else self._locked.fingerprint}

    @property
    def eod(self) -> int:
        """The id that ends a document."""
        if self._locked is None or self._locked.eod is None:
            found = "none" if self._locked is None else f"{self._locked.name!r}, which has none"
            message = f"expected a `tokenizer` in run.toml with an end-of-document id, found {found}"
            raise ConfigError(message, hint="`reset_position_ids`, `reset_attention_mask` and `eod_mask_loss` need it")
        return self._locked.eod

    @property
    def pad(self) -> int:
        """The id that fills up samples; `NotImplementedError` where padding is told by position."""
        if self._locked is None or self._locked.pad is None:
            raise NotImplementedError
        return self._locked.pad

    @cached_property
    def loaded(self) -> Any:
        """The tokenizer itself."""
        if self._located is None:
            message = "expected a `tokenizer` in run.toml, where texts are needed, found none"
            raise ConfigError(message, hint="name the tokenizer that made the data")
        return load_tokenizer(self._located)

    def __getattr__(self, name: str) -> Any:
        """Returns whatever else is asked for from the tokenizer itself, such as `tokenize`."""
        if name.startswith("_") or name in _KNOWN:
            raise AttributeError(name)
        return getattr(self.loaded, name)

    def __getstate__(self) -> dict[str, Any]:
        return {"_locked": self._locked, "_located": self._located}
