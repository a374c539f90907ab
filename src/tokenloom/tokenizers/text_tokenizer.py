"""The protocol of every tokenizer, of any library, and the common parts of ours."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, MissingTokenError, RefusedTextError, TokenizerError, TokenloomError
from tokenloom.inputs.utf8_texts import encodable

_SENTINEL = re.compile(r"<extra_id_(\d+)>")


def in_words(error: BaseException) -> str:
    """Returns the type and the text of an exception, on one line of bounded length."""
    text = " ".join(str(error).split()) if not isinstance(error, MemoryError) else ""
    return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def shortened(text: str, most: int = 500) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


@contextmanager
def failures(message: str, kind: type[TokenloomError] = TokenizerError, *, hint: str | None = None) -> Iterator[None]:
    """Turns any failure inside into an error that ends with the reason; a missing file or module is no refusal."""
    try:
        yield
    except TokenloomError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of Rust, by `pyo3`
            raise
        kind = TokenizerError if isinstance(error, (OSError, ImportError)) else kind
        raise kind(f"{message}: {in_words(error)}", hint=hint) from error


def refusals(doer: str) -> AbstractContextManager[None]:
    """Turns any failure inside into a `RefusedTextError`."""
    return failures(f"{doer} fails", RefusedTextError)


def require_sound(encoded: Encoded, *, num_texts: int, vocab_size: int, hint: str | None = None) -> None:
    """Checks, in one pass, that an engine gave ids of the vocabulary for all texts; else a `RefusedTextError`."""
    lengths, tokens = encoded.lengths, encoded.tokens
    if len(lengths) != num_texts or int(lengths.sum()) != len(tokens) or (num_texts and int(lengths.min()) < 0):
        message = f"the engine gave {len(tokens)} ids for {len(lengths)} texts, expected those of {num_texts}"
        raise RefusedTextError(message, hint=hint)
    looks = (np.max,) if tokens.dtype.kind == "u" else (np.max, np.min)
    for extreme in [int(look(tokens)) for look in looks] if len(tokens) else []:
        if not 0 <= extreme < vocab_size:
            message = f"the engine gave token id {extreme}, but the vocabulary has {vocab_size}"
            raise RefusedTextError(message, hint=hint)


WELL_KNOWN: dict[str, tuple[str, ...]] = {
    "eod": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>"),
    "bos": ("<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|bos|>"),
    "pad": ("<|pad|>", "<pad>"),
}
"""Spellings of the tokens of some roles; one counts if a tokenizer has no other for the role."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The ids of some texts: `tokens`, unsigned or signed integers, back to back, and `lengths`: int64[num_texts]."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]

    def rows(self) -> list[NDArray[Any]]:
        """Returns the ids of each text, as views."""
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


