"""Which tokenizer made some tokens: what is recorded of one, and what can be learnt of one that is given."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.numbers import check_count

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialToken:
    """A token that was added to documents; `text` is how it is spelled, if that is known."""

    id: int
    text: str | None = None

    def __post_init__(self) -> None:
        """Checks the id."""
        check_count("the id of a special token", self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerIdentity:
    """Which tokenizer made the tokens.

    Attributes:
        kind: what it is, such as "huggingface", or the name of its class.
        sha256: its fingerprint, in hex; None for one that offers none.
        path: path as it was named; None for one without.
        vocab_size: one more than its largest id; None if it does not say.
        bos: what was put before each document; None for nothing.
        eod: what was put after each document; None for nothing.
    """

    kind: str
    sha256: str | None
    path: str | None
    vocab_size: int | None
    bos: SpecialToken | None = None
    eod: SpecialToken | None = None

    def __post_init__(self) -> None:
        """Checks fingerprint and vocabulary."""
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            message = f"expected 64 hexadecimal digits as the sha256 of a tokenizer, found {self.sha256!r}"
            raise ConfigError(message)
        if self.vocab_size is not None:
            check_count("the vocab_size of a tokenizer", self.vocab_size)

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """What must be equal for two pairs to become one; not the path."""
        return (self.sha256 or self.kind, self.vocab_size, self.bos, self.eod)

    def describe(self) -> str:
        """Returns a phrase that tells it from others in a message."""
        parts = [f"sha256 {self.sha256[:12]}…"] if self.sha256 is not None else []
        parts += [f"{self.vocab_size} ids"] if self.vocab_size is not None else []
        parts += [f"{name} {token.id}" for name, token in (("bos", self.bos), ("eod", self.eod)) if token is not None]
        name = self.kind if self.path is None else f"{self.kind} `{self.path}`"
        return f"{name} ({', '.join(parts)})" if parts else name


def identity_of(
    tokenizer: Any, *, bos: SpecialToken | None = None, eod: SpecialToken | None = None
) -> TokenizerIdentity:
    """Returns what is known of a tokenizer.

    Args:
        tokenizer: any object with some of the names `kind`, `sha256`, `path`, `vocab_size`, `unique_identifiers`.
        bos: what is put before each document.
        eod: what is put after each document.
    """
    kind = optional_attribute(tokenizer, "kind")
    return TokenizerIdentity(
        kind=kind if isinstance(kind, str) else type(tokenizer).__name__,
        sha256=fingerprint_of(tokenizer),
        path=_path_of(tokenizer),
        vocab_size=optional_number(tokenizer, "vocab_size"),
        bos=bos,
        eod=eod,
    )


def fingerprint_of(tokenizer: Any) -> str | None:
    """Returns the SHA-256 of a tokenizer, if it offers one: as `sha256`, or among its `unique_identifiers`."""
    found = optional_attribute(tokenizer, "sha256")
    if found is None:
        found = _identifier(tokenizer, "sha256")
    return found if isinstance(found, str) and _SHA256.fullmatch(found) else None


def optional_number(tokenizer: Any, name: str) -> int | None:
    """Returns an attribute of a tokenizer that is an integer from 0 on; None where it has none."""
    try:
        number = operator.index(optional_attribute(tokenizer, name))
    except TypeError:
        return None
    return number if number >= 0 else None


def optional_attribute(tokenizer: Any, name: str) -> Any:
    """Returns an attribute of a tokenizer, None where it has none or raises."""
    try:
        return getattr(tokenizer, name)
    except Exception:  # noqa: BLE001 - tokenizers raise what they like for a token they lack
        return None


def _path_of(tokenizer: Any) -> str | None:
    path = optional_attribute(tokenizer, "path")
    if path is None:
        path = _identifier(tokenizer, "tokenizer_path")
    if isinstance(path, list) and len(path) == 1:
        (path,) = path
    return path if isinstance(path, str) else None


def _identifier(tokenizer: Any, name: str) -> Any:
    identifiers = optional_attribute(tokenizer, "unique_identifiers")
    return identifiers.get(name) if hasattr(identifiers, "get") else None
