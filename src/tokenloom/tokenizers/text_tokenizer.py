"""What every tokenizer offers, whatever library it comes from, and what the kinds of ours have in common."""

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
    """Returns what an exception says, on one line of bounded length."""
    said = " ".join(str(error).split()) if not isinstance(error, MemoryError) else ""
    return shortened(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def shortened(text: str, most: int = 500) -> str:
    """Returns a text of bounded length."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@contextmanager
def failures(message: str, kind: type[TokenloomError] = TokenizerError, *, hint: str | None = None) -> Iterator[None]:
    """Turns whatever fails inside into an error that ends with the reason; for want of a file or module, no refusal."""
    try:
        yield
    except TokenloomError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of Rust, by `pyo3`
            raise
        kind = TokenizerError if isinstance(error, (OSError, ImportError)) else kind
        message = f"{message}: {in_words(error)}"
        raise kind(message, hint=hint) from error


def refusals(doer: str) -> AbstractContextManager[None]:
    """Turns whatever fails inside into a `RefusedTextError`, as `failures` does."""
    return failures(f"{doer} fails", RefusedTextError)


def require_sound(encoded: Encoded, *, num_texts: int, vocab_size: int, hint: str | None = None) -> None:
    """Checks, in one pass, that an engine gave ids of the vocabulary for as many texts; else a `RefusedTextError`."""
    lengths, tokens = encoded.lengths, encoded.tokens
    if len(lengths) != num_texts or int(lengths.sum()) != len(tokens) or (num_texts and int(lengths.min()) < 0):
        message = f"the engine gave {len(tokens)} ids for {len(lengths)} texts, expected those of {num_texts}"
        raise RefusedTextError(message, hint=hint)
    looks = (np.max,) if tokens.dtype.kind == "u" else (np.max, np.min)
    for extreme in [int(look(tokens)) for look in looks] if len(tokens) else []:
        if not 0 <= extreme < vocab_size:
            message = f"the engine gave token id {extreme}, but the vocabulary has {vocab_size}"
            raise RefusedTextError(message, hint=hint)


WELL_KNOWN = {
    "eod": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>"),
    "bos": ("<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|bos|>"),
    "pad": ("<|pad|>", "<pad>"),
}
"""How tokenizers spell the tokens of some roles; a spelling counts where a tokenizer has only one for the role."""


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
        """Which kind of tokenizer it is: of `KINDS`, or a name of your own."""

    @property
    def path(self) -> str:
        """Path of its file, or what it was made from without one ("byte")."""

    @property
    def sha256(self) -> str:
        """The fingerprint, in hexadecimal: what changes the ids of any text changes it."""

    @property
    def engine_name(self) -> str:
        """What turns texts into ids in `encode_texts`: the truth that faster engines are held to."""

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
        """What makes this tokenizer different from others, for index caches: serialisable as JSON."""

    def tokenize(self, text: str) -> list[int]:
        """Returns the ids of a text. Lone surrogates, which no UTF-8 text can hold, count as `?`."""

    def detokenize(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, special tokens spelled out."""

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        """Returns the id of each token of the vocabulary, None for a text that is none."""

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text, none of which may hold lone surrogates; lets other threads run meanwhile."""


def _role(name: str) -> Any:
    """Returns a property, the id of a role; `MissingTokenError` where a tokenizer has none."""
    return property(lambda tokenizer: tokenizer.id_of_role(name), doc=f"The id of the {name} token.")


class TokenRoles:
    """The roles, the identity and the errors that tokenizers have in common.

    Args:
        path, sha256: see `TextTokenizer`.
        roles: the id of each role that there is; "eos" is "eod" unless it is named.

    Attributes:
        eod, bos, eos: the ids that end and begin a document, and end a sequence.
        pad, mask: the ids that fill, and stand in for a masked token.
        cls, sep: the ids that begin a sequence to classify, and end a segment.
    """

    eod, eos, bos, pad, cls, sep, mask = map(_role, ("eod", "eos", "bos", "pad", "cls", "sep", "mask"))

    def __init__(self, path: str, sha256: str, roles: Mapping[str, int]) -> None:
        self.path = path
        self.sha256 = sha256
        self._roles = {"eos": roles["eod"], **roles} if "eod" in roles else dict(roles)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    @property
    def unique_identifiers(self) -> OrderedDict[str, Any]:
        """What makes this tokenizer different from others, for index caches: serialisable as JSON."""
        # No path: byte-level and null tokenizers have none, and the fingerprint says more than a path does.
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
    """Returns the roles, each where it was named or only one well-known spelling of it is among the ids.

    The path is for messages; tokens that were named must be among the ids, those that may have a role.
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
    """Returns the ids of the tokens that are spelled as T5's sentinels, in their order."""
    matches = {_SENTINEL.fullmatch(token): number for token, number in ids.items()}
    return [number for _, number in sorted((int(match[1]), number) for match, number in matches.items() if match)]


def describe_tokens(tokens: Sequence[str]) -> str:
    """Returns the first ten, as a list in words."""
    shown = ", ".join(tokens[:10]) or "none"
    return f"{shown}, and {len(tokens) - 10} more" if len(tokens) > 10 else shown


def require_known_ids(path: str, ids: Sequence[int], vocab_size: int) -> list[int]:
    """Returns ids as plain integers, all of which must be in the vocabulary."""
    numbers = [int(number) for number in ids]
    for index, number in enumerate(numbers):
        if not 0 <= number < vocab_size:
            message = f"tokenizer `{path}`: expected ids in [0, {vocab_size}), found {number} at index {index}"
            raise TokenizerError(message, hint="were these tokens made by another tokenizer?")
    return numbers


def decoded(ids: Sequence[int], tokenizer: TextTokenizer | None) -> str:
    """Returns the text of ids; without a tokenizer, the ids in words."""
    if tokenizer is None:
        return " ".join(map(str, ids))
    try:
        return tokenizer.detokenize(list(ids))
    except (OverflowError, ValueError) as error:
        message = f"the tokenizer cannot decode these tokens: {getattr(error, 'message', error)}"
        raise ConfigError(message, hint="was the data made with this tokenizer?") from error


def joined(rows: Sequence[NDArray[Any]], dtype: type[np.generic]) -> Encoded:
    """Returns the ids of texts that were encoded one by one."""
    tokens = np.concatenate(rows) if rows else np.empty(0, dtype=dtype)
    return Encoded(tokens, np.array([len(row) for row in rows], dtype=np.int64))