class TextTokenizer(Protocol):
    """Text to token ids and back.

    Deterministic; safe from several threads; picklable. No special token is ever added to a text. A role (`eod`, `bos`,
    `pad`) that the tokenizer does not have raises `MissingTokenError` when it is asked for.
    """

    @property
    def kind(self) -> str:
        """Its kind: of `KINDS`, or a name of your own."""

    @property
    def path(self) -> str:
        """Path of its file, or its specification ("byte")."""

    @property
    def sha256(self) -> str:
        """The fingerprint, in hexadecimal: it changes whenever the ids of a text do."""

    @property
    def engine_name(self) -> str:
        """The library of `encode_texts`: the truth for faster engines."""

    @property
    def vocab_size(self) -> int:
        """The largest token id plus one."""

    @property
    def eod(self) -> int:
        """The id that ends a document."""

    @property
    def bos(self) -> int:
        """The id that begins a sequence."""

    @property
    def pad(self) -> int:
        """The id that fills."""

    @property
    def unique_identifiers(self) -> Mapping[str, Any]:
        """Its identity for index caches: serialisable as JSON."""

    def tokenize(self, text: str) -> list[int]:
        """Returns the ids of a text. Lone surrogates, which no UTF-8 text can hold, count as `?`."""

    def detokenize(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, special tokens spelled out."""

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        """Returns the id of each token of the vocabulary, None for any other text."""

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text, without lone surrogates; releases the GIL."""


def _role(name: str) -> Any:
    """Returns a property: the id of a role, or a `MissingTokenError`."""
    return property(lambda tokenizer: tokenizer.id_of_role(name), doc=f"The id of the {name} token.")


class TokenRoles:
    """The roles, identity and errors of our tokenizers.

    Args:
        path, sha256: see `TextTokenizer`.
        roles: the ids of its roles; "eos" is "eod" unless it is named.

    Attributes:
        eod, bos, eos: the ids that end and begin a document, and end a sequence.
        pad, mask: the ids of padding, and of a masked token.
        cls, sep: the ids that begin a sequence to classify, and end a segment.
    """

    eod: property = _role("eod")
    eos: property = _role("eos")
    bos: property = _role("bos")
    pad: property = _role("pad")
    cls: property = _role("cls")
    sep: property = _role("sep")
    mask: property = _role("mask")

    def __init__(self, path: str, sha256: str, roles: Mapping[str, int]) -> None:
        self.path = path
        self.sha256 = sha256
        self._roles = {"eos": roles["eod"], **roles} if "eod" in roles else dict(roles)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    @property
    def unique_identifiers(self) -> OrderedDict[str, Any]:
        """Its identity for index caches."""
        # No path: byte-level and null tokenizers have none, and the fingerprint is more exact.
        return OrderedDict({"class": type(self).__name__, "sha256": self.sha256, "eod": self._roles.get("eod")})

    def tokenize(self, text: str) -> list[int]:
        """Returns the ids of a text. Lone surrogates, which no UTF-8 text can hold, count as `?`."""
        ids: list[int] = self.encode_texts([encodable(text)]).tokens.tolist()
        return ids

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        """See `TextTokenizer`."""
        raise NotImplementedError

    def id_of_role(self, role: str) -> int:
        """Returns the id of a role; a `MissingTokenError` if there is none."""
        if role not in self._roles:
            message = f"tokenizer `{self.path}` has no token for `{role}` by name or convention"
            special = describe_tokens(list(getattr(self, "special_tokens", ())))
            hint = f"name it with `{role}_token`; its special tokens are {special}"
            raise MissingTokenError(message, hint=hint if role in ("eod", "bos") else None)
        return self._roles[role]


def well_known_roles(
    path: str, ids: Mapping[str, int], *, eod: str | None = None, bos: str | None = None, pad: str | None = None
) -> dict[str, int]:
    """Returns the roles that were named, or of which one well-known spelling only is among the ids.

    A `TokenizerError`, which names the path, for a named token that is not among the ids.
    """
    roles = {}
    for role, named in (("eod", eod), ("bos", bos), ("pad", pad)):
        if named is not None and named not in ids:
            message = f"tokenizer `{path}` has no token {named!r} for `{role}`"
            raise TokenizerError(message, hint=f"its special tokens are {describe_tokens(list(ids))}")
        found = [named] if named is not None else [token for token in WELL_KNOWN[role] if token in ids]
        if len(found) == 1:
            roles[role] = ids[found[0]]
    return roles


def sentinel_ids(ids: Mapping[str, int]) -> list[int]:
    """Returns the ids of T5's sentinels, in their order."""
    matches = {_SENTINEL.fullmatch(token): number for token, number in ids.items()}
    return [number for _, number in sorted((int(match[1]), number) for match, number in matches.items() if match)]


def describe_tokens(tokens: Sequence[str]) -> str:
    """Returns a phrase that lists the first ten."""
    shown = ", ".join(tokens[:10]) or "none"
    return f"{shown}, and {len(tokens) - 10} more" if len(tokens) > 10 else shown


def require_known_ids(path: str, ids: Sequence[int], vocab_size: int) -> list[int]:
    """Returns ids as plain integers; a `TokenizerError` for one that is not in the vocabulary."""
    numbers = [int(number) for number in ids]
    for index, number in enumerate(numbers):
        if not 0 <= number < vocab_size:
            message = f"id {number} at index {index} out of range: tokenizer `{path}` has {vocab_size} ids"
            raise TokenizerError(message, hint="were these tokens made by another tokenizer?")
    return numbers


def decoded(ids: Sequence[int], tokenizer: TextTokenizer | None) -> str:
    """Returns the text of ids; without a tokenizer, the ids themselves."""
    if tokenizer is None:
        return " ".join(map(str, ids))
    try:
        return tokenizer.detokenize(list(ids))
    except (OverflowError, ValueError) as error:
        message = f"the tokenizer cannot decode these tokens: {getattr(error, 'message', error)}"
        raise ConfigError(message, hint="was the data made with this tokenizer?") from error


def joined(rows: Sequence[NDArray[Any]], dtype: type[np.generic]) -> Encoded:
    """Returns the rows of texts as one array."""
    tokens = np.concatenate(rows) if rows else np.empty(0, dtype=dtype)
    return Encoded(tokens, np.array([len(row) for row in rows], dtype=np.int64))
