"""The tokenizer protocol, and common parts of its implementations."""

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
    """Returns the type and message of an exception, as one line of at most 500 characters."""
    text = " ".join(str(error).split()) if not isinstance(error, MemoryError) else ""
    return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def shortened(text: str, most: int = 500) -> str:
    """Truncates a text to `most` characters; a truncated text ends in "..."."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@contextmanager
def failures(message: str, kind: type[TokenloomError] = TokenizerError, *, hint: str | None = None) -> Iterator[None]:
    """Converts exceptions of other libraries to `kind`, but `OSError` and `ImportError` to `TokenizerError`."""
    try:
        yield
    except TokenloomError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # a Rust panic
            raise
        kind = TokenizerError if isinstance(error, (OSError, ImportError)) else kind
        raise kind(f"{message}: {in_words(error)}", hint=hint) from error


def refusals(library: str) -> AbstractContextManager[None]:
    """Converts exceptions that a library raises in the `with` block to `RefusedTextError`."""
    return failures(f"{library} failed", RefusedTextError)


def require_sound(encoded: Encoded, *, num_texts: int, vocab_size: int, hint: str | None = None) -> None:
    """Raises `RefusedTextError` if the ids or lengths that an engine returned for `num_texts` texts are invalid."""
    lengths, tokens = encoded.lengths, encoded.tokens
    if len(lengths) != num_texts or int(lengths.sum()) != len(tokens) or (num_texts and int(lengths.min()) < 0):
        message = f"the engine returned inconsistent results: {len(lengths)} lengths and {len(tokens)} ids for "
        raise RefusedTextError(f"{message}{num_texts} texts", hint=hint)
    extremes = (np.max,) if tokens.dtype.kind == "u" else (np.max, np.min)
    for number in [int(extreme(tokens)) for extreme in extremes] if len(tokens) else []:
        if not 0 <= number < vocab_size:
            message = f"the engine returned token id {number} out of range: the vocabulary has {vocab_size} ids"
            raise RefusedTextError(message, hint=hint)


WELL_KNOWN: dict[str, tuple[str, ...]] = {
    "eod": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>"),
    "bos": ("<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|bos|>"),
    "pad": ("<|pad|>", "<pad>"),
}
"""Well-known spellings by role; a tokenizer that has exactly one of a role's spellings uses that token for the role."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The token ids of several texts, concatenated in `tokens`; `lengths` has the number of ids of each text."""

    tokens: NDArray[Any]  # any integer dtype
    lengths: NDArray[np.int64]  # int64[num_texts], ids per text

    def rows(self) -> list[NDArray[Any]]:
        """Returns the ids of each text, as views."""
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


