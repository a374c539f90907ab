"""Hugging Face tokenizers from a `tokenizer.json`, with the names that the datasets and the pipeline ask for."""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenloom.errors import MissingTokenError, TokenizerError
from tokenloom.optional import require

TOKENIZER_FILE = "tokenizer.json"
_CONFIG_FILE = "tokenizer_config.json"
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_WELL_KNOWN_EOD = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>")


def load_tokenizer(path: str | os.PathLike[str], *, eod_token: str | None = None) -> HuggingFaceTokenizer:
    """Returns the tokenizer of a `tokenizer.json`, or of a folder with one.

    A `tokenizer_config.json` beside it names the special tokens. Nothing is ever downloaded.

    Args:
        path: of the file, or of its folder.
        eod_token: the token that ends a document; if None, the `eos_token` of `tokenizer_config.json`, else the only
            well-known end-of-text token among the special tokens.

    Raises:
        TokenizerError: the file is missing, unreadable or not a tokenizer, or does not know `eod_token`.
        MissingExtraError: `tokenizers` is not installed.
    """
    name = os.fspath(path)
    file = os.path.join(name, TOKENIZER_FILE) if os.path.isdir(name) else name
    try:
        with open(file, "rb") as stream:
            data = stream.read()
    except OSError as error:
        message = f"cannot read tokenizer `{file}`: {error.strerror or error}"
        hint = f"expected the path of a `{TOKENIZER_FILE}`, or of a folder with one; nothing is downloaded"
        raise TokenizerError(message, hint=hint) from error
    return HuggingFaceTokenizer(file, data, eod_token=eod_token)


class HuggingFaceTokenizer:
    """Text to token ids and back, by `tokenizers`; what it answers is the truth that faster engines are held to.

    Build it with `load_tokenizer`. Picklable; safe from several threads. A role (`eod`, `eos`, `pad`, `bos`) that the
    tokenizer does not have raises `MissingTokenError` when it is asked for. Truncation and padding that the file may
    ask for are switched off, and no special token is added to a text; one that is spelled out in it becomes its id.

    Args:
        path: of the `tokenizer.json`, for messages and identity.
        data: its bytes.
        eod_token: see `load_tokenizer`.
    """

    def __init__(self, path: str, data: bytes, *, eod_token: str | None = None) -> None:
        self.path = path
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.backend = _parse(path, data)
        self.special_tokens_dict: dict[str, int] = self._ids_of_roles(_read_config(path))
        self._eod = self._choose_eod(eod_token)

    @cached_property
    def vocab_size(self) -> int:
        """The largest token id plus one, added tokens included."""
        largest: int = max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)
        return largest + 1

    @property
    def eod(self) -> int:
        """The id that ends a document."""
        if self._eod is None:
            found = self._well_known_eods()
            reason = f"found several: {', '.join(found)}" if found else "found none by name or convention"
            message = f"tokenizer `{self.path}`: expected one token that ends a document, {reason}"
            hint = f"name it with `eod_token`; its special tokens are {self._describe_special_tokens()}"
            raise MissingTokenError(message, hint=hint)
        return self._eod

    @property
    def eos(self) -> int:
        """The id that ends a sequence."""
        return self._role("eos_token")

    @property
    def pad(self) -> int:
        """The id that fills."""
        return self._role("pad_token")

    @property
    def bos(self) -> int:
        """The id that begins a sequence."""
        return self._role("bos_token")

    @property
    def unique_identifiers(self) -> OrderedDict[str, Any]:
        """What makes this tokenizer different from others, for index caches: serialisable as JSON."""
        return OrderedDict(
            {
                "class": type(self).__name__,
                "tokenizer_path": [self.path],
                "sha256": self.sha256,
                "eod": self._eod,
            }
        )

    def tokenize(self, text: str) -> list[int]:
        """Returns the ids of a text. Lone surrogates, which no UTF-8 text can hold, count as `?`."""
        ids: list[int] = self.backend.encode(encodable(text), add_special_tokens=False).ids
        return ids

    def detokenize(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, special tokens spelled out."""
        text: str = self.backend.decode([int(number) for number in ids], skip_special_tokens=False)
        return text

    def _ids_of_roles(self, config: Mapping[str, Any]) -> dict[str, int]:
        ids: dict[str, int] = {}
        for role in _ROLES:
            token = config.get(role)
            if isinstance(token, dict):  # older files hold a serialised AddedToken
                token = token.get("content")
            if isinstance(token, str) and (number := self.backend.token_to_id(token)) is not None:
                ids[role] = number
        return ids

    def _choose_eod(self, eod_token: str | None) -> int | None:
        if eod_token is not None:
            number: int | None = self.backend.token_to_id(eod_token)
            if number is None:
                message = f"tokenizer `{self.path}` has no token {eod_token!r}"
                raise TokenizerError(message, hint=f"its special tokens are {self._describe_special_tokens()}")
            return number
        found = list(self._well_known_eods().values())
        return self.special_tokens_dict.get("eos_token", found[0] if len(found) == 1 else None)

    def _well_known_eods(self) -> dict[str, int]:
        added = self.backend.get_added_tokens_decoder().items()
        return {token.content: number for number, token in added if token.content in _WELL_KNOWN_EOD}

    def _role(self, role: str) -> int:
        if role in self.special_tokens_dict:
            return self.special_tokens_dict[role]
        message = f"tokenizer `{self.path}` has no {role}"
        raise MissingTokenError(message, hint=f"name it in a `{_CONFIG_FILE}` beside the tokenizer")

    def _describe_special_tokens(self) -> str:
        tokens = [token.content for _, token in sorted(self.backend.get_added_tokens_decoder().items())]
        shown = ", ".join(tokens[:10]) or "none"
        return f"{shown}, and {len(tokens) - 10} more" if len(tokens) > 10 else shown


def encodable(text: str) -> str:
    """Returns the text with each lone surrogate replaced by `?`, as Python's `errors="replace"` does."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _parse(path: str, data: bytes) -> Any:
    tokenizers = require("tokenizers", extra="preprocess")
    try:
        backend = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # `tokenizers` raises plain Exception or ValueError
        message = f"`{path}` is not a tokenizer: {error}"
        raise TokenizerError(
            message, hint=f"expected a `{TOKENIZER_FILE}` as Hugging Face `tokenizers` writes it"
        ) from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_config(path: str) -> Mapping[str, Any]:
    """Returns what `tokenizer_config.json` beside the tokenizer says, empty if there is none."""
    config_path = os.path.join(os.path.dirname(path), _CONFIG_FILE)
    try:
        with open(config_path, "rb") as stream:
            config = json.load(stream)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        message = f"cannot read `{config_path}`: {error}"
        raise TokenizerError(message) from error
    if not isinstance(config, dict):
        message = f"`{config_path}`: expected a JSON object, found {type(config).__name__}"
        raise TokenizerError(message)
    return config
