"""Tokenizers that a program has loaded already, by whatever library, as one of ours."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Mapping
from typing import Any

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.tokenizers.huggingface import TOKENIZER_FILE, HuggingFaceTokenizer
from tokenloom.tokenizers.local_names import local_file
from tokenloom.tokenizers.sentencepiece_model import SentencePieceTokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer
from tokenloom.tokenizers.tiktoken_ranks import TiktokenDescription, TiktokenTokenizer


def tokenizer_of_object(
    given: Any, *, eod_token: str | None = None, bos_token: str | None = None
) -> TextTokenizer | None:
    """Returns a tokenizer of another library as one of ours; None for an object of no library that is known.

    Known are `tokenizers.Tokenizer`, fast tokenizers of `transformers`, `tiktoken.Encoding` and
    `sentencepiece.SentencePieceProcessor`; one of ours is returned as it is.

    Args:
        given: the object.
        eod_token, bos_token: see `load_tokenizer`.

    Raises:
        TokenizerError: it is a tokenizer of `transformers` that only Python knows, or does not know one of the tokens.
        ConfigError: a token is named for a tokenizer of ours.
    """
    if isinstance(given, (HuggingFaceTokenizer, TiktokenTokenizer, SentencePieceTokenizer)):
        for name, token in (("eod_token", eod_token), ("bos_token", bos_token)):
            if token is not None:
                message = f"expected no `{name}` for a tokenizer that is loaded already, found {token!r}"
                raise ConfigError(message, hint="name it where the tokenizer is loaded")
        return given
    roles = {"eod_token": eod_token, "bos_token": bos_token}
    libraries = {each.__module__.partition(".")[0] for each in type(given).__mro__}
    if "transformers" in libraries:
        return _of_transformers(given, roles)
    if "tokenizers" in libraries and hasattr(given, "to_str"):
        return _of_backend(given, f"<{type(given).__name__}>", {}, roles)
    if _is_a(given, "tiktoken", "Encoding"):
        ranks = sorted(given._mergeable_ranks.items(), key=lambda row: row[1])
        data = b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in ranks)
        description = TiktokenDescription(pattern=given._pat_str, special_tokens=dict(given._special_tokens), **roles)
        return TiktokenTokenizer(given.name, data, description)
    if _is_a(given, "sentencepiece", "SentencePieceProcessor"):
        return SentencePieceTokenizer(f"<{type(given).__name__}>", given.serialized_model_proto(), **roles)
    return None


def _is_a(given: Any, library: str, name: str) -> bool:
    """Whether it is of a class of a library, which then is loaded already."""
    kind = getattr(sys.modules.get(library), name, None)
    return kind is not None and isinstance(given, kind)


def _of_transformers(given: Any, roles: Mapping[str, str | None]) -> HuggingFaceTokenizer:
    backend = getattr(given, "backend_tokenizer", None)
    if backend is None:
        message = f"expected a fast tokenizer of `transformers`, found {type(given).__name__}, which has no "
        hint = "most models have one: load it with `AutoTokenizer.from_pretrained`, or name the folder of its files"
        raise TokenizerError(message + f"`{TOKENIZER_FILE}`", hint=hint)
    config = dict(given.special_tokens_map)
    for name in ("additional_special_tokens", "extra_special_tokens", "chat_template"):
        if (value := getattr(given, name, None)) is not None:
            config[name] = value
    return _of_backend(backend, given.name_or_path or f"<{type(given).__name__}>", config, roles)


def _of_backend(
    backend: Any, name: str, config: Mapping[str, Any], roles: Mapping[str, str | None]
) -> HuggingFaceTokenizer:
    """Returns a tokenizer of `tokenizers`; where the file that it was loaded from holds the same, that of the file."""
    data = backend.to_str(pretty=True).encode()
    made = HuggingFaceTokenizer(
        name, data, config=config, knows_its_file=False, eod_token=roles["eod_token"], bos_token=roles["bos_token"]
    )
    file = os.path.join(name, TOKENIZER_FILE)
    found = file if os.path.isfile(file) else local_file(name)
    if found is None or os.path.basename(found) != TOKENIZER_FILE:
        return made
    with open(found, "rb") as stream:
        data = stream.read()
    of_file = HuggingFaceTokenizer(
        found, data, config=config, eod_token=roles["eod_token"], bos_token=roles["bos_token"]
    )
    return of_file if of_file.backend.to_str() == made.backend.to_str() else made