class TextTokenizer(Protocol):
    """The interface of a tokenizer. Implementations are deterministic, thread-safe and picklable.

    Encoding adds no special tokens. Reading `eod`, `bos` or `pad` raises `MissingTokenError` if the tokenizer lacks
    this token.
    """

    @property
    def kind(self) -> str:
        """Kind of the tokenizer: one of `KINDS`, or a name of your own."""

    @property
    def path(self) -> str:
        """Path of the tokenizer file; for a tokenizer without a file, the specification ("byte")."""

    @property
    def sha256(self) -> str:
        """The fingerprint in hexadecimal; a tokenizer that gives other ids for any text has another fingerprint."""

    @property
    def engine_name(self) -> str:
        """Name of the library that `encode_texts` uses."""

    @property
    def vocab_size(self) -> int:
        """The largest token id plus one."""

    @property
    def eod(self) -> int:
        """The id that ends a document."""

    @property
    def bos(self) -> int:
        """The id that starts a document."""

    @property
    def pad(self) -> int:
        """The id for padding."""

    @property
    def unique_identifiers(self) -> Mapping[str, Any]:
        """JSON values that identify the tokenizer in index caches, by name."""

    def tokenize(self, text: str) -> list[int]:
        """Returns the ids of a text; lone surrogates are encoded as `?`."""

    def detokenize(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, with special tokens as their spellings."""

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        """Returns the id of each token; None for a token that the vocabulary lacks."""

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text; the texts must not contain lone surrogates. Releases the GIL."""


def _role(name: str) -> Any:
    """Returns a property for the id of a role; reading it raises `MissingTokenError` if the role is missing."""
    return property(lambda tokenizer: tokenizer.id_of_role(name), doc=f"The id of the {name} token.")


class TokenRoles:
    """A base class for tokenizers, with a path, a fingerprint and roles.

    `roles` maps a role to the id of its token: `eod` ends a document, `bos` starts a document, `eos` (`eod` by default)
    ends a sequence, `pad` pads, `mask` masks, `cls` starts a text for classification, `sep` ends a part of a text.
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
        # Omits the path: byte-level and null tokenizers have no path, and the fingerprint is more exact.
        return OrderedDict({"class": type(self).__name__, "sha256": self.sha256, "eod": self._roles.get("eod")})

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.encode_texts([encodable(text)]).tokens.tolist()
        return ids

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        raise NotImplementedError

    def id_of_role(self, role: str) -> int:
        """Returns the id of a role; raises `MissingTokenError` if the tokenizer lacks the role."""
        if role not in self._roles:
            message = f"tokenizer `{self.path}` has no configured or well-known token for `{role}`"
            special = describe_tokens(list(getattr(self, "special_tokens", ())))
            hint = f"set `{role}_token`; the tokenizer's special tokens are {special}"
            raise MissingTokenError(message, hint=hint if role in ("eod", "bos") else None)
        return self._roles[role]


def well_known_roles(
    path: str, ids: Mapping[str, int], *, eod: str | None = None, bos: str | None = None, pad: str | None = None
) -> dict[str, int]:
    """Returns the ids for `eod`, `bos` and `pad`: of the given token, else of the only well-known spelling in `ids`.

    Omits a role if no token is given for the role and `ids` has none or several of its spellings in `WELL_KNOWN`.

    Raises:
        TokenizerError: `ids` lacks one of the given tokens.
    """
    roles = {}
    for role, named in (("eod", eod), ("bos", bos), ("pad", pad)):
        if named is not None and named not in ids:
            message = f"tokenizer `{path}` has no token {named!r} for `{role}`"
            raise TokenizerError(message, hint=f"choose one of these special tokens: {describe_tokens(list(ids))}")
        found = [named] if named is not None else [token for token in WELL_KNOWN[role] if token in ids]
        if len(found) == 1:
            roles[role] = ids[found[0]]
    return roles


def sentinel_ids(ids: Mapping[str, int]) -> list[int]:
    """Returns the ids of T5's sentinel tokens `<extra_id_N>`, sorted by N."""
    matches = {_SENTINEL.fullmatch(token): number for token, number in ids.items()}
    return [number for _, number in sorted((int(match[1]), number) for match, number in matches.items() if match)]


def describe_tokens(tokens: Sequence[str]) -> str:
    """Returns a phrase that lists the first ten tokens and counts the others."""
    shown = ", ".join(tokens[:10]) or "none"
    return f"{shown}, and {len(tokens) - 10} more" if len(tokens) > 10 else shown


def require_known_ids(path: str, ids: Sequence[int], vocab_size: int) -> list[int]:
    """Returns ids as plain integers; raises `TokenizerError` for an id outside the vocabulary."""
    numbers = [int(number) for number in ids]
    for index, number in enumerate(numbers):
        if not 0 <= number < vocab_size:
            message = f"id {number} at index {index} out of range: tokenizer `{path}` has {vocab_size} ids"
            raise TokenizerError(message, hint="decode with the tokenizer that made these ids")
    return numbers


def decoded(ids: Sequence[int], tokenizer: TextTokenizer | None) -> str:
    """Returns the text of ids; without a tokenizer, the ids joined by spaces."""
    if tokenizer is None:
        return " ".join(map(str, ids))
    try:
        return tokenizer.detokenize(list(ids))
    except (OverflowError, ValueError) as error:
        message = f"the tokenizer cannot decode these tokens: {getattr(error, 'message', error)}"
        raise ConfigError(message, hint="use the tokenizer that made the data") from error


def joined(rows: Sequence[NDArray[Any]], dtype: type[np.generic]) -> Encoded:
    """Concatenates rows of ids, one row per text; without rows, the tokens are an empty array of `dtype`."""
    tokens = np.concatenate(rows) if rows else np.empty(0, dtype=dtype)
    return Encoded(tokens, np.array([len(row) for row in rows], dtype=np.int64))
